"""A devkit's table of MATLAB: read as SciPy reads it, and never more than an error where it is damaged."""

import io
import random

import numpy as np
import pytest
from scipy.io import savemat

from imnet_pl.core.errors import UserError
from imnet_pl.data.sources.devkit import _read_class_table
from imnet_pl.data.sources.mat_file import read_structs

WNIDS = [f"n{10_000_000 + 37 * i}" for i in range(40)]


def table(numbers=float):
    """Return synsets as the devkit has them; the last two stand above the others."""
    fields = ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children")
    rows = [
        (numbers(i + 1), wnid, "crane, é", "a bird " * i, numbers(0), [])
        for i, wnid in enumerate(WNIDS)
    ]
    rows[-2:] = [(*row[:4], numbers(2), np.array([1.0, 2.0])) for row in rows[-2:]]
    synsets = np.zeros(len(rows), dtype=[(name, object) for name in fields])
    synsets[:] = rows
    return synsets


def mat(**options):
    file = io.BytesIO()
    numbers = options.pop("numbers", float)
    savemat(file, {"other": np.eye(3), "synsets": table(numbers)}, **options)
    return file.getvalue()


def wanted(name):
    return name in ("ILSVRC2012_ID", "WNID", "words", "num_children")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_compression": True},
        {"oned_as": "column"},
        {"numbers": int},
        {"numbers": np.uint8},
        {"numbers": np.float32},
    ],
)
def test_structs_are_read(options):
    rows = read_structs(mat(**options), "synsets", wanted)
    assert [row["WNID"] for row in rows] == WNIDS
    assert [row["ILSVRC2012_ID"] for row in rows] == list(range(1, 41))
    assert [row["num_children"] for row in rows] == [0] * 38 + [2] * 2
    assert {row["words"] for row in rows} == {"crane, é"}
    assert all(set(row) == set(filter(wanted, table().dtype.names)) for row in rows)


def test_the_class_table_is_that_of_the_leaves(tmp_path):
    (tmp_path / "meta.mat").write_bytes(mat())
    expected = {str(i + 1): wnid for i, wnid in enumerate(WNIDS[:-2])}
    assert _read_class_table(tmp_path / "meta.mat") == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no MAT-file of level 5"),
        (b"\x89HDF\r\n" + bytes(300), "no MAT-file of level 5"),
        (mat()[:128], "no struct array 'synsets'"),
        (mat()[:500], "cut off"),
        (mat(do_compression=True)[:-20], "cut off"),
    ],
)
def test_another_file_is_an_error(data, message):
    with pytest.raises(ValueError, match=message):
        read_structs(data, "synsets", wanted)


def damage(data, rng):
    """Return a copy with bits flipped, cut, overwritten, or with numbers such as sizes made large."""
    changed = bytearray(data)
    kind = rng.choice(("flip", "head", "cut", "overwrite", "size"))
    at = rng.randrange(124, len(data) - 8)
    if kind in ("flip", "head"):
        end = len(data) if kind == "flip" else 600
        for _ in range(rng.choice((1, 2, 8))):
            changed[rng.randrange(end)] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del changed[at:]
    elif kind == "overwrite":
        changed[at : at + 8] = rng.choice((b"\0", b"\xff")) * 8
    else:
        changed[at // 8 * 8 + 4 : at // 8 * 8 + 8] = rng.randbytes(4)
    return bytes(changed)


def error_of(file):
    """Return why a table can not be read, or nothing."""
    try:
        _read_class_table(file)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_table_is_a_table_or_one_sentence(tmp_path, compressed):
    file, whole = tmp_path / "meta.mat", mat(do_compression=compressed)
    errors = []
    for seed in range(400):
        file.write_bytes(damage(whole, random.Random(seed)))
        errors.append(error_of(file))
    said = list(filter(None, errors))
    assert 100 < len(said) < 400
    assert all(str(file) in text for text in said)
    assert all("unpack the devkit again" in text for text in said)
