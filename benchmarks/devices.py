"""How many pictures/s do 1, 2, .. devices train, what does the exchange of gradients cost, and is it worth it?

python benchmarks/devices.py [--config FILE ...] [--devices 1 2] [--steps 20] [--json FILE] [--data.root DIR ...]

Every row is a run of the real command line (ddp, and dp where there are several GPUs), with the same batch on each
device, so that the step of n devices has n times the pictures. Without --config: a ResNet-18 on generated pictures of
64 px, 32 a device. Other arguments are those of ``fit``. A step without the exchange is one under DDP's no_sync; what
a step takes longer than that is the wait for the exchange, which DDP overlaps with the backward pass.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[1]
PICTURES, CLASSES, SIDE, BATCH = 768, 3, 64, 32
NO_GAIN, GOOD, FAIR = 1.05, 0.8, 0.6  # a speed-up, and two efficiencies
NOTICEABLE_FRAC, NOTICEABLE_RATIO = 0.1, 1.2
LIMIT_SEC = 1800


@dataclass(frozen=True)
class Result:
    """What one run measured, or why it was not made.

    Args:
        strategy: ``ddp`` or ``dp``; of one device none.
        devices: Number of them.
        figures: As ``StepProbe`` writes them; empty where it did not run.
        note: Why.
    """

    strategy: str
    devices: int
    figures: dict[str, Any]
    note: str = ""

    @property
    def rate(self) -> float:
        """Pictures/s of all devices."""
        return float(self.figures["pictures_per_step"] / self.figures["step_sec"])

    @property
    def wait_sec(self) -> float:
        """Seconds of a step that wait for the exchange."""
        figures = self.figures
        return max(0.0, float(figures["step_sec"] - figures["step_without_sync_sec"]))


def describe_worth(one: Result, several: Result) -> str:
    """Return in a sentence whether several devices are worth it, and what holds them back."""
    speed_up, n = several.rate / one.rate, several.devices
    efficiency = speed_up / n
    causes = find_causes(one, several)
    because = f", because {'; '.join(causes)}" if causes and efficiency < GOOD else ""
    if speed_up < 1 / NO_GAIN:
        return f"{n} devices are slower than 1 here ({speed_up:.2f} times){because}."
    if speed_up < NO_GAIN:
        return f"{n} devices are no faster than 1 here ({speed_up:.2f} times){because}."
    partly = "worth it in part" if efficiency >= FAIR else "hardly worth it"
    verdict = "worth it" if efficiency >= GOOD else partly
    return f"{n} devices train {speed_up:.2f} times as fast as 1: {verdict}{because}."


def find_causes(one: Result, several: Result) -> list[str]:
    """Return what costs several devices more than a tenth."""
    figures, step = several.figures, several.figures["step_sec"]
    causes = []
    if several.wait_sec > NOTICEABLE_FRAC * step:
        causes.append(
            f"the wait for the all-reduce of {figures['gradient_bytes'] / 1e6:.1f} MB takes {1e3 * several.wait_sec:.0f} ms of a step "
            f"of {1e3 * step:.0f} ms"
        )
    if figures["data_wait_frac"] > NOTICEABLE_FRAC:
        causes.append(
            f"{100 * figures['data_wait_frac']:.0f} % of a step waits for data"
        )
    ratio = figures["step_without_sync_sec"] / one.figures["step_sec"]
    if several.strategy == "ddp" and ratio > NOTICEABLE_RATIO:
        shared = (
            f"the ranks share the same {figures['cores']} cores"
            if figures["device"] == "CPU"
            else "the ranks share the machine's cores, memory and disks"
        )
        causes.append(
            f"a step takes {ratio:.1f} times as long as alone even without the exchange: {shared}"
        )
    return causes


def write_pictures(root: Path) -> None:
    """Write small JPEGs in class folders."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, count in (("train", PICTURES), ("val", CLASSES)):
        for i in range(count):
            folder = root / split / f"class_{i % CLASSES}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.jpg")


def small_setup(folder: Path) -> list[str]:
    """Make the pictures of the built-in set-up and return its arguments."""
    write_pictures(folder / "pictures")
    return [
        f"--data.root={folder / 'pictures'}",
        f"--data.image_size={SIDE}",
        f"--data.batch_size={BATCH}",
        "--model.arch=resnet18",
        "--trainer.accelerator=auto",
    ]


def run(
    args: list[str], strategy: str, devices: int, steps: int, folder: Path
) -> Result:
    """Train some steps and return what was measured."""
    file = folder / f"{strategy}_{devices}.json"
    fixed = {
        "trainer.devices": devices,
        "trainer.strategy": strategy if devices > 1 else "auto",
        "trainer.num_nodes": 1,
        "trainer.max_epochs": 1_000_000,
        "trainer.limit_val_batches": 0,
        "trainer.num_sanity_val_steps": 0,
        "trainer.enable_checkpointing": "false",
        "trainer.enable_progress_bar": "false",
        "trainer.logger": "false",
        "trainer.default_root_dir": folder / "runs",
        "trainer.callbacks+": "devices_probe.StepProbe",
        "trainer.callbacks.file": file,
        "trainer.callbacks.steps": steps,
    }
    command = [sys.executable, str(REPO / "cli.py"), "fit", *args]
    command += [f"--{name}={value}" for name, value in fixed.items()]
    paths = [str(Path(__file__).parent), str(REPO), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        command, check=False, env=env, capture_output=True, text=True, timeout=LIMIT_SEC
    )
    if done.returncode or not file.is_file():
        said = done.stderr.strip().splitlines() or ["nothing was said"]
        return Result(strategy, devices, {}, f"failed: {said[-1]}")
    return Result(strategy, devices, json.loads(file.read_text(encoding="utf-8")))


def measure(
    args: list[str], devices: list[int], steps: int, folder: Path
) -> list[Result]:
    """Run one device, then several with each strategy."""
    import torch

    results = [run(args, "ddp", 1, steps, folder)]
    if not results[0].figures:
        return results
    on_cpu = results[0].figures["device"] == "CPU"
    gpus = 0 if on_cpu else torch.cuda.device_count()
    for n in devices:
        if n == 1:
            continue
        if gpus and n > gpus:
            results.append(Result("ddp", n, {}, f"not run: there are {gpus} GPUs"))
        else:
            results.append(run(args, "ddp", n, steps, folder))
        if gpus < n:
            results.append(Result("dp", n, {}, f"not run: dp needs {n} GPUs"))
        else:  # its batch is that of all devices together
            whole = f"--data.batch_size={n * batch_size(args)}"
            results.append(run([*args, whole], "dp", n, steps, folder))
    return results


def batch_size(args: list[str]) -> int:
    """Return the batch of one device that arguments of ``fit`` give."""
    from imnet_pl.lightning_cli import ImageNetCLI

    return int(ImageNetCLI(["fit", *args], build_only=True).datamodule.batch_size)


def show(results: list[Result]) -> None:
    """Print the table and the verdicts."""
    one = results[0]
    print(
        f"{one.figures['device']}, {one.figures['cores']} cores; {one.figures['pictures_per_step']} pictures a device"
    )
    print(
        "strategy devices  pictures/s    each  speed-up  efficiency  step ms  waits for exchange  "
        "all-reduce           waits for data"
    )
    for result in results:
        name = "-" if result.devices == 1 else result.strategy
        head = f"{name:8} {result.devices:7d}  "
        print(head + (describe_row(one, result) if result.figures else result.note))
    print()
    for result in results[1:]:
        if result.figures:
            print(f"{result.strategy}: {describe_worth(one, result)}")


def describe_row(one: Result, result: Result) -> str:
    """Return the cells of a row after the first two."""
    figures, n = result.figures, result.devices
    speed_up, step = result.rate / one.rate, figures["step_sec"]
    wait = exchange = "-"
    if figures["all_reduce_sec"] is not None:
        seconds, size = figures["all_reduce_sec"], figures["gradient_bytes"]
        wait = f"{1e3 * result.wait_sec:.0f} ms ({100 * result.wait_sec / step:.0f} %)"
        exchange = f"{1e3 * seconds:.0f} ms, {size / seconds / 1e9:.2f} GB/s"
    return (
        f"{result.rate:10.0f}  {result.rate / n:6.0f}  {speed_up:8.2f}  {100 * speed_up / n:8.0f} %  "
        f"{1e3 * step:7.0f}  {wait:>18}  {exchange:19}  {100 * figures['data_wait_frac']:.0f} %"
    )


def as_json(results: list[Result]) -> list[dict[str, Any]]:
    """Return all facts in plain types."""
    one, rows = results[0], []
    for result in results:
        row = asdict(result)
        if result.figures:
            speed_up = result.rate / one.rate
            row |= {
                "pictures_per_sec": result.rate,
                "speed_up": speed_up,
                "efficiency": speed_up / result.devices,
                "wait_sec": result.wait_sec,
            }
            if result.devices > 1:
                row["verdict"] = describe_worth(one, result)
        rows.append(row)
    return rows


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", action="append", default=[], help="As of fit.")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=20, help="In a block, of 6.")
    parser.add_argument("--json", type=Path, help="File for the same facts.")
    known, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="imnet_pl-devices-") as name:
        folder = Path(name)
        given = [part for file in known.config for part in ("--config", file)]
        args = [*(given or small_setup(folder)), *more]
        results = measure(args, known.devices, known.steps, folder)
    if not results[0].figures:
        print(f"one device: {results[0].note}", file=sys.stderr)
        return 1
    show(results)
    if known.json:
        known.json.write_text(json.dumps(as_json(results), indent=1), encoding="utf-8")
    return int(any(result.note.startswith("failed") for result in results))


if __name__ == "__main__":
    sys.exit(main())
