"""Pictures that can not be read, on their way into a batch."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CLASSES, write_classes
from PIL import Image
from test_loader import epoch, make_loader, same

from imnet_pl.core.errors import UserError
from imnet_pl.data import reading
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.dataset import MAX_REPLACEMENTS
from imnet_pl.data.decode import decode_rgb
from imnet_pl.data.sources import auto


@pytest.fixture
def damaged(root):
    """Class folders in which a picture of n02 is none, and one of n03 ends early; the index."""
    (root / "train" / "n02" / "p3.jpg").write_bytes(b"no picture")  # index 11
    file = root / "train" / "n03" / "p1.jpg"  # index 17
    file.write_bytes(file.read_bytes()[:-300])
    return auto.index_split(root, "train", CLASSES)


def columns(batches):
    """Return indices, status and targets of a pass."""
    names = ("indices", "status", "targets")
    return [torch.cat([getattr(b, name) for b in batches]).tolist() for name in names]


def test_a_bad_picture_is_replaced_by_one_of_its_class(damaged):
    loader = make_loader(damaged, on_bad="replace")
    sound = make_loader(auto.index_split(Path(damaged.root), "train", CLASSES))
    indices, status, targets = columns(epoch(loader))
    assert sorted(status) == [0] * 22 + [2] * 2
    order = [key.position for key in sound.sampler]
    for asked, used, what, target in zip(order, indices, status, targets, strict=True):
        assert target == damaged.labels[used] == damaged.labels[asked]
        assert (used != asked) == (what == 2) == (asked in (11, 17))
    assert loader.bad_pictures.keys() == {11, 17}
    assert "no picture of a known format" in loader.bad_pictures[11].reason
    assert "truncated" in loader.bad_pictures[17].reason


def test_the_row_holds_the_picture_that_indices_says(damaged):
    transform = make_loader(damaged).dataset.transform
    for batch in epoch(make_loader(damaged, on_bad="replace")):
        for row in (batch.status == 2).nonzero().flatten().tolist():
            used = Path(damaged.path(int(batch.indices[row]))).read_bytes()
            low, high = decode_rgb(used).min(), decode_rgb(used).max()
            assert low <= batch.images[row].min() <= batch.images[row].max() <= high
    assert transform.policy.partial is False


def test_replacements_differ_by_epoch_and_seed(damaged):
    used = set()
    for number in range(12):
        batches = epoch(make_loader(damaged, on_bad="replace"), number)
        indices, status, _ = columns(batches)
        used |= {i for i, s in zip(indices, status, strict=True) if s == 2}
    assert len(used) > 4


@pytest.mark.parametrize("on_bad", ["replace", "partial"])
@pytest.mark.parametrize(("workers", "threads"), [(0, 3), (2, 2)])
def test_replacements_do_not_depend_on_workers(damaged, workers, threads, on_bad):
    expected = make_loader(damaged, on_bad=on_bad)
    loader = make_loader(damaged, workers, threads, on_bad=on_bad)
    for number in range(2):
        assert same(epoch(loader, number), epoch(expected, number))
    assert loader.bad_pictures == expected.bad_pictures


def test_sound_pictures_are_the_same_with_and_without_bad_ones(damaged, root):
    batches = epoch(make_loader(damaged, on_bad="replace"))
    write_classes(root / "again", dict.fromkeys(CLASSES, 8))
    shutil.rmtree(root / "train")
    (root / "again").rename(root / "train")
    sound = epoch(make_loader(auto.index_split(root, "train", CLASSES)))
    for left, right in zip(batches, sound, strict=True):
        fine = left.status == 0
        assert torch.equal(left.images[fine], right.images[fine])


def test_a_jpeg_that_ends_early_is_used_as_far_as_it_goes(damaged):
    loader = make_loader(damaged, on_bad="partial")
    indices, status, _ = columns(epoch(loader))
    found = {i: s for i, s in zip(indices, status, strict=True) if s}
    assert found[17] == 3
    assert sorted(found.values()) == [2, 3]
    assert {b.position: b.status for b in loader.bad_pictures.values()} == {
        11: 2,
        17: 3,
    }


def test_a_class_without_any_sound_picture_is_an_error(root):
    for file in (root / "train" / "n02").iterdir():
        file.write_bytes(b"no picture")
    index = auto.index_split(root, "train", CLASSES)
    for workers in (0, 1):
        with pytest.raises(UserError) as caught:
            epoch(make_loader(index, workers, on_bad="replace"))
        text = str(caught.value)
        assert "class 'n02' has no picture to train on: 8 of its 8 were tried" in text
        assert all(f"p{i}.jpg" in text for i in range(8))


def test_the_search_for_a_replacement_is_bounded(tmp_path, monkeypatch):
    write_classes(tmp_path / "train", {"a": 1})
    for i in range(40):
        (tmp_path / "train" / "a" / f"bad{i}.jpg").write_bytes(b"no picture")
    read = []
    monkeypatch.setattr(
        "imnet_pl.data.dataset.read_picture", lambda *at: read.append(at) or b"none"
    )
    index = auto.index_split(tmp_path, "train", ["a"])
    with pytest.raises(UserError, match="11 of its 41 were tried"):
        epoch(make_loader(index, on_bad="replace"))
    assert len(read) == 1 + MAX_REPLACEMENTS


def test_a_locked_picture_is_bad_only_after_retries(root, monkeypatch):
    index, slept = auto.index_split(root, "train", CLASSES), []
    monkeypatch.setattr("imnet_pl.data.reading.time.sleep", slept.append)
    read, locked = reading._read, {"p3.jpg": 1, "p5.jpg": 99}

    def read_or_fail(path):
        folder, name = Path(path).parts[-2:]
        if folder == "n02" and locked.get(name, 0):
            locked[name] -= 1
            raise PermissionError(13, "held by another program", path)
        return read(path)

    monkeypatch.setattr(reading, "_read", read_or_fail)
    loader = make_loader(index, on_bad="replace")
    epoch(loader)
    assert loader.bad_pictures.keys() == {13}
    assert "held by another program" in loader.bad_pictures[13].reason
    assert len(slept) >= 4


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_evaluation_picture_can_be_an_error(damaged, workers):
    with pytest.raises(UserError, match=r"n02.p3\.jpg' \(index 11\) can not be read"):
        list(make_loader(damaged, workers, train=False, on_bad="error"))


def test_a_bad_evaluation_picture_is_noted(damaged):
    loader = make_loader(damaged, 1, 2, train=False)
    status = torch.cat([batch.status for batch in loader])
    assert status.nonzero().flatten().tolist() == [11, 17]
    assert [b.status for b in loader.bad_pictures.values()] == [1, 1]


def module(root, **options):
    data = ImageNetDataModule(
        str(root), **{"image_size": 16, "num_workers": 0, "batch_size": 8, **options}
    )
    data.setup("fit")
    return data


def test_the_data_module_passes_its_settings_on(damaged):
    root = Path(damaged.root)
    data = module(
        root, alpha_background=[1, 2, 3], exif_orientation=True, max_pixels=900
    )
    for loader in (data.train_dataloader(), data.val_dataloader()):
        policy = loader.dataset.transform.policy
        assert policy.alpha_background == (1, 2, 3)
        assert (policy.exif_orientation, policy.max_pixels) == (True, 900)
    described = data.describe()
    assert described["alpha_background"] == [1, 2, 3]
    assert (described["exif_orientation"], described["max_pixels"]) == (True, 900)


def test_defaults_replace_in_training_and_count_as_wrong_in_evaluation(damaged, root):
    (root / "val" / "n01" / "p0.jpg").write_bytes(b"no picture")
    data = module(root)
    status = torch.cat([b.status for b in data.train_dataloader()])
    assert sorted(status.tolist())[-3:] == [0, 2, 2]
    assert next(iter(data.val_dataloader())).status.tolist() == [1] + [0] * 8
    assert {split: set(bad) for split, bad in data.bad_pictures.items()} == {
        "train": {11, 17},
        "val": {0},
    }


def test_errors_can_be_asked_for(damaged, root):
    (root / "val" / "n01" / "p0.jpg").write_bytes(b"no picture")
    data = module(root, on_bad_image="error", on_bad_eval_image="error")
    with pytest.raises(UserError, match="can not be read"):
        list(data.train_dataloader())
    with pytest.raises(UserError, match=r"index 0\) can not be read"):
        list(data.val_dataloader())


def test_a_prediction_names_bad_pictures_whatever_the_setting(damaged, root):
    data = ImageNetDataModule(
        str(root),
        image_size=16,
        num_workers=0,
        predict_input="train",
        on_bad_eval_image="error",
    )
    data.setup("predict")
    (batch,) = data.predict_dataloader()
    assert batch.status.nonzero().flatten().tolist() == [11, 17]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"on_bad_image": "skip"}, "data.on_bad_image='skip'"),
        ({"on_bad_eval_image": "replace"}, "data.on_bad_eval_image='replace'"),
        ({"max_pixels": 0}, "data.max_pixels=0"),
        ({"alpha_background": (255, 255)}, "data.alpha_background"),
        ({"alpha_background": (0, 0, 256)}, "data.alpha_background"),
    ],
)
def test_bad_settings_are_named(root, options, named):
    with pytest.raises(UserError, match=named):
        ImageNetDataModule(str(root), **options)


def test_a_picture_in_another_format_than_its_name_is_read(root):
    pixels = np.full((20, 30, 3), 200, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    (root / "train" / "n02" / "p3.jpg").write_bytes(file.getvalue())
    index = auto.index_split(root, "train", CLASSES)
    status = columns(epoch(make_loader(index)))[1]
    assert set(status) == {0}
