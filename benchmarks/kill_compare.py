"""Is a resumed run the run that was never stopped? What ``benchmarks/kill.py`` compares, bit for bit."""

import csv
import logging
from pathlib import Path
from typing import Any

CLOCK_COLUMNS = ("time/", "throughput/")


def find_differences(whole: Path, resumed: Path) -> list[str]:
    """Return what differs between two run folders, one phrase each; nothing where they are the same run."""
    return [
        *_compare_checkpoints(whole, resumed),
        *_compare_rows(read_rows(whole), read_rows(resumed)),
        *_compare_scalars(read_scalars(whole), read_scalars(resumed)),
        *_compare_files(whole, resumed),
    ]


def _compare_checkpoints(whole: Path, resumed: Path) -> list[str]:
    differences = []
    for name in ("last.ckpt", "best.ckpt"):
        file = resumed / "checkpoints" / name
        if not file.is_file():
            differences.append(f"no {name}")
            continue
        a, b = parts_of(whole / "checkpoints" / name), parts_of(file)
        differences += [
            f"{name}: {part}" for part in a if not is_same(a[part], b[part])
        ]
    return differences


def parts_of(checkpoint: Path) -> dict[str, Any]:
    """Return the parts of a checkpoint that must be equal."""
    import torch

    content = torch.load(checkpoint, weights_only=True)
    averages = ("running_mean", "running_var", "num_batches_tracked")
    network = content["state_dict"]
    of_best = [s for key, s in content["callbacks"].items() if "{best," in key]
    return {
        "weights": {k: v for k, v in network.items() if not k.endswith(averages)},
        "BatchNorm buffers": {k: v for k, v in network.items() if k.endswith(averages)},
        "optimiser": content["optimizer_states"],
        "schedule": content["lr_schedulers"],
        "progress": [content["loops"]["fit_loop"], content["global_step"]],
        "random generators": content["imnet_pl_resume"]["random"],
        "training metrics": content["imnet_pl_resume"]["metrics"],
        "best score": [state["best_model_score"] for state in of_best],
    }


def is_same(a: Any, b: Any) -> bool:
    """Tell whether two nests of plain values and tensors are equal bit for bit."""
    import torch

    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        same_keys = isinstance(b, dict) and a.keys() == b.keys()
        return same_keys and all(is_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        same_length = isinstance(b, list | tuple) and len(a) == len(b)
        return same_length and all(is_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def read_rows(run: Path) -> list[dict[str, str]]:
    """Return the rows of metrics.csv, without what a clock says and without blanks."""
    with (run / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return [
            {k: v for k, v in row.items() if v and not k.startswith(CLOCK_COLUMNS)}
            for row in csv.DictReader(file)
        ]


def _compare_rows(
    whole: list[dict[str, str]], resumed: list[dict[str, str]]
) -> list[str]:
    if len(whole) != len(resumed):
        return [f"metrics.csv: {len(resumed)} rows, not {len(whole)}"]
    for number, (a, b) in enumerate(zip(whole, resumed, strict=True), start=1):
        if a != b:
            names = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
            return [f"metrics.csv: row {number}, {', '.join(names)}"]
    return []


def read_scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) of each of TensorBoard's curves, as it shows them, without what a clock says."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells what it hides
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if not tag.startswith(CLOCK_COLUMNS)
    }


def _compare_scalars(whole: dict[str, Any], resumed: dict[str, Any]) -> list[str]:
    tags = sorted(whole.keys() | resumed.keys())
    differ = [tag for tag in tags if whole.get(tag) != resumed.get(tag)]
    return [f"TensorBoard: {tag}" for tag in differ]


def _compare_files(whole: Path, resumed: Path) -> list[str]:
    """Return what is missing, and what is left over, but for TensorBoard's files, one a start."""

    def names(run: Path) -> set[str]:
        files = (file.relative_to(run).as_posix() for file in run.rglob("*"))
        return {name for name in files if "tfevents" not in name}

    missing, extra = names(whole) - names(resumed), names(resumed) - names(whole)
    return [f"missing {name}" for name in sorted(missing)] + [
        f"left over {name}" for name in sorted(extra)
    ]
