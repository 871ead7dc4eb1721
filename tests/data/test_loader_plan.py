"""Processes, threads and shared batches by the machine, and what they cost."""

import logging
from types import SimpleNamespace

import lightning
import pytest
from lightning.pytorch.strategies import DDPStrategy

from imnet_pl.core.errors import UserError
from imnet_pl.data import argument_checks, loader_plan
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.loader_plan import LoaderPlan, fit_memory, ranks_on_node

MIB = 2**20
GIB = 2**30
# Of the usual size: 128 pictures of 224 px are 18.4 MiB.
WANTED = LoaderPlan(
    num_workers=4,
    num_threads=2,
    prefetch_factor=3,
    num_slots=6,
    capacity=128,
    image_size=224,
)


@pytest.fixture
def machine(monkeypatch):
    """Return a function that sets cores, free memory and free shared memory."""

    def set_machine(cores=8, memory=64 * GIB, shared=64 * GIB):
        monkeypatch.setattr("imnet_pl.core.machine.usable_cores", lambda: cores)
        monkeypatch.setattr(loader_plan, "usable_cores", lambda: cores)
        monkeypatch.setattr(loader_plan, "free_memory", lambda: memory)
        monkeypatch.setattr(loader_plan, "free_shared_memory", lambda: shared)

    set_machine()
    return set_machine


@pytest.fixture
def data(root, machine):
    """Return a function that makes a data module that was set up for training."""

    def make(**options):
        module = ImageNetDataModule(
            str(root), **{"batch_size": 8, "image_size": 16, **options}
        )
        module.setup("fit")
        return module

    return make


def plan_of(module, split="train"):
    return loader_plan.plan_loader(module, split, module.batch_size)


@pytest.mark.parametrize(
    ("cores", "expected"), [(1, (1, 1)), (2, (2, 1)), (8, (2, 4)), (48, (12, 4))]
)
def test_processes_and_threads_come_from_the_cores(data, machine, cores, expected):
    machine(cores=cores)
    plan = plan_of(data(batch_size=2))
    assert (plan.num_workers, plan.num_threads) == expected
    assert plan.num_slots == plan.prefetch_factor + 3


def test_there_are_no_more_workers_than_batches(data, machine):
    machine(cores=48)
    module = data(batch_size=8)  # 24 pictures
    assert plan_of(module)[:2] == (3, 16)
    module.trainer = SimpleNamespace(strategy=None, world_size=2)
    assert plan_of(module)[:2] == (2, 24)
    assert plan_of(data(batch_size=8, num_workers=5)).num_workers == 5


def test_an_argument_overrides_the_cores(data):
    plan = plan_of(data(num_workers=2, num_threads=3, prefetch_factor=4))
    assert plan[:4] == (2, 3, 4, 7)
    assert plan_of(data(num_workers=2)).num_threads == 4


def test_no_worker_needs_no_slots(data):
    module = data(num_workers=0)
    plan = plan_of(module)
    assert (plan.num_slots, plan.shared_bytes, plan.make_slots()) == (0, 0, None)
    assert plan.num_threads == 8


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (DDPStrategy(parallel_devices=[0, 1, 2, 3]), 4),
        (lightning.Trainer(accelerator="cpu", logger=False).strategy, 1),
        (SimpleNamespace(), 1),
    ],
    ids=["ddp", "single device", "one process for all devices"],
)
def test_ranks_on_the_node_are_the_strategy_s_processes(strategy, expected):
    assert ranks_on_node(SimpleNamespace(strategy=strategy)) == expected
    assert ranks_on_node(None) == 1


def test_ranks_of_a_node_share_cores_and_memory(data, machine, caplog):
    machine(cores=32, memory=20 * GIB)
    module = data(prefetch_factor=1)
    module.trainer = SimpleNamespace(strategy=SimpleNamespace(num_processes=4))
    plan = plan_of(module)
    assert (plan.num_workers, plan.num_threads) == (2, 4)
    machine(cores=32, memory=2 * GIB)
    caplog.clear()
    plan_of(module)  # 2 GiB * 0.8 / 4 ranks / 3, since val's batches are twice as large
    assert "may take 136 MiB of the memory that is free" in caplog.text


def test_cores_that_srun_gave_a_rank_are_not_divided(data, machine, monkeypatch):
    machine(cores=4)
    module = data()
    module.trainer = SimpleNamespace(strategy=SimpleNamespace(num_processes=4))
    assert plan_of(module)[:2] == (1, 1)
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert plan_of(module)[:2] == (2, 2)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")  # not bound: these are of all
    assert plan_of(module)[:2] == (1, 1)


def test_more_workers_than_cores_is_said(data, machine, caplog):
    machine(cores=2)
    assert plan_of(data(num_workers=3)).num_workers == 3
    assert "data.num_workers=3 is more than the 2 cores" in caplog.text
    assert "; 2 would do" in caplog.text
    caplog.clear()
    plan_of(data(num_workers=2))
    assert "more than" not in caplog.text


def test_what_a_loader_costs_is_said_once_for_each(data, caplog):
    module = data(num_workers=2, num_threads=2, prefetch_factor=2)
    with caplog.at_level(logging.INFO):
        module.train_dataloader()
        module.val_dataloader()
    lines = [r.getMessage() for r in caplog.records if "loader of" in r.getMessage()]
    assert [line.split(":")[0] for line in lines] == [
        "loader of train",
        "loader of val",
    ]
    assert "2 worker processes of 2 threads, 5 shared batches" in lines[0]


def test_costs():
    assert WANTED.slot_bytes == 128 * 224 * 224 * 3
    assert WANTED.shared_bytes == 4 * 6 * WANTED.slot_bytes
    assert WANTED.memory_bytes > WANTED.shared_bytes + 4 * 300 * MIB
    assert WANTED.most_decoded_bytes >= 4 * 300 * MIB


def test_a_plan_that_fits_is_kept_in_silence(caplog):
    assert fit_memory(WANTED, 64 * GIB, 64 * GIB) == WANTED
    assert fit_memory(WANTED, 64 * GIB, None) == WANTED
    assert "more than" not in caplog.text


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (1800, (4, 2, 5)),
        (1750, (4, 1, 4)),
        (1700, (4, 1, 3)),
        (1600, (4, 1, 2)),
        (1200, (3, 1, 2)),
        (400, (1, 1, 2)),
        (10, (1, 1, 2)),
    ],
)
def test_memory_lowers_prefetch_then_slots_then_workers(caplog, memory, expected):
    plan = fit_memory(WANTED, memory * MIB, 64 * GIB)
    assert (plan.num_workers, plan.prefetch_factor, plan.num_slots) == expected
    assert f"may take {memory:,} MiB of the memory that is free" in caplog.text
    assert "Lower data.num_workers, then data.prefetch_factor, then" in caplog.text
    assert ("still too much" in caplog.text) == (memory == 10)
    assert "docker" not in caplog.text


def test_fewer_workers_have_all_cores(data, machine, caplog):
    assert fit_memory(WANTED, 400 * MIB, None)[:2] == (1, 2)
    assert fit_memory(WANTED, 1200 * MIB, None, num_threads=8)[:2] == (3, 3)
    machine(cores=16, memory=GIB)
    assert plan_of(data(batch_size=2))[:2] == (1, 16)
    assert "it gets 1 workers of 16 threads" in caplog.text
    assert plan_of(data(batch_size=2, num_threads=3))[:2] == (1, 3)


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        (450, (4, 3, 6)),
        (400, (4, 2, 5)),
        (300, (4, 1, 4)),
        (150, (4, 1, 2)),
        (80, (4, 1, 1)),
        (16, (4, 1, 0)),
        (0, (4, 1, 0)),
    ],
)
def test_shared_memory_lowers_prefetch_and_slots_alone(caplog, shared, expected):
    plan = fit_memory(WANTED, 64 * GIB, shared * MIB)
    assert (plan.num_workers, plan.prefetch_factor, plan.num_slots) == expected
    assert ("/dev/shm" in caplog.text) == (plan != WANTED)
    assert ("through a pipe" in caplog.text) == (plan.num_slots < 2)


def test_shared_memory_is_divided_between_train_and_val(data, machine):
    machine(shared=2**20)
    module = data(prefetch_factor=1, num_workers=1, image_size=64)
    plans = [
        loader_plan.plan_loader(module, "train", module.batch_size),
        loader_plan.plan_loader(module, "val", module.eval_batch_size),
    ]
    assert sum(plan.shared_bytes for plan in plans) <= 2**20
    assert [plan.num_slots for plan in plans] == [2, 2]


ABSURD = {
    "num_workers": (10**6, 512),
    "num_threads": (10**5, 512),
    "prefetch_factor": (10**6, 256),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_values_are_refused(root, name):
    value, bound = ABSURD[name]
    with pytest.raises(
        UserError, match=rf"data.{name}={value} must be at most {bound}"
    ):
        ImageNetDataModule(str(root), **{name: value})


def test_windows_waits_for_61_workers_at_most():
    assert argument_checks.most_workers("nt") == 61
    assert argument_checks.most_workers("posix") == 512


@pytest.mark.parametrize("name", ["stall_sec", "stall_warn_sec"])
def test_no_time_to_wait_is_refused(root, name):
    with pytest.raises(UserError, match=rf"data.{name}=0 must be at least 1"):
        ImageNetDataModule(str(root), **{name: 0})
