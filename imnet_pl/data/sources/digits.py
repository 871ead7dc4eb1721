"""scikit-learn's 1,797 handwritten digits, written once as JPEGs in the layout of ImageNet.

root/
  train/digit_0/digits_train_0000.JPEG     1,437 pictures of 32 x 32 px, 10 classes
  val/digits_val_0000.JPEG                   360 pictures, flat
  val/val_label.txt
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from imnet_pl.core.errors import UserError
from imnet_pl.core.files import cache_dir, create_dir_atomically
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.sources import flat_val, scan
from imnet_pl.data.sources.layout import Options

CLASSES = tuple(f"digit_{i}" for i in range(10))
SIDE_PX = 32
VAL_FRAC = 0.2
_MARKER = "digits.txt"


def default_root() -> Path:
    """Return where the digits lie when no root is given."""
    return cache_dir() / "digits"


def matches(root: Path, split: str) -> bool:
    """Say no: once written, the digits are like any flat val."""
    return False


def list_classes(root: Path, options: Options) -> list[str]:
    """Return the ten classes, whether the digits are written yet or not."""
    return list(CLASSES)


def index_split(
    root: Path, split: str, classes: Sequence[str], options: Options
) -> ImageIndex:
    """Index class folders and the flat val that were written.

    Raises:
        UserError: Somebody changed them.
    """
    return flat_val.index_split(root, split, classes, options)


def ensure_digits(root: Path) -> None:
    """Write the digits below ``root`` unless they are there.

    Raises:
        UserError: ``root`` holds something else.
    """
    if (root / _MARKER).is_file():
        return
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UserError(
            f"data.root={str(root)!r} is to hold the digits (data.source='digits') but is something else, "
            f"{scan.describe_folder(root)}; give an empty or new folder."
        )
    create_dir_atomically(root, _write_digits)


def _write_digits(root: Path) -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    train, val = train_test_split(
        np.arange(len(digits.target)),
        test_size=VAL_FRAC,
        stratify=digits.target,
        random_state=0,
    )
    for name in CLASSES:
        (root / "train" / name).mkdir(parents=True)
    (root / "val").mkdir()
    for i in sorted(train.tolist()):
        folder = root / "train" / CLASSES[digits.target[i]]
        _write_jpeg(digits.images[i], folder / f"digits_train_{i:04d}.JPEG")
    lines = []
    for i in sorted(val.tolist()):
        _write_jpeg(digits.images[i], root / "val" / f"digits_val_{i:04d}.JPEG")
        lines.append(f"digits_val_{i:04d}.JPEG {digits.target[i]}\n")
    (root / "val" / "val_label.txt").write_text("".join(lines), encoding="utf-8")
    (root / _MARKER).write_text(
        "Optical recognition of handwritten digits (UCI), from scikit-learn.\n",
        encoding="utf-8",
    )


def _write_jpeg(image: np.ndarray, path: Path) -> None:
    """Write an 8 x 8 picture with values 0-16 as a 32 x 32 grey JPEG."""
    grey = Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8))
    grey.resize((SIDE_PX, SIDE_PX), Image.Resampling.BICUBIC).save(
        path, "JPEG", quality=95
    )
