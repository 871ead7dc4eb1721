"""Real pictures in each layout: fit --smoke passes, classes are in one order, and tensors are the same."""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import fit_args
from layouts import LAYOUTS, TRAIN, VAL, WNIDS

from imnet_pl.cli import main
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.sources.digits import ensure_digits

THREE = ("n01440764_0.JPEG", "n02012849_3.JPEG", "ILSVRC2012_val_00000004.JPEG")


@pytest.fixture
def pool(assets, in_tmp):
    """Real pictures under the names that the layouts have."""
    folder = in_tmp / "pool"
    folder.mkdir()
    names = [*TRAIN, *VAL]
    real = sorted((assets / "imagenet-samples").glob("*.JPEG"))[: len(names)]
    for name, file in zip(names, real, strict=True):
        shutil.copyfile(file, folder / name)
    return folder


def write(layout, pool, folder):
    folder.mkdir()
    return LAYOUTS[layout][0](pool, folder)


def tensors_of(root, **options):
    """Return the class order, and picture name -> its tensor as for validation, of train and val."""
    data = ImageNetDataModule(str(root), image_size=48, num_workers=0, **options)
    data.setup("fit")
    tensors = {}
    for split in ("train", "val"):
        for batch in data.eval_dataloader(split):
            for path, image in zip(
                data.paths(batch.indices, split), batch.images, strict=True
            ):
                tensors[Path(path).name] = image.clone()
    return data.classes, tensors


def passes_smoke(capsys, args):
    """Try a run, and show its checklist where a line of it fails."""
    status = main([*args, "--smoke"])
    out = capsys.readouterr().out
    assert status == 0, out
    return out


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_smoke_run_on_each_layout(layout, pool, in_tmp, small_network, capsys):
    root = write(layout, pool, in_tmp / "data")
    out = passes_smoke(capsys, fit_args(root, "--data.batch_size=4"))
    assert "data found: 12 of train and 6 of val, 3 classes" in out


def test_one_class_order_and_the_same_tensors_through_each_layout(pool, in_tmp):
    found = {
        layout: tensors_of(write(layout, pool, in_tmp / layout)) for layout in LAYOUTS
    }
    _, expected = found["folder"]
    for classes, tensors in found.values():
        assert classes == WNIDS
        assert tensors.keys() == {*TRAIN, *VAL}
        assert all(torch.equal(tensors[name], expected[name]) for name in THREE)
    assert len({expected[name].sum().item() for name in THREE}) == 3


def test_the_digits_are_a_layout_of_their_own_and_of_a_flat_val(
    in_tmp, small_network, capsys
):
    root = in_tmp / "digits"
    ensure_digits(root)
    (classes, tensors), (same_classes, same) = (
        tensors_of(root, source=source, num_per_class=2)
        for source in ("digits", "auto")
    )
    assert classes == same_classes == tuple(f"digit_{number}" for number in range(10))
    assert tensors.keys() == same.keys()
    assert all(torch.equal(tensors[name], same[name]) for name in tensors)
    source = ["--data.source=digits", "--data.hflip=0", "--data.train_scale=[0.6,1]"]
    out = passes_smoke(capsys, fit_args(root, *source))
    assert "data found: 100 of train and 100 of val, 10 classes" in out
