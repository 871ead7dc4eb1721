"""Which layout lies below a root, and its index: the one table of sources."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from imnet_pl.core.errors import UserError
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.shards import is_shard_set
from imnet_pl.data.sources import (
    archives,
    csv_table,
    devkit,
    digits,
    flat_val,
    folder,
    kaggle,
    labels,
    official,
    official_tars,
    scan,
    shards,
    trace,
)
from imnet_pl.data.sources.layout import LabelFormat, Layout, Options
from imnet_pl.data.sources.notices import say_once

Source = Literal[
    "auto",
    "folder",
    "flat_val",
    "kaggle",
    "devkit",
    "official_tars",
    "csv",
    "shards",
    "digits",
]
LAYOUTS: dict[str, Layout] = {
    "folder": folder,
    "flat_val": flat_val,
    "kaggle": kaggle,
    "devkit": devkit,
    "official_tars": official_tars,
    "csv": csv_table,
    "shards": shards,
}
_SOURCES: dict[str, Layout] = {**LAYOUTS, "digits": digits}


def draw_layouts() -> str:
    """Return the accepted layouts as a drawing."""
    docs = [
        f"{name}: {(module.__doc__ or '').strip()}" for name, module in LAYOUTS.items()
    ]
    return "\n\n".join(doc.replace("::\n\n", "", 1) for doc in docs)


def require_root(root: Path) -> None:
    """Raise a UserError that draws the layouts if the root is neither a folder nor a table.

    Raises:
        UserError: The root is absent or another file.
    """
    if root.is_dir() or (root.is_file() and csv_table.is_table(root)):
        return
    archives.require_unpacked(root, "train", is_there=False)
    what = (
        "is not a folder or a table (.csv, .tsv)" if root.exists() else "does not exist"
    )
    raise UserError(
        f"data.root={str(root)!r} {what}; say where the pictures lie with --data.root DIR, in one of "
        f"these layouts.\n\n{draw_layouts()}"
    )


def train_classes(
    root: Path,
    source: Source = "auto",
    label_format: LabelFormat = "auto",
    is_unsplit: bool = False,
) -> list[str]:
    """Return the class names that the training pictures give, in label order: sorted as text.

    Args:
        root: Data root.
        source: A layout, or ``auto``.
        label_format: See ``layout.Options``.
        is_unsplit: Class folders may lie in ``root`` itself.

    Raises:
        UserError: There are no training pictures in an accepted layout.
    """
    if is_unsplit and _is_unsplit(root, source):
        classes = folder.list_class_folders(root)
        labels.say_integer_order(classes)
        return classes
    layout = _layout(root, "train", source)
    classes = layout.list_classes(root, Options(label_format))
    labels.say_integer_order(classes)
    return classes


def detect_layout(root: Path, split: str) -> str:
    """Return the layout in which a split lies below ``root``: a key of ``LAYOUTS``.

    Raises:
        UserError: No layout matches, or two.
    """
    require_root(root)
    found = [name for name, layout in LAYOUTS.items() if layout.matches(root, split)]
    if not found and is_shard_set(root):
        return "shards"  # which says what it has
    archives.require_unpacked(root, split, is_there=bool(found))
    if len(found) == 1:
        return found[0]
    where = official.split_folder(root, split)
    if not found:
        lacks = (
            ""
            if where.exists()
            else f" has no folder {split!r}, {scan.describe_folder(root)};"
        )
        raise UserError(
            f"data.root={str(root)!r}{lacks or ':'} no pictures of split {split!r} were found: {str(where)!r} "
            f"{scan.describe_folder(where).removeprefix('which ')}. Looked for:\n\n{draw_layouts()}"
        )
    raise UserError(
        f"data.root: {str(where)!r}, {scan.describe_folder(where)}, can be read as {' and as '.join(found)}; "
        "say which with data.source, or move the other pictures away."
    )


def has_split(root: Path, split: str, source: Source = "auto") -> bool:
    """Tell whether there are labelled pictures of a split, or at least a folder for them."""
    if root.is_file():
        return csv_table.has_rows(root, split)
    layouts = LAYOUTS.values() if source == "auto" else [_SOURCES[source]]
    if any(layout.matches(root, split) for layout in layouts):
        return True
    return (root / split).is_dir() and not official.has_labels(root)


def index_split(
    root: Path,
    split: str,
    classes: Sequence[str],
    source: Source = "auto",
    label_format: LabelFormat = "auto",
    image_root: Path | None = None,
    classes_given: bool = False,
    is_unsplit: bool = False,
) -> ImageIndex:
    """Index one split.

    Args:
        root: Data root.
        split: ``train``, ``val`` or ``test``.
        classes: Class names in label order.
        source: A layout, or ``auto``.
        label_format: See ``layout.Options``, as for the rest.
        image_root: Folder that the paths of a table are relative to.
        classes_given: The classes do not come from the training pictures.
        is_unsplit: Class folders of ``train`` may lie in ``root`` itself.

    Raises:
        UserError: The split does not lie there in that layout.
    """
    trace.look_at(root, root / split)
    if is_unsplit and split == "train" and _is_unsplit(root, source):
        options = Options(classes_given=classes_given)
        return folder.index_class_folders(root, root, split, classes, options)
    layout = _layout(root, split, source)
    if image_root is not None and layout is not csv_table:
        say_once(
            f"data.image_root={str(image_root)!r} is ignored: it is for tables (data.source csv)."
        )
    options = Options(label_format, image_root, classes_given)
    return layout.index_split(root, split, classes, options)


def _is_unsplit(root: Path, source: Source) -> bool:
    """Tell whether a root has class folders and no folder of a split."""
    if source not in ("auto", "folder") or not root.is_dir():
        return False
    names = {name.lower() for name in scan.list_folders(root)}
    return not names & {"train", "val", "ilsvrc"} and folder.has_class_folders(root)


def _layout(root: Path, split: str, source: Source) -> Layout:
    if source == "auto":
        return LAYOUTS[detect_layout(root, split)]
    if source != "digits":  # they are written later
        require_root(root)
    if source not in ("csv", "digits") and not root.is_dir():
        raise UserError(
            f"data.root={str(root)!r} is a table, but data.source={source!r}; give its folder, or data.source csv."
        )
    return _SOURCES[source]


def ensure_source(root: Path, source: str) -> None:
    """Make what a source makes itself (the digits)."""
    if source == "digits":
        digits.ensure_digits(root)
