"""Splitting a set that has no val: stratified, by group, by time, or in k folds. Labels in, rows out."""

import csv
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from imnet_pl.core.errors import UserError, require_choice, some_of
from imnet_pl.data.index import Codes, ImageIndex

SplitBy = Literal["stratified", "group", "time", "kfold"]
Rows = NDArray[np.int64]

_MAX_FOLDS = 50  # in which the share of val is counted when groups stay whole


@dataclass(frozen=True)
class SplitRule:
    """How a set is split.

    Args:
        by: ``stratified`` keeps the shares of classes, ``group`` also keeps groups whole, ``time`` takes the last
            part for val, ``kfold`` takes one of several folds (stratified; groups stay whole where they are known).
        val_frac: Share of val.
        num_folds: Folds of ``kfold``.
        fold: The one that is val, from 0.
        group: Regular expression on a picture's relative path whose first bracket (or whole match) is its
            group; None: the column ``group`` of a table.
        seed: Seed of the choice.
    """

    by: SplitBy
    val_frac: float = 0.2
    num_folds: int = 5
    fold: int = 0
    group: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice("data.split_by", self.by, get_args(SplitBy))
        if not 0 < self.val_frac < 1:
            raise UserError(f"data.val_frac={self.val_frac} must be between 0 and 1.")
        if self.num_folds < 2 or not 0 <= self.fold < self.num_folds:
            raise UserError(
                f"data.fold={self.fold} must be from 0 to below data.num_folds={self.num_folds}, which is 2 or more."
            )
        try:
            re.compile(self.group or "")
        except re.error as error:
            raise UserError(
                f"data.group={self.group!r} is no regular expression: {error}."
            ) from error


def split_index(index: ImageIndex, rule: SplitRule) -> tuple[Rows, Rows]:
    """Return the rows of train and of val, each in ascending order.

    The order of rows, which differs between file systems, has no influence.

    Raises:
        UserError: Groups or times are not known, or a class is left without a training picture.
    """
    paths = [index.relative_path(i) for i in range(len(index))]
    order = np.array(sorted(range(len(index)), key=paths.__getitem__), dtype=np.int64)
    labels = index.labels[order]
    if rule.by == "time":
        is_val = _last_part(index, rule)[order]
    else:
        codes = _group_codes(index, rule)
        groups = None if codes is None else codes[order]
        is_val = np.zeros(len(index), dtype=bool)
        is_val[_choose(labels, groups, rule)] = True
    train, val = np.sort(order[~is_val]), np.sort(order[is_val])
    _require_all_classes(index, train, val, rule)
    return train, val


def _choose(labels: Rows, groups: Rows | None, rule: SplitRule) -> Rows:
    """Return the positions of val, by scikit-learn's splitters."""
    from sklearn import model_selection as sk

    options = {"random_state": rule.seed}
    blank = np.zeros((len(labels), 0))
    try:
        with warnings.catch_warnings():
            # Of classes with fewer pictures than folds: what is left without any is an error below.
            warnings.simplefilter("ignore")
            if rule.by == "stratified":
                once = sk.StratifiedShuffleSplit(1, test_size=rule.val_frac, **options)
                [(_, chosen)] = once.split(blank, labels)
                return np.asarray(chosen, dtype=np.int64)
            num_folds, taken = rule.num_folds, [rule.fold]
            if rule.by == "group":
                assert groups is not None
                num_folds, count = _folds_of(rule.val_frac, len(np.unique(groups)))
                taken = list(range(count))
            kind = sk.StratifiedKFold if groups is None else sk.StratifiedGroupKFold
            splitter = kind(num_folds, shuffle=True, **options)
            folds = [test for _, test in splitter.split(blank, labels, groups)]
    except ValueError as error:
        raise UserError(
            f"data.split_by={rule.by!r} can not split {len(labels)} pictures of {len(np.unique(labels))} classes: "
            f"{error}."
        ) from error
    return np.concatenate([folds[fold] for fold in taken])


def _folds_of(val_frac: float, num_groups: int) -> tuple[int, int]:
    """Return into how many folds whole groups are dealt, and how many of those are val."""
    share = Fraction(val_frac).limit_denominator(max(2, min(_MAX_FOLDS, num_groups)))
    num_folds = share.denominator if 0 < share < 1 else min(_MAX_FOLDS, num_groups)
    return num_folds, min(max(1, round(val_frac * num_folds)), num_folds - 1)


def _group_codes(index: ImageIndex, rule: SplitRule) -> Rows | None:
    """Return the group of each row, one of its own where it has none; None where groups play no part.

    Raises:
        UserError: They are asked for and not known.
    """
    if rule.by == "stratified":
        return None
    column = groups_of(index, rule.group)
    if column is None:
        if rule.by == "kfold":
            return None
        raise UserError(
            "data.split_by='group' needs groups: a column group in the table, or data.group, a regular expression "
            "on the path such as '(patient[0-9]+)'."
        )
    alone = len(column.names) + np.arange(len(index))
    return np.where(column.codes >= 0, column.codes, alone)


def groups_of(index: ImageIndex, pattern: str | None) -> Codes | None:
    """Return the groups of pictures: by a regular expression on their paths, else the table's column.

    Raises:
        UserError: The expression does not match every path.
    """
    if pattern is None:
        return index.groups
    found = [re.search(pattern, index.relative_path(i)) for i in range(len(index))]
    if missed := [i for i, match in enumerate(found) if match is None]:
        raise UserError(
            f"data.group={pattern!r} matches {len(index) - len(missed)} of {len(index)} paths; it does not match "
            f"{some_of([index.relative_path(i) for i in missed], 2)}."
        )
    texts = [m.group((m.lastindex and 1) or 0) or "" for m in found if m is not None]
    return Codes.from_texts(texts)


def _last_part(index: ImageIndex, rule: SplitRule) -> NDArray[np.bool_]:
    """Return for each row whether it is val: the latest, and all of the same time with them."""
    times = index.times
    if times is None:
        raise UserError("data.split_by='time' needs a column time in the table.")
    if blank := int((times.codes < 0).sum()):
        raise UserError(
            f"data.split_by='time': {blank} of {len(index)} rows have no time; fill it in, or leave them out."
        )
    num_val = max(1, round(rule.val_frac * len(index)))
    first = np.sort(times.codes)[-num_val]
    if first == times.codes.min():
        raise UserError(
            f"data.split_by='time': no time lies before the last {rule.val_frac:.0%} of the pictures; "
            "a smaller data.val_frac may help."
        )
    is_val: NDArray[np.bool_] = times.codes >= first
    return is_val


def _require_all_classes(
    index: ImageIndex, train: Rows, val: Rows, rule: SplitRule
) -> None:
    counts = [
        np.bincount(index.labels[rows], minlength=len(index.classes))
        for rows in (train, val)
    ]
    bare = np.flatnonzero((counts[0] == 0) & (counts[1] > 0))
    if len(bare):
        names = [index.classes[i] for i in bare]
        raise UserError(
            f"data.split_by={rule.by!r} leaves {len(names)} classes without a training picture "
            f"({some_of(names)}); a smaller data.val_frac, another data.split_seed, or more groups of these "
            "classes help."
        )


def describe_split(
    index: ImageIndex, train: Rows, val: Rows, pattern: str | None
) -> str:
    """Return sizes, the largest deviation of a class's share, and groups in words."""
    shares = [
        np.bincount(index.labels[rows], minlength=len(index.classes)) / len(rows)
        for rows in (train, val)
    ]
    deviation = 100 * float(np.abs(shares[0] - shares[1]).max())
    text = (
        f"train {len(train)}, val {len(val)} ({100 * len(val) / len(index):.1f} %); a class's share differs by "
        f"{deviation:.2f} points at most"
    )
    if (column := groups_of(index, pattern)) is not None:
        in_train, in_val = (set(column.codes[rows].tolist()) for rows in (train, val))
        crossing = len((in_train & in_val) - {-1})
        text += f"; groups: {len(in_train)} and {len(in_val)}, {crossing} in both"
    return text


def crossing_groups(
    train: ImageIndex, val: ImageIndex, pattern: str | None
) -> list[str]:
    """Return the groups that are in both, sorted."""
    columns = [groups_of(index, pattern) for index in (train, val)]
    names = [
        {column.names[code] for code in np.unique(column.codes) if code >= 0}
        for column in columns
        if column is not None
    ]
    return sorted(names[0] & names[1]) if len(names) == 2 else []


def write_split(file: Path, parts: dict[str, ImageIndex], pattern: str | None) -> None:
    """Write a table that the source ``csv`` reads back: filename, label, group, time, split."""
    with file.open("w", newline="", encoding="utf-8", errors="surrogateescape") as out:
        writer = csv.writer(out)
        writer.writerow(["filename", "label", "group", "time", "split"])
        for split, index in parts.items():
            writer.writerows(_table_rows(split, index, pattern))


def _table_rows(
    split: str, index: ImageIndex, pattern: str | None
) -> Iterator[list[str]]:
    columns = [groups_of(index, pattern), index.times]
    for i, label in enumerate(index.labels.tolist()):
        cells = [
            "" if c is None or c.codes[i] < 0 else c.names[c.codes[i]] for c in columns
        ]
        yield [index.relative_path(i), index.classes[label], *cells, split]
