"""The strategy ``ddp``: a process for each device, with what Lightning's (2.6) leaves to the user decided."""

import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry

from imnet_pl.core.errors import UserError
from imnet_pl.core.machine import usable_cores
from imnet_pl.training.data_parallel import DataParallelStrategy
from imnet_pl.training.launcher import RankLauncher, SpawnLauncher, describe_taken

log = logging.getLogger(__name__)

BACKEND_VARIABLE = "PL_TORCH_DISTRIBUTED_BACKEND"
_WITHOUT_GLOO = ((2, 8), (2, 10))  # official Windows wheels of torch, first and last


def register_strategies(prepare_rank: Callable[[], None] | None = None) -> None:
    """Let ``Trainer(strategy=...)`` know ``dp``, and mean this program's strategy by ``ddp`` and its relatives.

    ``auto`` on several devices is ``ddp``.

    Args:
        prepare_rank: A function of a module that ranks which Python spawns call first.
    """
    for name, entry in list(StrategyRegistry.items()):
        if entry["strategy"] in (DDPStrategy, ExactDDPStrategy):
            options = {**entry["init_params"], "prepare_rank": prepare_rank}
            StrategyRegistry.register(
                name, ExactDDPStrategy, entry["description"], override=True, **options
            )
    StrategyRegistry.register("dp", DataParallelStrategy, override=True)


class ExactDDPStrategy(DDPStrategy):
    """DDP that needs no settings, and evaluates the same network on all ranks.

    NCCL on Linux with CUDA, Gloo on Windows and on the CPU. BatchNorm's running statistics are those of rank 0;
    a validation takes them to all ranks once, and not through DDP's wrapper.

    Args:
        process_group_backend: ``nccl`` or ``gloo``; default: the environment's PL_TORCH_DISTRIBUTED_BACKEND, else
            by system and device.
        find_unused_parameters: Let parameters have no gradient.
        gradient_as_bucket_view: Keep gradients in the buckets that are sent, not beside them.
        prepare_rank: A function of a module that ranks which Python spawns call first.
        kwargs: Lightning's DDPStrategy's, and torch's DistributedDataParallel's.

    Raises:
        UserError: The system can not do what is asked for; when the Trainer is made.
    """

    def __init__(
        self,
        process_group_backend: str | None = None,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = True,
        prepare_rank: Callable[[], None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            process_group_backend=process_group_backend,
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
            **kwargs,
        )
        self._prepare_rank = prepare_rank

    def _configure_launcher(self) -> None:
        """Check what can be known before the other ranks start."""
        device = self.root_device.type
        self._process_group_backend = choose_backend(
            self._process_group_backend, device, sys.platform, os.environ
        )
        if sys.platform == "win32":
            prepare_windows(torch.__version__, os.environ)
        if self._layer_sync is not None and device == "cpu":
            raise UserError(
                "trainer.sync_batchnorm=true needs GPUs: torch has none for the CPU; leave it out."
            )
        cores = usable_cores()
        if device == "cpu" and self.num_processes > cores and self.local_rank == 0:
            log.warning(
                "trainer.devices=%d starts as many processes on the CPU, of which %d cores can be used.",
                *(self.num_processes, cores),
            )
        if self._start_method == "popen":
            assert self.cluster_environment is not None
            self._launcher = RankLauncher(
                self.cluster_environment, self.num_processes, self.num_nodes
            )
        else:
            self._launcher = SpawnLauncher(self, self._start_method, self._prepare_rank)

    def setup_distributed(self) -> None:
        """Join the other ranks.

        Raises:
            UserError: The port where they meet is in use.
        """
        try:
            super().setup_distributed()
        except dist.DistNetworkError as error:
            if "EADDRINUSE" not in str(error):
                raise
            port = os.environ["MASTER_PORT"]
            raise UserError(describe_taken(port, "it is in use")) from error

    def on_validation_start(self) -> None:
        """Give all ranks the running statistics that rank 0 saves."""
        super().on_validation_start()
        assert self.lightning_module is not None
        if self.world_size > 1:
            for buffer in self.lightning_module.buffers():
                dist.broadcast(buffer, src=0)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate the module itself: DDP's wrapper would talk to the other ranks."""
        assert self.lightning_module is not None
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*args, **kwargs)


def choose_backend(
    wanted: str | None, device: str, platform: str, environ: MutableMapping[str, str]
) -> str:
    """Return ``nccl`` or ``gloo``, or what was asked for.

    Args:
        wanted: The strategy's argument.
        device: Type of the devices, such as ``cuda``.
        platform: ``sys.platform``.
        environ: Environment; its variable counts where there is no argument.

    Raises:
        UserError: NCCL is asked for where it can not work.
    """
    name = "process_group_backend"
    if wanted is None and environ.get(BACKEND_VARIABLE):
        wanted, name = environ[BACKEND_VARIABLE], BACKEND_VARIABLE
    can_nccl = device == "cuda" and platform != "win32" and dist.is_nccl_available()
    if wanted is None:
        return "nccl" if can_nccl else "gloo"
    if "nccl" in wanted.lower() and not can_nccl:
        where = "on Windows" if platform == "win32" else "without CUDA devices"
        raise UserError(
            f"{name}={wanted} can not work {where}; leave it out, and Gloo is taken."
        )
    return wanted


def prepare_windows(version: str, environ: MutableMapping[str, str]) -> None:
    """Keep clear of what PyTorch's Windows wheels lack.

    Args:
        version: Of torch.
        environ: Environment of this process and of the ranks that it starts.

    Raises:
        UserError: Gloo can not work with this torch or this environment.
    """
    first, last = _WITHOUT_GLOO
    major, minor = (int(part) for part in version.split(".")[:2])
    if first <= (major, minor) <= last:
        raise UserError(
            f"torch {version} for Windows has no transport for Gloo (2.8 to 2.10 do not), so that ranks can not "
            "talk; install torch 2.11 or later, or use --trainer.strategy dp."
        )
    if environ.setdefault("USE_LIBUV", "0") != "0":
        raise UserError(
            f"USE_LIBUV={environ['USE_LIBUV']} is set, but PyTorch for Windows is built without libuv for its store; "
            "unset it or set it to 0."
        )


def check_devices(accelerator: Any, devices: Any) -> None:
    """Raise if more CUDA devices are asked for than there are.

    Args:
        accelerator: ``trainer.accelerator``.
        devices: ``trainer.devices``: a number, a list of indices, or either as text.

    Raises:
        UserError: It names how many there are.
    """
    there = torch.cuda.device_count()
    if accelerator not in ("auto", "gpu", "cuda") or there == 0:
        return
    text = str(devices).strip("[]() ")
    if "," in text or isinstance(devices, list | tuple):
        wanted = max(
            (int(i) for i in text.split(",") if i.strip().isdigit()), default=0
        )
        wanted += 1
    else:
        wanted = int(text) if text.isdigit() else 0
    if wanted > there:
        raise UserError(
            f"trainer.devices={devices} asks for more than the {there} CUDA devices that there are (numbered from 0); "
            "give fewer, or auto for all."
        )
