"""ImageNet-1K as Kaggle ships it.

root/                                 the folder that holds ILSVRC, or ILSVRC itself
  ILSVRC/Data/CLS-LOC/train/n01440764/*.JPEG
  ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000001.JPEG
  LOC_val_solution.csv                ImageId,PredictionString
  LOC_synset_mapping.txt              optional: wnid and human names of all classes
"""

import csv
from collections.abc import Sequence
from pathlib import Path

from imnet_pl.core.errors import UserError
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.sources import flat, official
from imnet_pl.data.sources.layout import Options

MAPPING = "LOC_synset_mapping.txt"
_HEADER = ["ImageId", "PredictionString"]
_BOX_CELLS = 5


def matches(root: Path, split: str) -> bool:
    """Tell whether there is Kaggle's tree without a devkit's labels, or a flat val with Kaggle's labels."""
    solution = official.find_beside(root, official.SOLUTION)
    if official.has_split(root, split):
        return solution is not None or not official.find_ground_truths(root)
    return solution is not None and official.has_flat_val(root, split)


def list_classes(root: Path, options: Options) -> list[str]:
    """Return the wnids of the training folders, else of the mapping, sorted.

    Raises:
        UserError: There is neither, or a training folder is not in the mapping.
    """
    mapping = official.find_beside(root, MAPPING)
    wnids = [] if mapping is None else _read_mapping(mapping)
    return official.list_classes(root, wnids, mapping)


def index_split(
    root: Path, split: str, classes: Sequence[str], options: Options
) -> ImageIndex:
    """Index class folders, or val through ``LOC_val_solution.csv``.

    Raises:
        UserError: The split is not there, has no labels, or does not fit the classes.
    """
    wnids, truth = (read_truth(root) if split == "val" else None) or (None, None)
    return official.index_split(root, split, classes, options, wnids, truth)


def read_truth(root: Path) -> tuple[dict[str, str], Path] | None:
    """Return picture name without suffix -> wnid, and the file; None where there is none."""
    truth = official.find_beside(root, official.SOLUTION)
    return None if truth is None else (_read_solution(truth), truth)


def _read_mapping(file: Path) -> list[str]:
    """Return the wnids; human names are no keys, since two classes may share one."""
    wnids = [line.split()[0] for line in official.read_lines(file) if line.strip()]
    if bad := [wnid for wnid in wnids if not flat.WNID.fullmatch(wnid)]:
        raise UserError(
            f"{str(file)!r} has a line that begins with {bad[0]!r}, where a wnid such as n01440764 is expected."
        )
    return wnids


def _read_solution(file: Path) -> dict[str, str]:
    """Return picture name without suffix -> wnid; a row gives a wnid and four numbers for each box."""
    wnids: dict[str, str] = {}
    rows = csv.reader(official.read_lines(file))
    for row in rows:
        if not row or row == _HEADER:
            continue
        boxes = row[1].split() if len(row) == len(_HEADER) else []
        classes = set(boxes[::_BOX_CELLS])
        if len(classes) != 1 or not flat.WNID.fullmatch(boxes[0]):
            raise UserError(
                f"{str(file)!r} line {rows.line_num} is {','.join(row)!r}, where a picture and the boxes of one "
                "class are expected, such as ILSVRC2012_val_00000001,n01751748 111 108 441 193."
            )
        if wnids.setdefault(row[0].strip(), boxes[0]) != boxes[0]:
            raise UserError(
                f"{str(file)!r} line {rows.line_num} gives {row[0]!r} another class than an earlier line; keep one."
            )
    return wnids
