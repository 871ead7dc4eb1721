"""The strategy ``dp``: one process, which copies the network to all its devices in every step."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor, nn
from torch.nn.parallel import gather, parallel_apply, replicate
from torch.nn.parallel.scatter_gather import scatter

from imnet_pl.core.errors import UserError


class Autocast(NamedTuple):
    """A thread's autocast: torch's replicas take over whether it is on, not its dtype."""

    device_type: str
    dtype: torch.dtype
    enabled: bool
    cache_enabled: bool

    @classmethod
    def of_this_thread(cls, device_type: str) -> "Autocast":
        """Return the state here."""
        return cls(
            device_type,
            torch.get_autocast_dtype(device_type),
            torch.is_autocast_enabled(device_type),
            torch.is_autocast_cache_enabled(),
        )


class _Replica(nn.Module):
    """A network that runs under the autocast of the thread that asked for it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor, autocast: Autocast) -> Tensor:
        with torch.autocast(**autocast._asdict()):
            logits: Tensor = self.network(pixels)
        return logits


class ReplicatedNetwork:
    """Runs a network on several devices: each gets a part of the batch, the first one the logits of all.

    No Module, so that a model that holds it has each weight once. On the CPU the replicas are emulated, one
    after the other.

    Args:
        network: On the first device.
        devices: All of one type.
    """

    def __init__(self, network: nn.Module, devices: Sequence[torch.device]) -> None:
        self._replica = _Replica(network)
        self.devices = list(devices)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return logits of pixels [N, ...], as the network does."""
        network, device_type = self._replica.network, self.devices[0].type
        # BatchNorm has no variance of one picture.
        least = 2 if network.training else 1
        count = count_replicas(len(pixels), len(self.devices), least)
        if count == 1:
            logits: Tensor = network(pixels)
            return logits
        autocast = Autocast.of_this_thread(device_type)
        if device_type == "cpu":
            return _run_emulated(self._replica, pixels.chunk(count), autocast)
        devices = self.devices[:count]
        parts = scatter((pixels,), devices)
        is_detached = not torch.is_grad_enabled()
        replicas = replicate(self._replica, devices, detach=is_detached)
        options = [{"autocast": autocast}] * count
        outputs = parallel_apply(replicas, parts, options, devices)
        gathered: Tensor = gather(outputs, devices[0])
        return gathered


def count_replicas(num_pictures: int, num_devices: int, least: int) -> int:
    """Return on how many devices a batch is run, so that each has ``least`` pictures; 1 at least."""
    for count in range(min(num_devices, num_pictures // least), 1, -1):
        part = -(-num_pictures // count)  # torch's chunks are so long, but for the last
        if num_pictures - part * (count - 1) >= least:
            return count
    return 1


def _run_emulated(
    replica: nn.Module, parts: Sequence[Tensor], autocast: Autocast
) -> Tensor:
    """Run replicas on the CPU as torch does on GPUs: in threads, with copies of the weights but for the first."""
    outputs: list[Tensor] = []
    for i, part in enumerate(parts):
        call: Callable[..., Tensor] = replica
        if i:
            call = _with_copies(replica)
        outputs.append(_call_in_thread(call, part, autocast))
    return torch.cat(outputs)


def _with_copies(replica: nn.Module) -> Callable[..., Tensor]:
    state = {**dict(replica.named_parameters()), **dict(replica.named_buffers())}
    copies = {name: value.clone() for name, value in state.items()}

    def call(*args: Any) -> Tensor:
        logits: Tensor = torch.func.functional_call(replica, copies, args)
        return logits

    return call


def _call_in_thread(call: Callable[..., Tensor], *args: Any) -> Tensor:
    """Return a call's result from a thread, which takes over nothing of this one but whether gradients are wanted."""
    results: list[Tensor] = []
    errors: list[Exception] = []
    has_grad = torch.is_grad_enabled()

    def work() -> None:
        torch.set_grad_enabled(has_grad)
        try:
            results.append(call(*args))
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that asked
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class DataParallelStrategy(ParallelStrategy):
    """Data parallelism in one process, for systems where ranks can not talk to each other.

    The steps run once, on the first device; only the backbone's forward is divided. So ``data.batch_size`` is that
    of all devices together, and what is logged, saved and scheduled is as on one device, but for BatchNorm, which
    sees the batch of one device, and keeps the running statistics of the first.
    """

    @property
    def root_device(self) -> torch.device:
        """Return the first device."""
        assert self.parallel_devices is not None
        return self.parallel_devices[0]

    @property
    def num_nodes(self) -> int:
        """Return 1: there is one process."""
        return 1

    @num_nodes.setter
    def num_nodes(self, num_nodes: int) -> None:
        if num_nodes > 1:
            raise UserError(
                f"trainer.num_nodes={num_nodes} needs trainer.strategy=ddp: dp is one process on one machine."
            )

    def _configure_launcher(self) -> None:
        """Start nothing; refuse what one process can not do.

        Raises:
            UserError: There are several processes, or BatchNorm shall be synchronised.
        """
        assert self.cluster_environment is not None
        if (count := self.cluster_environment.world_size()) > 1:
            raise UserError(
                f"trainer.strategy=dp is one process, but {count} were started (by torchrun or SLURM); use ddp."
            )
        if self._layer_sync is not None:
            raise UserError(
                "trainer.sync_batchnorm=true needs trainer.strategy=ddp: under dp BatchNorm can not be synchronised."
            )

    def setup(self, trainer: Trainer) -> None:
        """Let the model's backbone run on all devices.

        Raises:
            UserError: The backbone is compiled.
        """
        super().setup(trainer)
        model: Any = self.lightning_module
        if is_compiled(model.backbone):
            raise UserError(
                "trainer.strategy=dp can not copy a compiled model; use ddp, or leave compiling out."
            )
        assert self.parallel_devices is not None
        model.run_backbone = ReplicatedNetwork(model.backbone, self.parallel_devices)

    def teardown(self) -> None:
        """Give the model back as it was."""
        model: Any = self.lightning_module
        if model is not None:
            model.run_backbone = None
        super().teardown()

    def model_to_device(self) -> None:
        """Move the model to the first device."""
        assert self.model is not None
        self.model.to(self.root_device)

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what there is: one process has all of it."""
        return tensor

    def all_gather(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return what there is."""
        return tensor

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for nobody."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return what there is."""
        return obj


def is_compiled(network: nn.Module) -> bool:
    """Tell whether torch.compile was applied to a network or a part of it."""
    return any(
        module._compiled_call_impl is not None or hasattr(module, "_orig_mod")
        for module in network.modules()
    )
