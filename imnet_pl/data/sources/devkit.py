"""ImageNet-1K with the official devkit unpacked beside it.

root/
  train/n01440764/*.JPEG              or ILSVRC/Data/CLS-LOC/{train,val}, or ILSVRC2012_img_{train,val}
  val/ILSVRC2012_val_00000001.JPEG
  ILSVRC2012_devkit_t12/data/{ILSVRC2012_validation_ground_truth.txt, meta.mat}
  devkit/data/{ILSVRC2015_clsloc_validation_ground_truth.txt, map_clsloc.txt}    instead, 2014 to 2017
"""

from collections.abc import Sequence
from pathlib import Path

from imnet_pl.core.errors import UserError
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.sources import flat, official, trace
from imnet_pl.data.sources.layout import Options
from imnet_pl.data.sources.mat_file import read_structs

_MAP = "map_clsloc.txt"
_MATS = ("meta.mat", "meta_clsloc.mat")


def matches(root: Path, split: str) -> bool:
    """Tell whether there is a ground truth, and ImageNet's own tree or a flat val."""
    if not official.find_ground_truths(root):
        return False
    return official.has_split(root, split) or official.has_flat_val(root, split)


def list_classes(root: Path, options: Options) -> list[str]:
    """Return the wnids of the training folders, else of the devkit, sorted.

    Raises:
        UserError: There is neither, or a training folder is not in the devkit.
    """
    truth = _the_ground_truth(root)
    if truth is None:
        return official.list_classes(root, [], None)
    table = _the_class_table(truth)
    return official.list_classes(root, list(_read_class_table(table).values()), table)


def index_split(
    root: Path, split: str, classes: Sequence[str], options: Options
) -> ImageIndex:
    """Index class folders, or val through the ground truth.

    Raises:
        UserError: The split is not there, has no labels, or does not fit the classes.
    """
    wnids, truth = (read_truth(root) if split == "val" else None) or (None, None)
    return official.index_split(root, split, classes, options, wnids, truth)


def read_truth(root: Path) -> tuple[dict[str, str], Path] | None:
    """Return picture name without suffix -> wnid, and the file; None where there is none."""
    truth = _the_ground_truth(root)
    return None if truth is None else (_read_ground_truth(truth), truth)


def _the_ground_truth(root: Path) -> Path | None:
    found = official.find_ground_truths(root)
    if len(found) > 1:
        raise UserError(
            f"data.root: there are {len(found)} ground truths, {', '.join(map(str, found))}; keep one devkit."
        )
    return found[0] if found else None


def _the_class_table(truth: Path) -> Path:
    """Return the table beside a ground truth that says which class an id of the devkit is."""
    for name in (_MAP, *_MATS):
        if (truth.parent / name).is_file():
            return truth.parent / name
    raise UserError(
        f"data.root: {str(truth)!r} gives ids of the devkit, which are not in the order of wnids, and the table "
        f"that says which classes they are is missing: put {_MAP} or {' or '.join(_MATS)} of the devkit beside it."
    )


def _read_ground_truth(truth: Path) -> dict[str, str]:
    """Return picture name without suffix -> wnid; line i has the id of picture i."""
    table = _the_class_table(truth)
    wnid_of = _read_class_table(table)
    wnids: dict[str, str] = {}
    for number, line in enumerate(official.read_lines(truth), start=1):
        if line.strip() not in wnid_of:
            raise UserError(
                f"{str(truth)!r} line {number} is {line!r}, which is no id of {table.name}; unpack the devkit again."
            )
        wnids[f"ILSVRC2012_val_{number:08d}"] = wnid_of[line.strip()]
    return wnids


def _read_class_table(table: Path) -> dict[str, str]:
    """Return id of the devkit as text -> wnid."""
    rows = _read_mat(table) if table.suffix == ".mat" else _read_map(table)
    wnid_of = {str(number): wnid for number, wnid in rows}
    is_right = all(flat.WNID.fullmatch(wnid) for wnid in wnid_of.values())
    if not rows or not is_right or len(set(wnid_of.values())) < len(rows):
        raise UserError(
            f"{str(table)!r} does not give each class one id and one wnid; unpack the devkit again."
        )
    return wnid_of


def _read_map(file: Path) -> list[tuple[int, str]]:
    """Return (id, wnid) of each line, such as ``n02119789 1 kit_fox``."""
    rows = []
    for line in official.read_lines(file):
        cells = line.split()
        if not cells:
            continue
        if len(cells) < 2 or not cells[1].isdecimal():
            raise UserError(
                f"{str(file)!r} has the line {line!r}, where a wnid and an id are expected, such as "
                "n02119789 1 kit_fox."
            )
        rows.append((int(cells[1]), cells[0]))
    return rows


def _is_needed(field: str) -> bool:
    return field in ("WNID", "num_children") or field.endswith("_ID")


def _read_mat(file: Path) -> list[tuple[int, str]]:
    """Return (id, wnid) of each class: the synsets of MATLAB's table that have no children."""
    trace.look_at(file)
    try:
        synsets = read_structs(file.read_bytes(), "synsets", _is_needed)
        rows = []
        for synset in synsets:
            (id_field,) = (name for name in synset if name.endswith("_ID"))
            if int(synset["num_children"]) == 0:
                rows.append((int(synset[id_field]), str(synset["WNID"])))
        return rows
    except (ValueError, LookupError, OverflowError, OSError) as error:
        raise UserError(
            f"{str(file)!r} is not the devkit's table of classes ({error}); unpack the devkit again."
        ) from None
