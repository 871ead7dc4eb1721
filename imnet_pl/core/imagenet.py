"""The 1,000 classes of ImageNet-1K: wnid and human name."""

from functools import lru_cache
from importlib import resources


@lru_cache(maxsize=1)
def human_names() -> dict[str, str]:
    """Return wnid -> human name, in class-index order (the sorted order of wnids).

    The names are those that torchvision gives with its weights.
    """
    table = resources.files("imnet_pl.core").joinpath("imagenet.tsv")
    rows = table.read_text(encoding="utf-8").splitlines()
    return dict(row.split("\t") for row in rows)


def human_name(wnid: str) -> str | None:
    """Return the human name of a wnid, such as ``tench``; None where ImageNet-1K has no such class."""
    return human_names().get(wnid)
