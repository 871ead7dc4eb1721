"""The verb split: divide a set into train and val, and write the division as a table."""

import sys
from pathlib import Path

from imnet_pl.core.errors import UserError
from imnet_pl.data.catalog import Catalog
from imnet_pl.data.splits import SplitBy, SplitRule


def run_split(
    data: Catalog,
    by: SplitBy = "stratified",
    val_frac: float = 0.2,
    num_folds: int = 5,
    fold: int = 0,
    group: str | None = None,
    seed: int = 0,
    to: str = "split.csv",
) -> int:
    """Write the table, print what it holds, and return the exit status.

    Args:
        data: The set.
        by: Keep class shares (``stratified``), also keep groups whole (``group``), take the last part (``time``),
            or take a fold (``kfold``).
        val_frac: Share of val.
        num_folds: Folds of ``kfold``.
        fold: The one that is val, from 0.
        group: Regular expression on a picture's relative path that gives its group; default: a table's column group.
        seed: Seed of the split.
        to: The CSV file to write.

    Raises:
        UserError: The set can not be split as asked, or the table can not be written.
    """
    data.split_with(SplitRule(by, val_frac, num_folds, fold, group, seed))
    train = data.index("train")
    file = Path(to)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        data.write_made_split(file)
    except OSError as error:
        raise UserError(
            f"--to={to!r} can not be written ({error}); choose another file."
        ) from error
    pictures = Path(train.root).absolute()
    beside = (
        "" if pictures == file.absolute().parent else f" --data.image_root {pictures}"
    )
    sys.stdout.write(
        f"{file} is written; to train on it: python cli.py fit --data.root {file}{beside}\n"
    )
    return 0
