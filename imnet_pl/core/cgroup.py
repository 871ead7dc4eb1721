"""What the control groups of this process, of both versions, allow it."""

import math
from collections.abc import Iterator
from pathlib import Path

_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
_UNLIMITED = 2**60  # version 1 says "no limit" by a number above this


class Cgroups:
    """The groups that this process is in, each with those around it.

    Args:
        membership: The kernel's list of this process's groups.
        mount: Where the groups are mounted.
    """

    def __init__(self, membership: Path = _MEMBERSHIP, mount: Path = _MOUNT) -> None:
        self.membership, self.mount = membership, mount

    def cores(self) -> int | None:
        """Return the cores that the tightest quota allows, at least 1; None where there is no quota."""
        quotas = []
        for folder in self._folders("cpu"):
            words = _words(folder / "cpu.max") or [
                *_words(folder / "cpu.cfs_quota_us"),
                *_words(folder / "cpu.cfs_period_us"),
            ]
            if len(words) == 2 and all(word.isdecimal() for word in words):
                quota, period = map(int, words)
                quotas.append(max(1, math.floor(quota / max(1, period))))
        return min(quotas, default=None)

    def free_memory(self) -> int | None:
        """Return the bytes that the tightest group has left; None where there is no limit."""
        left = []
        for folder in self._folders("memory"):
            for limit, usage, cache in (
                ("memory.max", "memory.current", "inactive_file"),
                (
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    "total_inactive_file",
                ),
            ):
                most, used = _number(folder / limit), _number(folder / usage)
                if most is not None and used is not None and most < _UNLIMITED:
                    # Files kept in memory make room for whoever needs it.
                    kept = _named_number(folder / "memory.stat", cache) or 0
                    left.append(max(0, most - used + kept))
        return min(left, default=None)

    def oom_kills(self) -> int | None:
        """Return how many processes the kernel has ended for want of memory; None where it does not count."""
        counts = (
            _named_number(folder / file, "oom_kill")
            for folder in self._folders("memory")
            for file in ("memory.events", "memory.oom_control")
        )
        return max((count for count in counts if count is not None), default=None)

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yield the folders of this process's groups and of all around them.

        In a container the path may be the host's, of which only the mount itself is to be seen.
        """
        for line in _lines(self.membership):
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            names = controllers.split(",") if controllers else []
            if names and controller not in names:
                continue
            roots = [self.mount / controllers, self.mount / controller]
            for root in roots if names else [self.mount, self.mount / "unified"]:
                inner = Path(path.strip("/"))
                for folder in (root / inner, *(root / up for up in inner.parents)):
                    if folder.is_dir():
                        yield folder


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _words(file: Path) -> list[str]:
    return [word for line in _lines(file) for word in line.split()]


def _number(file: Path) -> int | None:
    words = _words(file)
    return int(words[0]) if words and words[0].isdecimal() else None


def _named_number(file: Path, name: str) -> int | None:
    """Return the number of a line ``name number``."""
    for line in _lines(file):
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None
