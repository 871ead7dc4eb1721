"""Which pictures there are: the splits of a source, or those that are made from its training pictures."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from imnet_pl.core.errors import UserError, require_choice, some_of
from imnet_pl.data import index_cache
from imnet_pl.data.decode import MAX_PIXELS, DecodePolicy
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.sources import auto, digits
from imnet_pl.data.sources.class_list import read_classes
from imnet_pl.data.sources.layout import LabelFormat
from imnet_pl.data.sources.notices import say_once
from imnet_pl.data.splits import (
    SplitBy,
    SplitRule,
    crossing_groups,
    describe_split,
    split_index,
    write_split,
)

log = logging.getLogger(__name__)

MADE_SPLITS = ("train", "val")


class Catalog:
    """The classes of a data set, and the index of each split.

    Args:
        root: Folder of the data, or a table (CSV); the digits alone have a default, in the user's cache folder.
        source: Layout below ``root``; ``auto`` recognises it.
        image_root: Folder that the paths of a table are relative to; default: the table's own, or images/ in it.
        classes: Class names in label order, or a text file with one a line; default: those of train, sorted as text.
        label_format: How a label file or table gives labels: ``index0``, ``index1``, ``name`` or ``auto``.
        split_by: Split train into train and val: ``stratified``, ``group``, ``time`` or ``kfold``; default: the
            data's own val.
        val_frac: Share of val.
        num_folds: Folds of ``kfold``.
        fold: The one that is val, from 0.
        group: Regular expression on a picture's relative path that gives its group; default: a table's column group.
        split_seed: Seed of the split.
        allow_group_overlap: Take a given train and val although groups are in both.
        verify_crc: Compare the checksum of every picture that is read from packed data.
    """

    def __init__(
        self,
        root: str | None = None,
        source: auto.Source = "auto",
        image_root: str | None = None,
        classes: list[str] | str | None = None,
        label_format: LabelFormat = "auto",
        split_by: SplitBy | None = None,
        val_frac: float = 0.2,
        num_folds: int = 5,
        fold: int = 0,
        group: str | None = None,
        split_seed: int = 0,
        allow_group_overlap: bool = False,
        verify_crc: bool = False,
    ) -> None:
        require_choice("data.source", source, get_args(auto.Source))
        require_choice("data.label_format", label_format, get_args(LabelFormat))
        self._given_root, self.source, self.label_format = root, source, label_format
        self.image_root = None if image_root is None else Path(image_root).expanduser()
        self._given_classes = classes
        self._classes: tuple[str, ...] | None = None
        self.group, self.allow_group_overlap = group, allow_group_overlap
        self.verify_crc = verify_crc
        rule = SplitRule(
            split_by or "stratified", val_frac, num_folds, fold, group, split_seed
        )
        self.rule = None if split_by is None else rule
        self._made: dict[str, ImageIndex] = {}

    @property
    def root(self) -> Path:
        """Folder of the data, or its table.

        Raises:
            UserError: It was not given.
        """
        if self._given_root is not None:
            return Path(self._given_root).expanduser()
        if self.source == "digits":
            return digits.default_root()
        raise UserError(
            "data.root is missing: say where the pictures lie with --data.root DIR."
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order: from ``classes``, else from the training pictures."""
        if self._classes is None:
            self._classes = tuple(self._find_classes())
        return self._classes

    def _find_classes(self) -> Sequence[str]:
        if self._given_classes is not None:
            return read_classes(self._given_classes)
        return index_cache.train_classes(
            self.root, self.source, self.label_format, self.rule is not None
        )

    @property
    def num_classes(self) -> int:
        """Number of classes.

        Raises:
            UserError: There are fewer than two.
        """
        if len(self.classes) < 2:
            raise UserError(
                f"data.root={str(self.root)!r} or data.classes gives {len(self.classes)} class "
                f"({some_of(self.classes)}); a classifier needs two at least."
            )
        return len(self.classes)

    def ensure(self) -> None:
        """Make what a source makes itself (the digits)."""
        auto.ensure_source(self.root, self.source)

    def has_split(self, split: str) -> bool:
        """Tell whether there are pictures of a split."""
        if self.rule is not None and split in MADE_SPLITS:
            return True
        return auto.has_split(self.root, split, self.source)

    def index(self, split: str) -> ImageIndex:
        """Return the index of ``train``, ``val`` or ``test``.

        Raises:
            UserError: The pictures are not there, do not fit the classes, or can not be split.
        """
        if self.rule is None or split not in MADE_SPLITS:
            return self._index_source(split)
        if not self._made:
            self._split()
        return self._made[split]

    def _index_source(self, split: str) -> ImageIndex:
        index = index_cache.index_split(
            self.root,
            split,
            self.classes,
            source=self.source,
            label_format=self.label_format,
            image_root=self.image_root,
            classes_given=self._given_classes is not None,
            is_unsplit=self.rule is not None,
        )
        if index.members is not None and index.members.crc.any():
            index.members.verify_crc = self.verify_crc
        elif self.verify_crc:
            say_once("data.verify_crc=True is ignored: only packed data has checksums.")
        return index

    def split_with(self, rule: SplitRule) -> None:
        """Split train by a rule, in place of the one that was given."""
        self.rule, self.group, self._made = rule, rule.group, {}

    def _split(self) -> None:
        assert self.rule is not None
        # A table may have rows of val or not; a folder says by its name.
        if self.root.is_dir() and auto.has_split(self.root, "val", self.source):
            log.warning(
                "data.split_by=%r splits train; the data's own val is not used.",
                self.rule.by,
            )
        whole = self._index_source("train")
        rows = split_index(whole, self.rule)
        log.info("split: %s.", describe_split(whole, *rows, self.group))
        for split, part in zip(MADE_SPLITS, rows, strict=True):
            self._made[split] = index_cache.keep_part(whole.take(part), whole)

    def require_groups_apart(self, train: ImageIndex, val: ImageIndex) -> None:
        """Raise where a group of pictures, such as a patient, is in train and in val.

        Raises:
            UserError: Some are, and it was not allowed.
        """
        if self.allow_group_overlap or self.rule is not None:
            return
        if crossing := crossing_groups(train, val, self.group):
            raise UserError(
                f"{len(crossing)} groups are in train and in val ({some_of(crossing)}), which makes the score too "
                "good; split by group with --data.split_by group, or --data.allow_group_overlap true."
            )

    def write_made_split(self, file: Path) -> bool:
        """Write the split that was made as a table, and tell whether there is one."""
        if self._made:
            write_split(file, self._made, self.group)
        return bool(self._made)


class DecodedCatalog(Catalog):
    """A data set, and how its pictures are decoded.

    Args:
        alpha_background: RGB colour behind what is transparent in a picture, 0 to 255 each.
        exif_orientation: Turn pictures as their EXIF says.
        max_pixels: Larger pictures are not read, but for baseline JPEGs, decoded at 1/2, 1/4 or 1/8.
        **catalog: Which pictures there are.
    """

    def __init__(
        self,
        alpha_background: tuple[int, int, int] = (255, 255, 255),
        exif_orientation: bool = False,
        max_pixels: int = MAX_PIXELS,
        **catalog: Any,
    ) -> None:
        super().__init__(**catalog)
        self.policy = DecodePolicy(alpha_background, exif_orientation, max_pixels)
