"""What the benchmarks on pictures share: their arguments, the pictures, the load of the machine."""

import argparse
import os
from pathlib import Path
from typing import Any


def picture_arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with ``--pictures`` and ``--json``.

    Args:
        description: Its first line is shown.
    """
    beside = Path(__file__).parents[2] / "shared" / "assets"
    assets = Path(os.environ.get("IMNET_PL_ASSETS", beside))
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--pictures", type=Path, default=assets / "imagenet-samples")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser


def loader_arguments(description: str) -> argparse.ArgumentParser:
    """Return the same with ``--repeats`` and ``--batches``."""
    parser = picture_arguments(description)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--batches", type=int, default=24, help="counted batches of each run"
    )
    return parser


def jpegs_in(pictures: Path) -> list[Path]:
    """Return the JPEG files of a folder, sorted; ends the program where there are none."""
    if not pictures.is_dir():
        raise SystemExit(f"--pictures {pictures}: no such folder")
    files = [p for p in pictures.iterdir() if p.suffix.lower() in (".jpeg", ".jpg")]
    if not files:
        raise SystemExit(f"--pictures {pictures}: no JPEG files there")
    return sorted(files)


def machine_facts() -> dict[str, Any]:
    """Return the load before the benchmark, and the cores."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return {"load_before": load, "cores": os.cpu_count()}
