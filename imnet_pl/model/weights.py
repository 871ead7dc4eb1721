"""Networks of torchvision, and initial weights for them: by name or from a file."""

import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from urllib.error import URLError

import torch
from torch import Tensor, nn
from torchvision import models

from imnet_pl.core.errors import UserError, nearest_hint, some_of

log = logging.getLogger(__name__)

_FILE_SUFFIXES = frozenset({".pt", ".pth", ".ckpt", ".th", ".safetensors"})


def build_network(arch: str, num_classes: int) -> nn.Module:
    """Return a torchvision classifier with random weights.

    Raises:
        UserError: There is no classifier of that name.
    """
    allowed = models.list_models(module=models)
    if arch not in allowed:
        raise UserError(
            f"model.arch={arch!r} is no classifier of torchvision.{nearest_hint(arch, allowed)}"
        )
    # The two that add a second head in training are used without it: one network, one loss.
    extra = (
        {"aux_logits": False, "init_weights": True}
        if arch in ("googlenet", "inception_v3")
        else {}
    )
    network: nn.Module = models.get_model(
        arch, weights=None, num_classes=num_classes, **extra
    )
    return network


def load_weights(
    network: nn.Module, arch: str, weights: str, replace_head: bool
) -> None:
    """Load initial weights into a network.

    Args:
        network: From ``build_network``.
        arch: Its name.
        weights: Name of torchvision weights, such as ``IMAGENET1K_V1``, or a file.
        replace_head: Keep the network's new head where a file's head has another number of classes; for
            named weights that is always so.

    Raises:
        UserError: Unknown name, unreadable file, or weights that do not fit.
    """
    from_file = Path(weights).suffix.lower() in _FILE_SUFFIXES or Path(weights).exists()
    state = _read_file(Path(weights)) if from_file else _named_state(arch, weights)
    own = network.state_dict()
    matched = {name: value for name, value in state.items() if name in own}
    if not matched:
        raise UserError(
            f"model.weights={weights!r} fits no parameter of {arch}: the file has "
            f"{some_of(sorted(state), 3)}, the network {some_of(sorted(own), 3)}."
        )
    heads = _other_heads(matched, own, weights, arch)
    if heads and from_file and not replace_head:
        name = min(heads)
        raise UserError(
            f"model.weights={weights!r} has a head for {len(matched[name])} classes, the data has "
            f"{len(own[name])}; give --model.replace_head true to start with a new head."
        )
    kept = {name: value for name, value in matched.items() if name not in heads}
    if missing := sorted(set(own) - set(kept) - heads):
        raise UserError(
            f"model.weights={weights!r} lacks {len(missing)} of the {len(own)} entries of {arch}: "
            f"{some_of(missing, 3)}; is it of another arch?"
        )
    network.load_state_dict(kept, strict=False)
    if heads:
        name = min(heads)
        log.info(
            "weights %s: all but the head (%d classes there, %d here, which starts at random).",
            *(weights, len(matched[name]), len(own[name])),
        )


def _other_heads(
    matched: Mapping[str, Tensor], own: Mapping[str, Tensor], weights: str, arch: str
) -> set[str]:
    """Return the entries that differ only in the number of classes.

    Raises:
        UserError: An entry differs otherwise.
    """
    heads = set()
    for name, value in matched.items():
        if value.shape == own[name].shape:
            continue
        if (
            value.ndim == 0
            or own[name].ndim == 0
            or value.shape[1:] != own[name].shape[1:]
        ):
            raise UserError(
                f"model.weights={weights!r} does not fit {arch}: {name} has shape {tuple(value.shape)}, the "
                f"network's {tuple(own[name].shape)}; is it of another arch?"
            )
        heads.add(name)
    if (
        len({len(matched[name]) for name in heads}) > 1
        or len({len(own[name]) for name in heads}) > 1
    ):
        raise UserError(
            f"model.weights={weights!r} does not fit {arch}: {some_of(sorted(heads), 3)} have other sizes; is "
            "it of another arch?"
        )
    return heads


def _named_state(arch: str, name: str) -> Mapping[str, Tensor]:
    choices = list(models.get_model_weights(arch))
    names = [weights.name for weights in choices]
    if name == "DEFAULT":
        name = models.get_model_weights(arch)["DEFAULT"].name
    if name not in names:
        raise UserError(
            f"model.weights={name!r} is neither a file nor weights of {arch}, which are "
            f"{', '.join(names) or 'none'}.{nearest_hint(name, names)}"
        )
    chosen = choices[names.index(name)]
    try:
        state: Mapping[str, Tensor] = chosen.get_state_dict(
            progress=False, check_hash=True
        )
    except (URLError, OSError, RuntimeError) as error:
        raise UserError(
            f"model.weights={name!r} could not be downloaded ({error}); fetch {chosen.url} on another machine "
            "and give the file as --model.weights."
        ) from error
    return state


def _read_file(path: Path) -> Mapping[str, Tensor]:
    """Return the network's entries of a file: a plain state dict, or a checkpoint of this program."""
    if not path.is_file():
        raise UserError(f"model.weights={str(path)!r} does not exist.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (
        RuntimeError,
        pickle.UnpicklingError,
        EOFError,
        OSError,
        ValueError,
    ) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"model.weights={str(path)!r} can not be read: {reason}"
        ) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else {}
    tensors = {
        str(name): value for name, value in state.items() if isinstance(value, Tensor)
    }
    if not tensors:
        raise UserError(f"model.weights={str(path)!r} holds no tensors by name.")
    return {name.removeprefix("backbone."): value for name, value in tensors.items()}
