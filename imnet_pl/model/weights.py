"""Networks of torchvision, and initial weights for them: by name or from a file."""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor, nn
from torchvision import models

from imnet_pl.core.errors import UserError, nearest_hint, some_of
from imnet_pl.core.files import is_url

log = logging.getLogger(__name__)

_FILE_SUFFIXES = frozenset({".pt", ".pth", ".ckpt", ".th", ".safetensors"})
# Where training programs put the state dict, and what wrappers of modules put before its names.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.")
# Of BatchNorm: old files lack it, and it is read only where the momentum is None.
_COUNTER = "num_batches_tracked"


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


@dataclass(frozen=True)
class _Comparison:
    """The entries of some weights beside those of a network, by name and shape."""

    state: Mapping[str, Tensor]
    own: Mapping[str, Tensor]

    @property
    def common(self) -> list[str]:
        """Return the names that are in both, whatever their shapes, in the network's order."""
        return [name for name in self.own if name in self.state]

    @property
    def matched(self) -> list[str]:
        """Return the names that are in both with the same shape."""
        return [x for x in self.common if self.state[x].shape == self.own[x].shape]

    @property
    def missing(self) -> list[str]:
        """Return the network's names that the weights lack, but for BatchNorm's counters."""
        return [name for name in self._absent() if not name.endswith(_COUNTER)]

    def _absent(self) -> list[str]:
        return [name for name in self.own if name not in self.state]

    def table(self) -> str:
        """Return a text table of counts and some names."""
        shapes = [
            f"{name} {tuple(self.state[name].shape)} for {tuple(self.own[name].shape)}"
            for name in self.common
            if self.state[name].shape != self.own[name].shape
        ]
        rows = {
            "matched": self.matched,
            "other shape": shapes,
            "missing": self.missing,
            "missing, unused": [x for x in self._absent() if x.endswith(_COUNTER)],
            "unexpected": sorted(self.state.keys() - self.own.keys()),
        }
        lines = [f"{'keys':<15}  {'count':>5}  names"]
        for label, names in rows.items():
            lines.append(f"{label:<15}  {len(names):>5}  {some_of(names, 3)}".rstrip())
        return "\n".join(lines)


def load_weights(
    network: nn.Module, arch: str, weights: str, replace_head: bool
) -> None:
    """Load initial weights into a network, and log what of a file was used.

    Args:
        network: From ``build_network``.
        arch: Its name.
        weights: Name of torchvision weights, such as ``IMAGENET1K_V1``, or a file.
        replace_head: Keep the network's new head where a file's head has another number of classes; for
            named weights that is always so.

    Raises:
        UserError: Unknown name, unreadable file, or weights that do not fit; the last with a table of keys.
    """
    if is_url(weights):
        raise UserError(
            f"model.weights={weights!r} is a URL; download the file first and give its path."
        )
    from_file = Path(weights).suffix.lower() in _FILE_SUFFIXES or Path(weights).exists()
    own = network.state_dict()
    state = (
        _file_state(Path(weights), own) if from_file else _named_state(arch, weights)
    )
    comparison = _Comparison(state, own)
    try:
        heads = _check_fit(comparison, arch, replace_head or not from_file)
    except UserError as error:
        raise UserError(
            f"model.weights={weights!r} {error}\n{comparison.table()}"
        ) from None
    matched = {name: state[name] for name in comparison.matched}
    network.load_state_dict(matched, strict=False)
    if heads:
        log.info(
            "weights %s: all but the head (%d classes there, %d here, which starts at random).",
            *(weights, len(state[heads[0]]), len(own[heads[0]])),
        )
    if from_file:
        log.info("weights %s:\n%s", weights, comparison.table())


def _check_fit(comparison: _Comparison, arch: str, replace_head: bool) -> list[str]:
    """Return the entries of a head for another number of classes.

    Raises:
        UserError: The weights do not fit; its text goes on after the name of the weights.
    """
    if not comparison.common:
        raise UserError(f"fits no parameter of {arch}; is it of another arch?")
    state, own = comparison.state, comparison.own
    heads = _other_heads(comparison, arch)
    if heads and not replace_head:
        raise UserError(
            f"has a head for {len(state[heads[0]])} classes, the data has {len(own[heads[0]])}; "
            "give --model.replace_head true to start with a new head."
        )
    if missing := comparison.missing:
        raise UserError(
            f"lacks {len(missing)} of the {len(own)} entries of {arch}: {some_of(missing, 3)}; "
            "is it of another arch?"
        )
    return heads


def _other_heads(comparison: _Comparison, arch: str) -> list[str]:
    """Return the entries that differ only in the number of classes.

    Raises:
        UserError: An entry differs otherwise.
    """
    state, own = comparison.state, comparison.own
    matched = set(comparison.matched)
    heads = [name for name in comparison.common if name not in matched]
    for name in heads:
        there, here = tuple(state[name].shape), tuple(own[name].shape)
        if not there or not here or there[1:] != here[1:]:
            raise UserError(
                f"does not fit {arch}: {name} has shape {there}, the network's {here}; is it of another arch?"
            )
    if len({(len(state[name]), len(own[name])) for name in heads}) > 1:
        raise UserError(
            f"does not fit {arch}: {some_of(heads, 3)} have other sizes; is it of another arch?"
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


def _file_state(path: Path, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return a file's entries under the names that match most of a network's.

    Args:
        path: A state dict, or a checkpoint with one in it.
        own: The network's entries.

    Raises:
        UserError: The file can not be read, or holds no tensors by name.
    """
    candidates: list[dict[str, Tensor]] = []
    for mapping in _unwrapped(_read_file(path)):
        tensors = {
            str(name): value
            for name, value in mapping.items()
            if isinstance(value, Tensor)
        }
        candidates += [_renamed(tensors, chain, own) for chain in _chains(tensors)]
    # Of equals the first: the outermost mapping, with the fewest prefixes taken off.
    best = max(
        candidates, key=lambda state: (len(own.keys() & state), len(state)), default={}
    )
    if not best:
        raise UserError(
            f"model.weights={str(path)!r} holds no tensors by name; give a file with a state dict."
        )
    return best


def _unwrapped(content: Any) -> list[Mapping[Any, Any]]:
    """Return a file's content and what its wrappers hold, two levels down, outermost first."""
    level: list[Mapping[Any, Any]] = [content] if isinstance(content, Mapping) else []
    found = list(level)
    for _ in range(2):
        inner = [outer.get(key) for outer in level for key in _WRAPPERS]
        level = [mapping for mapping in inner if isinstance(mapping, Mapping)]
        found += level
    return found


def _chains(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return every sequence of prefixes with which a name starts, the empty one first."""
    chains: set[tuple[str, ...]] = {()}
    for name in names:
        chain: tuple[str, ...] = ()
        rest = name
        while prefix := next((x for x in _PREFIXES if rest.startswith(x)), ""):
            rest = rest.removeprefix(prefix)
            chain += (prefix,)
            chains.add(chain)
    return sorted(chains, key=lambda chain: (len(chain), chain))


def _renamed(
    tensors: Mapping[str, Tensor], chain: tuple[str, ...], own: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return tensors with prefixes taken off, but of no name that the network itself has."""
    renamed: dict[str, Tensor] = {}
    for key in sorted(tensors, key=len):
        name = key
        for prefix in chain:
            name = name if name in own else name.removeprefix(prefix)
        # Two keys may end as one name: the shorter key has it, the other one stays as it was.
        renamed[key if name in renamed else name] = tensors[key]
    return renamed


def _read_file(path: Path) -> Any:
    """Return a file's content, without running code from it.

    Raises:
        UserError: It is absent, a folder, damaged, or can only be read by running code.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"model.weights={str(path)!r} {what}; give a file of weights.")
    from safetensors.torch import load_file

    try:
        if path.suffix.lower() == ".safetensors":
            return load_file(path, device="cpu")
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle makes torch raise nearly anything
        raise UserError(
            f"model.weights={str(path)!r} can not be read{_reason_and_cure(error)}"
        ) from error


def _reason_and_cure(error: Exception) -> str:
    """Return how the sentence about a file that can not be read goes on."""
    if isinstance(error, OSError):
        return f" ({error.strerror or error}); is this user allowed to read it?"
    # torch's own text advises to load the file with weights_only=False: not repeated.
    if code := re.search(r"GLOBAL (\S+)|(TorchScript)", str(error)):
        return (
            f" without running code that it names ({code[1] or code[2]}), which is not done; where it was made, "
            "save its state dict alone: torch.save(model.state_dict(), FILE)."
        )
    return f": it is damaged or no file of weights ({type(error).__name__}); download or save it again."
