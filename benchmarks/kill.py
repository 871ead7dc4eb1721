"""kill -9 at random moments: is the resumed run the run that was never stopped, bit for bit?

python benchmarks/kill.py [--n 100] [--seed 0] [--only NUMBER] [--keep]

Each trial trains a tiny network on tiny pictures through the real command line, is killed once or twice, goes
on with ``fit --resume``, and is compared with a whole run of the same variant: weights, BatchNorm buffers,
optimiser, schedule, random generators, best.ckpt, metrics.csv, TensorBoard's curves, left-over files. Trials
are forked from one process that has imported everything. Which phase is to be hit is drawn beforehand; the
phase that is counted is the one that the run was in when it was dead. Writing a row and the time between
best.ckpt and last.ckpt are too short to be hit: where they are wanted, the run waits some milliseconds there.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kill_marker import PHASES, build_tiny_network
from kill_run import Run, finish_run, start_run, wait_until

EPOCHS, CLASSES, GLOBAL_BATCH = 3, 3, 4
TRAIN_PER_CLASS, VAL_PER_CLASS = 10, 4
BATCHES_PER_EPOCH = 7  # windows of 3, 3 and 1
# Ten trials; the last is of each kind in turn.
WANTED = ("save", "validation", "window", "random") * 2 + ("start-up",)
RARE = ("row", "after best")
START_UP_SHARE = 0.3
AT_LEAST = ("save", "validation", "window")  # a tenth of the kills each
# How long after a phase has begun the kill comes, at most.
DELAY_SEC = {"save": 0.015, "validation": 0.03, "window": 0.02}
DELAY_SEC |= {"row": 0.012, "after best": 0.005, "random": 0.05}
SURVIVOR_SEC = 60.0


@dataclass(frozen=True)
class Variant:
    """How a run trains.

    Args:
        accumulate: Batches in a window.
        val_interval: Batches between validations; 1.0: at the end of an epoch.
        ranks: Processes.
    """

    accumulate: int
    val_interval: int | float
    ranks: int

    def args(self, root: Path, workers: int) -> list[str]:
        """Return the command line."""
        given = {
            "data.root": root,
            "data.image_size": 32,
            "data.batch_size": GLOBAL_BATCH // self.ranks,
            "data.num_workers": workers,
            "model.warmup_epochs": 1,
            "trainer.accelerator": "cpu",
            "trainer.max_epochs": EPOCHS,
            "trainer.log_every_n_steps": 1,
            "trainer.accumulate_grad_batches": self.accumulate,
            "trainer.val_check_interval": self.val_interval,
            "checkpoint.every_minutes": 1e-9,
        }
        if self.ranks > 1:
            given |= {"trainer.strategy": "ddp", "trainer.devices": self.ranks}
        return ["fit", *(f"--{name}={value}" for name, value in given.items())]

    def __str__(self) -> str:
        every = "epoch" if self.val_interval == 1.0 else f"{self.val_interval} batches"
        return f"accumulate {self.accumulate}, validation every {every}, {self.ranks} {'rank' if self.ranks == 1 else 'ranks'}"


@dataclass(frozen=True)
class Trial:
    """What is tried.

    Args:
        number: From 0.
        variant: How the run trains.
        workers: Worker processes of its loaders.
        wanted: Phase of each kill, or ``random``.
        whom: Ranks that are killed; the others must end by themselves.
    """

    number: int
    variant: Variant
    workers: int
    wanted: tuple[str, ...]
    whom: tuple[int, ...]


def plan_trial(number: int, rng: random.Random) -> Trial:
    """Return a trial. Of ten, two have 2 ranks, two are killed twice and one has a worker process."""
    block, place = divmod(number, 10)
    rare = RARE[block % len(RARE)]
    phase = (*WANTED, rare)[place]
    ranks = 2 if (place - block) % 5 == 0 else 1
    is_double = (place - block) % 5 == 2
    workers = int((place - block) % 10 == 3)
    second = rng.choice([*WANTED[:4], rare])
    wanted = (phase, second) if is_double else (phase,)
    accumulate = 3 if "window" in wanted else rng.choice([1, 3])
    whom = tuple(range(ranks))
    if ranks == 2 and (place - block) % 10 == 0 and block % 2 == 0:
        whom = (block // 2 % 2,)
    variant = Variant(accumulate, rng.choice([1.0, 2, 3]), ranks)
    return Trial(number, variant, workers, wanted, whom)


@dataclass
class Whole:
    """A run that was not stopped, how often it was in each phase, and how long it took."""

    run_dir: Path
    counts: dict[str, int]
    seconds: float


class Session:
    """Trials in a temporary folder.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "pictures"
        self.deaths: Counter[str] = Counter()
        self.remarks: list[str] = []
        self._whole: dict[Variant, Whole] = {}
        write_pictures(self.root)

    def whole(self, variant: Variant) -> Whole:
        """Return the run of a variant that is not stopped; it is made once."""
        if variant not in self._whole:
            folder = self.folder / f"whole_{len(self._whole)}"
            folder.mkdir()
            start = time.monotonic()
            run = start_run(variant.args(self.root, 0), folder, variant.ranks)
            finish_run(run, folder)
            counts = {phase: run.markers[0].count(phase) for phase in PHASES}
            (run_dir,) = (folder / "runs" / "run").iterdir()
            self._whole[variant] = Whole(run_dir, counts, time.monotonic() - start)
        return self._whole[variant]

    def try_once(self, trial: Trial, rng: random.Random) -> tuple[list[str], list[str]]:
        """Kill, resume and compare.

        Returns:
            What happened at each kill, and what differs in the end.
        """
        whole = self.whole(trial.variant)
        folder = self.folder / f"trial_{trial.number:03d}"
        folder.mkdir()
        args = trial.variant.args(self.root, trial.workers)
        story = []
        command = args
        for nth, phase in enumerate(trial.wanted):
            run = start_run(command, folder, trial.variant.ranks, phase)
            told = self._kill(run, trial, phase, whole, nth, rng)
            step = newest_step(folder)
            where = "the start" if step is None else f"step {step}"
            story.append(f"{told}, goes on from {where}")
            is_bare = step is not None and rng.random() < 0.5
            command = ["fit", "--resume"] if is_bare else [*args, "--resume"]
        finish_run(start_run(command, folder, trial.variant.ranks), folder)
        from kill_compare import find_differences

        runs = sorted((folder / "runs" / "run").iterdir())
        used = [run for run in runs if (run / "checkpoints" / "last.ckpt").is_file()]
        if len(used) != 1:
            return story, [f"{len(used)} run folders with checkpoints"]
        return story, find_differences(whole.run_dir, used[0])

    def _kill(
        self,
        run: Run,
        trial: Trial,
        phase: str,
        whole: Whole,
        nth: int,
        rng: random.Random,
    ) -> str:
        """Kill a run where it is wanted, and say where it was."""
        marker = run.markers[0]
        wanted = phase
        if phase == "start-up":
            is_there = not run.wait(rng.uniform(0, START_UP_SHARE * whole.seconds))
        elif phase == "random":
            # Not by the clock: a run that goes on may be over before.
            batch = rng.randint(0, EPOCHS * BATCHES_PER_EPOCH)
            is_there = wait_until(run, lambda marker: marker.progress[1] >= batch)
        else:
            last = max(1, whole.counts[phase] // (1 + 2 * nth))
            occurrence = rng.randint(1, last)
            wanted = f"{phase} {occurrence}"
            is_there = wait_until(run, lambda marker: marker.count(phase) >= occurrence)
        time.sleep(rng.uniform(0, DELAY_SEC.get(phase, 0)))
        if not is_there or run.poll():
            return f"wanted {wanted}, ended before"
        run.kill(trial.whom)
        died_in = marker.phase
        steps, batches = marker.progress
        self.deaths[died_in] += 1
        story = (
            f"wanted {wanted}, died in {died_in} after {steps} steps, {batches} batches"
        )
        if len(trial.whom) < trial.variant.ranks:
            story += self._let_end(run, trial)
        return story

    def _let_end(self, run: Run, trial: Trial) -> str:
        """Wait for the rank that was not killed."""
        start = time.monotonic()
        if run.wait(SURVIVOR_SEC):
            return f" (rank {trial.whom[0]} alone; the other left in {time.monotonic() - start:.1f} s)"
        run.kill((0, 1))
        self.remarks.append(
            f"trial {trial.number}: the other rank did not end within {SURVIVOR_SEC:.0f} s"
        )
        return f" (rank {trial.whom[0]} alone; the other did not end)"


def newest_step(folder: Path) -> int | None:
    """Return the step of the checkpoint with which a run goes on; None where there is none."""
    from imnet_pl.training import runs

    if (found := runs.newest_of_run(folder / "runs", "run")) is None:
        return None
    return int(runs.read_checkpoint(found)["global_step"])


def write_pictures(root: Path) -> None:
    """Write JPEGs in class folders."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, count in (("train", TRAIN_PER_CLASS), ("val", VAL_PER_CLASS)):
        for label in range(CLASSES):
            folder = root / split / f"class_{label}"
            folder.mkdir(parents=True)
            for i in range(count):
                low = 60 * label
                pixels = rng.integers(low, low + 60, (40, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.jpg")


def warm_up(folder: Path) -> None:
    """Import what trials need, and start no thread: a forked process has none of them."""
    os.environ["IMNET_PL_CACHE"] = str(folder / "cache")
    import matplotlib.backends.backend_agg  # noqa: F401
    import torch
    import torch.utils.tensorboard

    import imnet_pl.lightning_cli  # noqa: F401
    from imnet_pl.model import classifier

    torch.set_num_threads(1)
    classifier.build_network = build_tiny_network


def run_trials(
    session: Session, numbers: list[int], seed: int, keep: bool
) -> Iterator[bool]:
    """Run trials, print a line for each kill, and yield whether each was equal."""
    for number in numbers:
        rng = random.Random(f"{seed} {number}")
        trial = plan_trial(number, rng)
        start = time.monotonic()
        try:
            story, differences = session.try_once(trial, rng)
        except RuntimeError as error:
            story, differences = [], [str(error)]
        head = f"{number:3d}  {trial.variant}" + ", a worker" * trial.workers
        print(f"{head}  [{time.monotonic() - start:.1f} s]")
        for line in story:
            print(f"       {line}")
        print(f"       {'; '.join(differences) or 'equal'}", flush=True)
        if not differences and not keep:
            shutil.rmtree(session.folder / f"trial_{number:03d}")
        yield not differences


def print_summary(session: Session, equal: list[bool]) -> bool:
    """Print phases, remarks and the result; tell whether all is well."""
    print(f"\n{'phase at death':16} kills")
    for phase in PHASES:
        print(f"{phase:16} {session.deaths[phase]:5d}")
    for remark in session.remarks:
        print(f"remark: {remark}")
    few = [p for p in AT_LEAST if session.deaths[p] < len(equal) // 10]
    if len(equal) < 100:  # too few for all phases
        few = []
    if few:
        print(f"too few kills in: {', '.join(few)}")
    kills = sum(session.deaths.values())
    print(f"{sum(equal)} of {len(equal)} bitwise equal, {kills} kills")
    return all(equal) and not few


def main() -> int:
    """Run the trials and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="Run this trial alone.")
    parser.add_argument("--keep", action="store_true", help="Keep all folders.")
    args = parser.parse_args()
    if not hasattr(os, "fork"):
        raise SystemExit("benchmarks/kill.py forks its trials: it needs Linux or macOS")
    folder = Path(tempfile.mkdtemp(prefix="imnet_pl-kill-"))
    warm_up(folder)
    session = Session(folder)
    numbers = list(range(args.n)) if args.only is None else [args.only]
    equal = list(run_trials(session, numbers, args.seed, args.keep))
    is_well = print_summary(session, equal)
    if all(equal) and not args.keep:
        shutil.rmtree(folder)
    else:
        print(f"folders: {folder}")
    return 0 if is_well else 1


if __name__ == "__main__":
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    sys.exit(main())
