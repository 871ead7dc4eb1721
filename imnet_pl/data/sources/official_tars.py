"""ImageNet-1K as image-net.org ships it, not unpacked.

root/
  ILSVRC2012_img_train.tar            a tar of a tar of each class
  ILSVRC2012_img_val.tar              its labels from one of:
  ILSVRC2012_devkit_t12.tar.gz        the devkit, packed or unpacked
  LOC_val_solution.csv                or Kaggle's table, or any .csv with filename,wnid
"""

import io
import logging
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.index import ImageIndex, PathColumn
from imnet_pl.data.members import Members
from imnet_pl.data.sources import csv_table, devkit, flat, kaggle, official, scan, trace
from imnet_pl.data.sources.layout import Options
from imnet_pl.data.sources.notices import say_once

_TARS = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}
_KIT = "ILSVRC2012_devkit_t12.tar.gz"
_KIT_FILES = ("ILSVRC2012_validation_ground_truth.txt", "meta.mat")
_LOOKED_AT_BYTES = 1 << 20


class _Member(NamedTuple):
    name: str
    offset: int
    length: int


def matches(root: Path, split: str) -> bool:
    """Tell whether the tar of a split is there, and no folder of it."""
    if split not in _TARS or not (root / _TARS[split]).is_file():
        return False
    return not official.split_folder(root, split).is_dir()


def list_classes(root: Path, options: Options) -> list[str]:
    """Return the wnids of the inner tars, sorted.

    Raises:
        UserError: The tar is damaged or another one.
    """
    with _the_tar(root, "train").open("rb") as content:
        return sorted(_class_tars(content))


def index_split(
    root: Path, split: str, classes: Sequence[str], options: Options
) -> ImageIndex:
    """Index the pictures by their places in the tar.

    Raises:
        UserError: The tar is damaged or another one, or its pictures do not fit the classes or labels.
    """
    tar = _the_tar(root, split)
    trace.look_at(tar)
    with tar.open("rb") as content:
        if split == "train":
            return _index_train(root, content, classes)
        return _index_val(root, content, classes)


def _the_tar(root: Path, split: str) -> Path:
    tar = root / _TARS.get(split, "")
    if not tar.is_file():
        raise UserError(f"data.root={str(root)!r} has no {_TARS.get(split, split)}.")
    return tar


def _index_train(
    root: Path, content: io.BufferedReader, classes: Sequence[str]
) -> ImageIndex:
    tars = _class_tars(content)
    if unknown := sorted(set(tars) - set(classes)):
        raise UserError(
            f"data.root: {content.name!r} has {len(unknown)} classes that are not among the {len(classes)} classes: "
            f"{some_of(unknown)}. List every class in data.classes."
        )
    members: list[_Member] = []
    counts = []
    for wnid in classes:
        found = []
        if wnid in tars:
            part = _Part(content, tars[wnid].offset, tars[wnid].length)
            found = _pictures(part, f"{wnid}.tar in {content.name}")
        members += (m._replace(name=f"train/{wnid}/{m.name}") for m in found)
        counts.append(len(found))
        trace.count_pictures(len(found))
    labels = np.repeat(np.arange(len(classes)), counts)
    flat.say_lacking("train", labels.tolist(), classes)
    return _index_members(root, "train", members, labels.tolist(), classes)


def _index_val(
    root: Path, content: io.BufferedReader, classes: Sequence[str]
) -> ImageIndex:
    part = _Part(content, 0, Path(content.name).stat().st_size)
    members = _pictures(part, content.name)
    wnids, truth = _read_truth(root)
    stems = [Path(member.name).stem for member in members]
    unlabelled = [stem for stem in stems if stem not in wnids]
    flat.require_rows(truth, [member.name for member in members], unlabelled)
    class_to_idx = {name: label for label, name in enumerate(classes)}
    known = [(m, wnids[s]) for m, s in zip(members, stems, strict=True)]
    if unknown := sorted({wnid for _, wnid in known} - class_to_idx.keys()):
        raise UserError(
            f"data.root: {content.name!r} has pictures of {len(unknown)} classes that are not among the "
            f"{len(classes)} classes: {some_of(unknown)}. List every class in data.classes."
        )
    labels = [class_to_idx[wnid] for _, wnid in known]
    flat.say_lacking("val", labels, classes)
    named = [member._replace(name=f"val/{member.name}") for member in members]
    return _index_members(root, "val", named, labels, classes)


def _index_members(
    root: Path,
    split: str,
    members: Sequence[_Member],
    labels: Sequence[int],
    classes: Sequence[str],
) -> ImageIndex:
    paths = PathColumn()
    paths.extend([member.name for member in members])
    unknown = np.zeros(len(members), dtype=np.int32)
    places = Members(
        shards=(_TARS[split],),
        shard=unknown,
        offset=np.array([member.offset for member in members], dtype=np.int64),
        length=np.array([member.length for member in members], dtype=np.int32),
        width=unknown,
        height=unknown,
        crc=unknown.astype(np.uint32),
    )
    path_bytes, path_ends = paths.arrays()
    return ImageIndex(
        root=str(root),
        path_bytes=path_bytes,
        path_ends=path_ends,
        labels=np.asarray(labels, dtype=np.int64),
        classes=tuple(classes),
        members=places,
    )


def _class_tars(content: io.BufferedReader) -> dict[str, _Member]:
    """Return wnid -> its tar within that of train."""
    size = Path(content.name).stat().st_size
    tars: dict[str, _Member] = {}
    for member in _list_members(_Part(content, 0, size), content.name):
        wnid, dot, suffix = member.name.rpartition("/")[2].rpartition(".")
        if not (flat.WNID.fullmatch(wnid) and dot + suffix == ".tar"):
            raise UserError(
                f"{content.name!r} holds {member.name!r}, where a tar of each class is expected, such as "
                "n01440764.tar; download ILSVRC2012_img_train.tar again."
            )
        tars[wnid] = member
    return tars


def _pictures(part: "_Part", what: str) -> list[_Member]:
    """Return the pictures of a tar by name."""
    named = [
        member._replace(name=member.name.removeprefix("./").rpartition("/")[2])
        for member in _list_members(part, what)
        if scan.has_image_suffix(member.name)
    ]
    return sorted(named)


class _Part(io.RawIOBase):
    """A part of a file as a file of its own.

    Args:
        content: The file.
        start: Where the part begins.
        length: Its bytes.
    """

    def __init__(self, content: io.BufferedReader, start: int, length: int) -> None:
        self.content, self.start, self.length = content, start, length
        self.at = 0

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, or those that are left."""
        left = max(0, self.length - self.at)
        self.content.seek(self.start + self.at)
        data = self.content.read(left if size < 0 else min(size, left))
        self.at += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte."""
        assert whence == io.SEEK_SET
        self.at = offset
        return offset

    def tell(self) -> int:
        """Return where the next read begins."""
        return self.at


def _list_members(part: _Part, what: str) -> Iterator[_Member]:
    """Yield the files of a tar, with their places in the whole file.

    Raises:
        UserError: It ends early, or goes on after its end.
    """
    try:
        with tarfile.open(fileobj=part, mode="r:") as tar:
            for member in tar:
                if member.isfile():
                    place = part.start + member.offset_data
                    yield _Member(member.name, place, member.size)
            end = tar.offset
    except tarfile.TarError as error:
        raise UserError(
            f"{what} is damaged or ends early ({error}); download it again."
        ) from None
    _require_end(part, end, what)


def _require_end(part: _Part, end: int, what: str) -> None:
    """Raise unless a tar ends with zeros.

    Raises:
        UserError: It has no end, or something after it.
    """
    part.seek(end)
    if part.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise UserError(
            f"{what} ends early or is damaged at byte {end:,}; download it again."
        )
    while block := part.read(_LOOKED_AT_BYTES):
        if any(block):
            raise UserError(
                f"{what} goes on after its end at byte {end:,}, as when something was appended to it; what follows "
                "would not be seen. Download it again, or cut it there."
            )


def _read_truth(root: Path) -> tuple[dict[str, str], Path]:
    """Return picture name without suffix -> wnid, and the file that says so.

    Raises:
        UserError: There is none.
    """
    if found := kaggle.read_truth(root) or devkit.read_truth(root):
        return found
    if (root / _KIT).is_file():
        return _read_packed_kit(root / _KIT)
    trace.look_at(root)
    for file in sorted(root.glob("*.csv")):
        try:
            labels = csv_table.read_labels(file)
        except UserError:  # a table of something else
            continue
        say_once(f"the labels of val are those of {str(file)!r}.", logging.INFO)
        return {Path(name).stem: wnid for name, wnid in labels.items()}, file
    raise UserError(
        f"data.root={str(root)!r} has {_TARS['val']}, but not its labels; put {_KIT}, {official.SOLUTION} of Kaggle, or a "
        ".csv with the columns filename and wnid beside it."
    )


def _read_packed_kit(file: Path) -> tuple[dict[str, str], Path]:
    """Return the labels of the devkit's archive, of which two small files are unpacked."""
    trace.look_at(file)
    with tempfile.TemporaryDirectory() as folder:
        try:
            with tarfile.open(file) as kit:
                for member in kit:
                    name = Path(member.name).name
                    if name in _KIT_FILES and (content := kit.extractfile(member)):
                        (Path(folder) / name).write_bytes(content.read())
        except (tarfile.TarError, EOFError, OSError) as error:
            raise UserError(
                f"{str(file)!r} is damaged ({error}); download it again."
            ) from None
        found = devkit.read_truth(Path(folder))
    if found is None:
        raise UserError(f"{str(file)!r} holds no {_KIT_FILES[0]}; download it again.")
    return found[0], file
