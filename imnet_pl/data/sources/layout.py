"""What a module of a layout offers: the protocol behind the table in auto.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from imnet_pl.data.index import ImageIndex

LabelFormat = Literal["auto", "index0", "index1", "name"]


@dataclass(frozen=True)
class Options:
    """Arguments of the data module that a layout may need.

    Args:
        label_format: How label files and tables write a class: by name, or as an index.
        image_root: Folder of the pictures that a table names; None: the table's own.
        classes_given: The classes come from the user or a checkpoint, not from the training pictures.
    """

    label_format: LabelFormat = "auto"
    image_root: Path | None = None
    classes_given: bool = False


class Layout(Protocol):
    """A layout on disk. Its docstring is the drawing that errors show."""

    def matches(self, root: Path, split: str) -> bool:
        """Tell whether a split lies below ``root`` in this layout."""

    def list_classes(self, root: Path, options: Options) -> list[str]:
        """Return the class names that the training pictures give, in label order.

        Raises:
            UserError: They give none.
        """

    def index_split(
        self, root: Path, split: str, classes: Sequence[str], options: Options
    ) -> ImageIndex:
        """Index a split; the labels are positions in ``classes``.

        Raises:
            UserError: The split is not there, or does not fit the classes.
        """
