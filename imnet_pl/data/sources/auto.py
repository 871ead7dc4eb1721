"""Which layout lies below a root, and its index: the one table of sources."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from imnet_pl.core.errors import UserError
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.sources import digits, flat_val, folder, scan

Source = Literal["auto", "folder", "flat_val", "digits"]
LAYOUTS = {"folder": folder, "flat_val": flat_val}


def draw_layouts() -> str:
    """Return the accepted layouts as a drawing."""
    docs = [(module.__doc__ or "").strip() for module in LAYOUTS.values()]
    return "\n\n".join(doc.replace("::\n\n", "", 1) for doc in docs)


def require_root(root: Path) -> None:
    """Raise a UserError that draws the layouts if the root is not a folder.

    Raises:
        UserError: The root is absent or a file.
    """
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise UserError(
            f"data.root={str(root)!r} {what}; say where the pictures lie with --data.root DIR, in one of "
            f"these layouts.\n\n{draw_layouts()}"
        )


def train_classes(root: Path) -> list[str]:
    """Return the class names that the training folder gives, in label order.

    Raises:
        UserError: There is no training folder with class folders.
    """
    require_root(root)
    if not (root / "train").is_dir():
        raise UserError(
            f"data.root={str(root)!r} has no folder 'train', {scan.describe_folder(root)}. Accepted "
            f"layouts:\n\n{draw_layouts()}"
        )
    return folder.list_classes(root / "train")


def detect_layout(root: Path, split: str) -> str:
    """Return the layout in which a split lies below ``root``: a key of ``LAYOUTS``.

    Raises:
        UserError: No layout matches, or two.
    """
    require_root(root)
    if split == "train":
        return "folder"
    found = [name for name, matches in _matches(root, split).items() if matches]
    if len(found) == 1:
        return found[0]
    where = root / split
    if not found:
        raise UserError(
            f"data.root: no pictures of split {split!r} in {str(where)!r}, {scan.describe_folder(where)}. "
            f"Accepted layouts:\n\n{draw_layouts()}"
        )
    raise UserError(
        f"data.root: {str(where)!r}, {scan.describe_folder(where)}, can be read as {' and as '.join(found)}; "
        "say which with data.source, or move the other pictures away."
    )


def _matches(root: Path, split: str) -> dict[str, bool]:
    where = root / split
    if not where.is_dir():
        return dict.fromkeys(LAYOUTS, False)
    flat = flat_val.picture_folder(root, split)
    labelled = bool(flat_val.find_label_files(root, split))
    folders = [
        name for name in scan.list_folders(where) if not (labelled and name == "images")
    ]
    has_class_folders = any(scan.walk_pictures(where / name) for name in folders)
    return {
        "folder": has_class_folders,
        "flat_val": flat == where or (flat is not None and labelled),
    }


def index_split(
    root: Path,
    split: str,
    classes: Sequence[str],
    source: Source = "auto",
    label_format: flat_val.LabelFormat = "auto",
) -> ImageIndex:
    """Index one split.

    Args:
        root: Data root.
        split: ``train``, ``val`` or ``test``.
        classes: Class names in label order.
        source: A layout, or ``auto``.
        label_format: See ``flat_val.index_flat_val``.

    Raises:
        UserError: The split does not lie there in that layout.
    """
    require_root(root)
    layout: str = "flat_val" if source == "digits" else source
    if split == "train":
        layout = "folder"
    elif layout == "auto":
        layout = detect_layout(root, split)
    if layout == "flat_val":
        return flat_val.index_flat_val(root, split, classes, label_format)
    return folder.index_folder(root, split, classes)


def ensure_source(root: Path, source: str) -> None:
    """Make what a source makes itself (the digits)."""
    if source == "digits":
        digits.ensure_digits(root)
