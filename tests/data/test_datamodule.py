"""ImageNetDataModule without a Trainer."""

import logging
import shutil

import pytest
from conftest import CLASSES, pack, write_classes, write_jpeg

from imnet_pl.core.errors import UserError
from imnet_pl.core.machine import workers_and_threads
from imnet_pl.data.datamodule import ImageNetDataModule


def module(root, **options):
    return ImageNetDataModule(
        str(root), **{"image_size": 16, "num_workers": 0, **options}
    )


def fitted(root, **options):
    data = module(root, **options)
    data.setup("fit")
    return data


def test_works_without_a_trainer(root):
    data = fitted(root, batch_size=8)
    batches = list(data.train_dataloader())
    assert [len(batch.targets) for batch in batches] == [8, 8, 8]
    assert data.classes == CLASSES
    assert data.num_classes == 3
    val = list(data.val_dataloader())
    assert [len(batch.targets) for batch in val] == [9]
    assert data.paths(val[0].indices[:1])[0].endswith("p0.jpg")
    assert data.labels(val[0].indices) == val[0].targets.tolist()


def test_defaults(root):  # S10
    data = ImageNetDataModule(str(root))
    assert (data.batch_size, data.eval_batch_size) == (256, 512)
    assert (data.image_size, data.eval_resize) == (224, 256)
    assert (data.train_scale, data.hflip) == ((0.08, 1.0), 0.5)
    workers, threads = workers_and_threads(None, None, 1)
    assert workers >= 1
    assert threads >= 1


def test_batch_larger_than_the_set_is_clamped_with_a_notice(root, caplog):
    with caplog.at_level(logging.WARNING):
        data = fitted(root, batch_size=100)
    assert data.batch_size == 24
    assert "data.batch_size=100 is more than the 24 training pictures" in caplog.text
    assert len(list(data.train_dataloader())) == 1


def test_large_rest_is_said_and_can_be_used(root, caplog):
    with caplog.at_level(logging.WARNING):
        data = fitted(root, batch_size=9)
    assert "6 of 24 training pictures are left out" in caplog.text
    assert len(data.train_dataloader()) == 2
    assert len(fitted(root, batch_size=9, drop_last=False).train_dataloader()) == 3


def test_a_rest_of_one_is_dropped_in_any_case_and_said(root, caplog):
    with caplog.at_level(logging.WARNING):
        data = fitted(root, batch_size=23, drop_last=False)
    assert "data.drop_last=False uses all but one of 24" in caplog.text
    assert [len(batch.targets) for batch in data.train_dataloader()] == [23]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 0}, "data.batch_size=0"),
        ({"eval_batch_size": -1}, "data.eval_batch_size=-1"),
        ({"image_size": 0}, "data.image_size=0"),
        ({"num_workers": -1}, "data.num_workers=-1"),
        ({"num_threads": 0}, "data.num_threads=0"),
        ({"prefetch_factor": 0}, "data.prefetch_factor=0"),
        ({"eval_resize": 15}, "data.eval_resize=15"),
        ({"train_scale": (0.0, 1.0)}, "data.train_scale"),
        ({"train_scale": (0.5, 0.2)}, "data.train_scale"),
        ({"train_ratio": (0.0, 1.0)}, "data.train_ratio"),
        ({"hflip": 1.5}, "data.hflip=1.5"),
        ({"source": "foldr"}, "data.source='foldr'"),
        ({"label_format": "index2"}, "data.label_format='index2'"),
        ({"interpolation": "nearest"}, "data.interpolation='nearest'"),
        ({"shuffle": "blocks"}, "data.shuffle='blocks'.* Did you mean 'block'"),
        ({"shuffle_block": 0}, "data.shuffle_block=0"),
        ({"shuffle": "block", "shuffle_window": 63}, "data.shuffle_window=63"),
    ],
)
def test_bad_values_are_named(root, options, named):
    with pytest.raises(UserError, match=named):
        module(root, **options)


def test_sizes_of_blocks_without_blocks_are_said_to_change_nothing(root, caplog):
    with caplog.at_level(logging.WARNING):
        module(root, shuffle="block", shuffle_block=2)
    assert not caplog.text
    with caplog.at_level(logging.WARNING):
        module(root, shuffle_block=2)
    assert "change nothing without --data.shuffle block" in caplog.text


def test_block_order_without_a_trainer(root):
    data = fitted(root, batch_size=8, shuffle="block", shuffle_block=2)
    batches = list(data.train_dataloader())
    indices = [i for batch in batches for i in batch.indices.tolist()]
    assert sorted(indices) == list(range(24)) != indices


def test_few_classes_in_a_window_are_said(tmp_path, caplog):
    """Where pictures lie by class; packed, they lie mixed."""
    for split in ("train", "val"):
        write_classes(tmp_path / "in" / split, {f"n{i}": 16 for i in range(8)})
    packed = pack(tmp_path / "in", tmp_path / "packed", "--keep_originals=true")
    for root in (tmp_path / "in", packed):
        caplog.clear()
        blocks = {"shuffle_block": 8, "shuffle_window": 32}
        fitted(root, batch_size=8, shuffle="block", **blocks).train_dataloader()
        said = "data.shuffle=block: a window of 32 pictures" in caplog.text
        assert said == (root != packed)
    assert "worse" not in caplog.text


def test_root_is_needed_but_for_the_digits():
    with pytest.raises(UserError, match=r"--data\.root"):
        ImageNetDataModule()
    assert ImageNetDataModule(source="digits").num_classes == 10


@pytest.mark.parametrize("as_file", [False, True])
def test_given_classes_need_no_training_folder(root, tmp_path, as_file):
    shutil.rmtree(root / "train")
    classes = [*CLASSES, "n99"]
    if as_file:
        file = tmp_path / "classes.txt"
        file.write_text("\ufeff" + "\n".join(classes) + "\n", encoding="utf-8")
        classes = str(file)
    data = module(root, classes=classes)
    data.setup("validate")
    assert data.num_classes == 4
    assert data.indices["val"].class_counts().tolist() == [3, 3, 3, 0]
    with pytest.raises(UserError, match=r"pictures.train.? does not exist"):
        data.setup("fit")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("missing.txt", "is no file"),
        (["a", "a"], "a more than once"),
        ([], "is empty"),
        (["a", " "], "blank name"),
    ],
)
def test_bad_class_lists(root, classes, message):
    with pytest.raises(UserError, match=message):
        _ = module(root, classes=classes).classes


def test_training_folder_beyond_the_class_list_is_refused(root):
    with pytest.raises(UserError, match="not among the 2 classes: n03"):
        fitted(root, classes=["n01", "n02"])


def test_test_split_where_there_is_one(root, caplog):
    data = module(root)
    data.setup("test")
    with caplog.at_level(logging.WARNING):
        assert len(next(iter(data.test_dataloader())).targets) == 9
    assert "no split 'test'" in caplog.text
    write_classes(root / "test", dict.fromkeys(CLASSES, 1))
    data = module(root)
    data.setup("test")
    assert len(next(iter(data.test_dataloader())).targets) == 3


def test_too_few_pictures_are_refused(tmp_path):
    write_jpeg(tmp_path / "train" / "a" / "x.jpg")
    write_jpeg(tmp_path / "val" / "a" / "x.jpg")
    with pytest.raises(UserError, match="has 1 training pictures for 1 devices"):
        fitted(tmp_path, batch_size=4)


def test_non_ascii_root_in_a_worker(tmp_path):  # S42
    where = tmp_path / "数据" / "Ünïcode é"
    write_classes(where / "train", {"naïve": 2, "b": 2})
    write_classes(where / "val", {"naïve": 1})
    data = fitted(where, batch_size=2, num_workers=1)
    assert sum(len(batch.targets) for batch in data.train_dataloader()) == 4


def test_description_is_of_plain_types(root):
    described = fitted(root).describe()
    assert described["classes"] == list(CLASSES)
    assert described["data"]["val"]["num_samples"] == 9
    assert (described["eval_resize"], described["interpolation"]) == (18, "bilinear")
