"""What does a safe save cost beside torch.save and fsync?

python benchmarks/saving.py [--folder DIR] [--repeats 7]

ResNet-50 with the momentum of SGD (195 MiB), written in turn by the writer of checkpoints and by torch.save, to the
same folder; exit status 1 where the median of the first is above 1.5 times that of the second.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMIT = 1.5


def state_of_resnet50() -> dict[str, Any]:
    """Return weights and optimiser state after one step of SGD."""
    import torch
    from torchvision.models import resnet50

    network = resnet50()
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {
        "state_dict": network.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
    }


def save_plainly(state: dict[str, Any], path: Path) -> None:
    """Write as ``torch.save`` does, and onto the disk."""
    import torch

    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def save_safely(state: dict[str, Any], path: Path) -> None:
    """Write as a run does."""
    from imnet_pl.training.checkpoint_io import SafeCheckpointIO

    writer = SafeCheckpointIO()
    writer.save_checkpoint(state, path)
    assert writer.failure is None, writer.failure


def time_in_turn(folder: Path, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each kind of save."""
    state = state_of_resnet50()
    kinds = {"torch.save + fsync": save_plainly, "SafeCheckpointIO": save_safely}
    seconds: dict[str, list[float]] = {label: [] for label in kinds}
    for i in range(repeats + 1):
        for label, save in kinds.items():
            start = time.perf_counter()
            save(state, folder / f"{save.__name__}.ckpt")
            if i > 0:  # the first ones have no file to replace
                seconds[label].append(time.perf_counter() - start)
    return seconds


def main() -> int:
    """Print the medians and their ratio; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="Where to write; default: the temporary one.")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        seconds = time_in_turn(Path(folder), args.repeats)
    print(f"{'':20} median (range) of {args.repeats}")
    for label, times in seconds.items():
        print(
            f"{label:20} {statistics.median(times):.3f} s ({min(times):.3f} to {max(times):.3f})"
        )
    plain, safe = (statistics.median(times) for times in seconds.values())
    print(f"ratio {safe / plain:.2f}, at most {LIMIT}")
    return int(safe / plain > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
