"""Worker processes, threads and the ring of shared slots."""

import gc
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from conftest import CLASSES, write_classes, write_jpeg
from probe import ModuleProbe
from torch.utils.data._utils.pin_memory import pin_memory

from imnet_pl.data.augment import EvalTransform, TrainTransform
from imnet_pl.data.dataset import ImageDataset
from imnet_pl.data.loader import Batch, BatchLoader
from imnet_pl.data.sampler import EvalSampler, TrainSampler
from imnet_pl.data.slots import FREE, SlotPictures, Slots
from imnet_pl.data.sources import auto

REPO = Path(__file__).parents[2]
NUM_SLOTS = 7  # four that a pass uses at once, and three that a test keeps


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Forty pictures of three classes."""
    root = tmp_path_factory.mktemp("loader")
    write_classes(root / "train", {"n01": 14, "n02": 13, "n03": 13})
    return auto.index_split(root, "train", CLASSES)


def make_loader(
    index,
    workers=0,
    threads=1,
    batch_size=8,
    train=True,
    transform=None,
    drop_last=False,
    on_bad=None,
    pin_memory=False,
    **options,
):
    size = 16
    if transform is None and train:
        transform = TrainTransform(
            size, (0.3, 1.0), (0.75, 1.33), 0.5, "bilinear", False
        )
    transform = transform or EvalTransform(size, 18, "bilinear")
    slots = (
        Slots(workers, NUM_SLOTS, batch_size, transform.image_size) if workers else None
    )
    on_bad = on_bad or ("error" if train else "wrong")
    dataset = ImageDataset(index, transform, 5, threads, slots, on_bad)
    sampler = TrainSampler(len(index), seed=5) if train else EvalSampler(len(index))
    return BatchLoader(
        dataset, sampler, batch_size, drop_last, workers, 2, pin_memory, **options
    )


def epoch(loader, number=0):
    loader.sampler.set_epoch(number)
    return [Batch(*(t.clone() for t in batch)) for batch in loader]


def same(left, right):
    return len(left) == len(right) and all(
        torch.equal(a, b)
        for x, y in zip(left, right, strict=True)
        for a, b in zip(x, y, strict=True)
    )


@pytest.fixture(scope="module")
def spawned(index):
    """A loader with one worker of eight threads, which the tests share."""
    return make_loader(index, 1, 8)


@pytest.fixture(scope="module")
def expected(index):
    """Two epochs made in this process by one thread."""
    loader = make_loader(index)
    return [epoch(loader, number) for number in range(2)]


def test_a_batch_is_what_the_contract_says(expected):  # S13
    first = expected[0][0]
    assert first._fields == ("images", "targets", "indices", "status")
    assert [t.dtype for t in first] == [
        torch.uint8,
        torch.int64,
        torch.int64,
        torch.uint8,
    ]
    assert first.images.shape == (8, 3, 16, 16)
    assert first.status.tolist() == [0] * 8


@pytest.mark.parametrize("workers", [0, 1])
def test_images_are_channels_last(index, spawned, workers):
    images = next(iter(spawned if workers else make_loader(index))).images
    assert images.shape == (8, 3, 16, 16)
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_two_epochs_differ_and_each_takes_every_picture_once(expected):
    orders = [
        torch.cat([batch.indices for batch in batches]).tolist() for batches in expected
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(40))
    assert orders[0] != orders[1]


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_change_nothing(index, expected, threads):
    loader = make_loader(index, threads=threads)
    assert all(same(epoch(loader, number), expected[number]) for number in range(2))


SLOW = pytest.mark.slow
GRID = [pytest.param(w, t, marks=SLOW) for w, t in ((1, 1), (1, 2), (2, 1), (2, 8))]


@pytest.mark.parametrize(("workers", "threads"), [(2, 2), *GRID])
def test_workers_change_nothing(index, expected, workers, threads):  # S14
    loader = make_loader(index, workers, threads)
    assert all(same(epoch(loader, number), expected[number]) for number in (0, 1))
    assert same(epoch(loader, 0), expected[0])


def test_many_threads_in_a_worker_change_nothing(spawned, expected):
    assert all(same(epoch(spawned, number), expected[number]) for number in (0, 1))


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_evaluation_pictures_do_not_depend_on_the_batch(index, batch_size):
    one = torch.cat(
        [batch.images for batch in make_loader(index, train=False, batch_size=8)]
    )
    other = list(make_loader(index, 0, 3, batch_size, train=False))
    assert torch.equal(torch.cat([batch.images for batch in other]), one)
    assert torch.cat([batch.indices for batch in other]).tolist() == list(range(40))


def all_free(loader):
    """Tell whether every slot is free once nothing holds a batch."""
    gc.collect()
    loader._free_unused()
    return bool((loader.dataset.slots.owners == FREE).all())


@pytest.fixture
def slots_of(monkeypatch):
    """The slot of every batch that is received from now on; None for fresh memory."""
    received = []
    receive = BatchLoader._receive

    def watch(self, made):
        in_slot = isinstance(made.images, SlotPictures)
        received.append(made.images.slot if in_slot else None)
        return receive(self, made)

    monkeypatch.setattr(BatchLoader, "_receive", watch)
    return received


def test_kept_batches_do_not_change_and_slots_are_used_again(spawned, slots_of):
    kept = []
    for number in range(7):
        spawned.sampler.set_epoch(number)
        for batch in spawned:
            if len(kept) < 3:
                kept.append((batch.images, batch.images.clone()))
    assert all(torch.equal(live, copy) for live, copy in kept)
    assert len(slots_of) == 35
    of_kept, later = slots_of[:3], slots_of[3:]
    assert not set(of_kept) & set(later) - {None}
    assert later.count(None) == 0
    del batch, kept
    assert all_free(spawned)


def test_a_view_of_one_picture_keeps_its_batch(spawned):
    spawned.sampler.set_epoch(0)
    view = next(iter(spawned)).images[3, :, 2:]
    before = view.clone()
    for number in range(1, 4):
        epoch(spawned, number)
    assert torch.equal(view, before)
    del view
    assert all_free(spawned)


def test_a_pass_that_is_left_early_loses_no_slot(spawned, expected, slots_of):
    for _ in range(5):
        batch = next(iter(spawned))
    for number in (0, 1, 0, 1, 0):
        assert same(epoch(spawned, number), expected[number])
    assert slots_of[-20:].count(None) == 0
    del batch
    assert all_free(spawned)


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors")
def test_no_descriptor_and_no_slot_is_lost_over_epochs(spawned):  # S15
    epoch(spawned)
    process = psutil.Process()
    (worker,) = spawned._pool.workers
    processes = [process, psutil.Process(worker.pid)]
    assert all_free(spawned)
    before = [p.num_fds() for p in processes]
    for number in range(4):
        epoch(spawned, number)
    assert all_free(spawned)
    assert [p.num_fds() for p in processes] == before


def test_a_pinned_batch_frees_its_own_slot_at_once(monkeypatch):
    """torch's pinning thread, which needs a GPU, asks the pictures for a copy."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    slots = Slots(2, 3, 4, 8)
    slots.allocate()
    slots.owners.fill_(1)
    slots.owners[1, 2] = FREE
    named, memory = slots.take(1, generation=1, count=3)
    assert bool((slots.owners == 1).all())
    memory.copy_(torch.arange(memory.numel()).view(memory.shape) % 251)
    pinned = pin_memory([named])[0]
    assert slots.owners.tolist() == [[1, 1, 1], [1, 1, FREE]]
    assert torch.equal(pinned, memory.permute(0, 3, 1, 2))
    assert pinned.data_ptr() != memory.data_ptr()
    assert pinned.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")
def test_a_loader_that_pins_gives_the_same_batches(index, expected):
    """Where there is no GPU, torch does not pin."""
    loader = make_loader(index, 1, pin_memory=True)
    assert same(epoch(loader), expected[0])
    assert all_free(loader)


def test_batches_lie_in_memory_that_is_mapped_once(spawned):
    epoch(spawned)
    start = spawned.dataset.slots.memory.data_ptr()
    stop = start + spawned.dataset.slots.memory.nbytes
    for batch in spawned:
        assert start <= batch.images.data_ptr() < stop


def test_more_batches_are_kept_than_there_are_slots(spawned, expected):
    spawned.sampler.set_epoch(0)
    kept = [list(spawned)]
    spawned.sampler.set_epoch(1)
    kept.append(list(spawned))
    assert sum(map(len, kept)) == 10 > NUM_SLOTS
    assert all(map(same, kept, expected))


@pytest.mark.parametrize("workers", [0, 1])
def test_global_random_state_is_neither_used_nor_changed(
    index, spawned, expected, workers
):  # S26
    loader = spawned if workers else make_loader(index, threads=2)
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert same(epoch(loader), expected[0])
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())


def test_worker_imports_little(index):  # S14
    """Neither lightning nor torchvision, though pytest's process has both."""
    import lightning  # noqa: F401
    import torchvision  # noqa: F401

    images = next(
        iter(make_loader(index, 1, train=False, transform=ModuleProbe()))
    ).images
    assert images[:, 1:].max() == 0
    assert images[:, 0, 0, 0].tolist() == [1] * 8


SCRIPT = """
import sys
if __name__ == "__main__":
    import lightning, torch
    from imnet_pl.data.datamodule import ImageNetDataModule
    from probe import ModuleProbe
    lightning.seed_everything(0, workers=True)
    data = ImageNetDataModule(sys.argv[1], batch_size=4, image_size=8, num_workers=1)
    data.setup("fit")
    loader = data.val_dataloader()
    loader.dataset.transform = ModuleProbe()
    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    seen = []
    class Model(lightning.LightningModule):
        def validation_step(self, batch, batch_idx):
            seen.append(int(batch.images[:, 1:].max()))
    trainer.validate(Model(), loader, verbose=False)
    assert seen and max(seen) == 0, seen
"""


def test_worker_imports_little_under_a_trainer_that_seeds_workers(root, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, root],
        env={**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{Path(__file__).parent}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


ENDING = """
import sys
if __name__ == "__main__":
    from pathlib import Path
    from imnet_pl.data.augment import EvalTransform
    from imnet_pl.data.dataset import ImageDataset
    from imnet_pl.data.slots import Slots
    from imnet_pl.data.loader import BatchLoader
    from imnet_pl.data.sampler import EvalSampler
    from imnet_pl.data.sources import auto
    root = Path(sys.argv[1])
    index = auto.index_split(root, "train", auto.train_classes(root))
    transform = EvalTransform(8, 9, "bilinear")
    dataset = ImageDataset(index, transform, 0, 1, Slots(1, 5, 4, 8), "error")
    loader = BatchLoader(dataset, EvalSampler(len(index)), 4, False, 1, 2, False)
    batches = iter(loader)
    next(batches)
    if sys.argv[2] == "error":
        raise RuntimeError("in the middle of a pass")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at Linux' folders")
@pytest.mark.parametrize("ending", ["quiet", "error"])
def test_an_ending_process_leaves_nothing_behind(root, tmp_path, ending):
    script, own_tmp = tmp_path / "script.py", tmp_path / "tmp"
    script.write_text(ENDING)
    own_tmp.mkdir()
    before = set(Path("/dev/shm").iterdir())
    environment = {**os.environ, "PYTHONPATH": str(REPO), "TMPDIR": str(own_tmp)}
    done = subprocess.run(
        [sys.executable, script, root, ending],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == (ending == "error"), done.stderr
    assert not [p for p in own_tmp.iterdir() if p.name.startswith("pymp-")]
    assert not [
        p for p in set(Path("/dev/shm").iterdir()) - before if "torch" in p.name
    ]


def test_last_short_batch(index):
    sizes = [len(batch.targets) for batch in make_loader(index, batch_size=12)]
    assert sizes == [12, 12, 12, 4]
    loader = make_loader(index, batch_size=12, drop_last=True)
    assert [len(batch.targets) for batch in loader] == [12] * 3
    assert len(loader) == 3
    assert [loader.batch_len(i) for i in range(4)] == sizes


def test_dataset_can_be_pickled(index):  # S14
    loader = make_loader(index, threads=2)
    before = epoch(loader)
    assert loader.dataset._pool is not None
    loader.dataset = pickle.loads(pickle.dumps(loader.dataset))
    assert same(epoch(loader), before)


def test_file_handles_are_closed(index):  # S15
    loader = make_loader(index, 0, 2)
    epoch(loader)
    before = len(psutil.Process().open_files())
    for number in range(3):
        epoch(loader, number)
    assert len(psutil.Process().open_files()) == before


def test_picture_larger_than_the_batch_is_no_matter(tmp_path):
    write_jpeg(tmp_path / "train" / "a" / "tall.jpg", size=(900, 20))
    index = auto.index_split(tmp_path, "train", ["a"])
    (batch,) = make_loader(index, train=False)
    assert batch.images.shape == (1, 3, 16, 16)
