"""ImageNet's own tars are read as they lie, packed, and unpacked into class folders."""

import io
import shutil
import tarfile

import pytest
from conftest import pack
from layouts import (
    TRAIN,
    VAL,
    WNIDS,
    classes_of,
    index,
    paths_of,
    write_folder,
    write_kit_2012,
    write_pool,
    write_rows,
    write_solution,
)

from imnet_pl.cli import main
from imnet_pl.core.errors import UserError
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.reading import read_picture
from imnet_pl.data.sources import auto

TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"


@pytest.fixture
def pool(tmp_path):
    return write_pool(tmp_path / "pool")


def tar_of(files):
    """Return the bytes of a tar of name -> content, as GNU tar writes it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def write_tars(pool, root):
    """Write both tars: that of train holds one of each class, in no order."""
    root.mkdir()
    inner = {}
    for wnid in reversed(WNIDS):
        names = reversed([name for name, c in TRAIN.items() if c == wnid])
        inner[f"{wnid}.tar"] = tar_of({n: (pool / n).read_bytes() for n in names})
    (root / TRAIN_TAR).write_bytes(tar_of(inner))
    pictures = {name: (pool / name).read_bytes() for name in reversed(VAL)}
    (root / VAL_TAR).write_bytes(tar_of(pictures))
    return root


def contents(index):
    """Return path -> bytes."""
    paths = enumerate(paths_of(index))
    return {path: read_picture(index, row) for row, path in paths}


@pytest.fixture
def tars(pool, tmp_path):
    """The tars with Kaggle's labels of val."""
    root = write_tars(pool, tmp_path / "tars")
    write_solution(root / "LOC_val_solution.csv", VAL)
    return root


def test_pictures_are_read_where_they_lie_in_the_tars(pool, tars, tmp_path):
    folders = write_folder(pool, tmp_path / "folders")
    assert auto.train_classes(tars) == list(WNIDS)
    assert auto.detect_layout(tars, "val") == "official_tars"
    train, same = index(tars, "train", WNIDS), index(folders, "train", WNIDS)
    assert paths_of(train) == paths_of(same)
    assert train.fingerprint == same.fingerprint
    assert train.path(0).startswith(f"{tars / TRAIN_TAR}: train/{WNIDS[0]}/")
    val = index(tars, "val", WNIDS)
    assert classes_of(val) == VAL
    for found in (train, val):
        for row, path in enumerate(paths_of(found)):
            expected = (pool / path.rpartition("/")[2]).read_bytes()
            assert read_picture(found, row) == expected


def test_a_run_reads_tars_and_keeps_their_index(tars, scans):
    for _ in range(2):
        data = ImageNetDataModule(str(tars), image_size=16, num_workers=0, batch_size=6)
        data.setup("fit")
        assert len(list(data.train_dataloader())) == 2
        assert all(not batch.status.any() for batch in data.val_dataloader())


def write_kit(root):
    write_kit_2012(root / "kit" / "data")
    with tarfile.open(root / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as tar:
        tar.add(root / "kit", "ILSVRC2012_devkit_t12")
    shutil.rmtree(root / "kit")


LABELS = {
    "packed devkit": write_kit,
    "devkit": lambda root: write_kit_2012(root / "ILSVRC2012_devkit_t12" / "data"),
    "kaggle": lambda root: write_solution(root / "LOC_val_solution.csv", VAL),
    "csv": lambda root: write_rows(
        root / "val-wnids.csv", [["filename", "wnid"], *VAL.items()]
    ),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_val_in_each_form(pool, tmp_path, kind):
    root = write_tars(pool, tmp_path / "tars")
    write_rows(root / "a.csv", [["other", "columns"], ["1", "2"]])
    LABELS[kind](root)
    assert classes_of(index(root, "val", WNIDS)) == VAL


def test_val_without_labels_says_what_to_put_beside_it(pool, tmp_path):
    root = write_tars(pool, tmp_path / "tars")
    with pytest.raises(UserError, match="not its labels; put ILSVRC2012_devkit_t12"):
        index(root, "val", WNIDS)
    (root / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(b"cut off")
    with pytest.raises(UserError, match=r"devkit_t12\.tar\.gz' is damaged"):
        index(root, "val", WNIDS)
    write_solution(root / "LOC_val_solution.csv", dict(list(VAL.items())[1:]))
    with pytest.raises(UserError, match="no line for 1 of 6 pictures"):
        index(root, "val", WNIDS)


def test_tars_are_packed_and_unpacked_to_the_same_pictures(tars, pool, tmp_path):
    folders = write_folder(pool, tmp_path / "folders")
    args = [f"--data.root={tars}", f"--unpack={tmp_path / 'out'}"]
    for _ in range(2):  # the second time all is there
        assert main(["pack", *args]) == 0
    packed = pack(tars, tmp_path / "packed", "--keep_originals=true")
    for split in ("train", "val"):
        roots = (folders, tmp_path / "out", packed)
        expected, *same = (index(root, split, WNIDS) for root in roots)
        for found in same:
            assert found.fingerprint == expected.fingerprint
            assert contents(found) == contents(expected)
    assert not list((tmp_path / "out").rglob("*.part"))


def cut(content):
    return content[: len(content) // 2]


def cut_between_members(content):
    return content[: content.index(b"n02012849.tar")]


def append(content):
    return content + tar_of({"n02012849.tar": tar_of({"x.JPEG": b"x"})})


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (cut, "ends early"),
        (cut_between_members, "ends early or is damaged at byte"),
        (append, "goes on after its end .* something was appended"),
        (lambda content: tar_of({"n1.txt": b"x"}), "where a tar of each class is exp"),
        (lambda content: tar_of({"n01440764.tar": b"x" * 2000}), "n01440764.tar in"),
        (lambda content: b"", "damaged or ends early"),
    ],
)
def test_a_tar_that_is_damaged_is_told(tars, spoil, text):
    tar = tars / TRAIN_TAR
    tar.write_bytes(spoil(tar.read_bytes()))
    with pytest.raises(UserError, match=text) as error:
        index(tars, "train", WNIDS)
    assert TRAIN_TAR in str(error.value)


def test_classes_that_were_not_given_are_told(tars):
    for split in ("train", "val"):
        with pytest.raises(UserError, match="1 classes that are not among the 2"):
            index(tars, split, WNIDS[:2])
