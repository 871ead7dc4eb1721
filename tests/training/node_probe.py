"""The command line with a network that costs nothing; scans of folders are counted in a file, if one is named."""

import os
import sys

from torch import nn


def build_network(arch, num_classes):
    """Return a network without BatchNorm, whose result does not depend on how a batch is divided."""
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, num_classes)
    )


def count_scans(file):
    """Append a line to a file for every split that is scanned."""
    from imnet_pl.data.sources import auto

    scan = auto.index_split

    def index_split(root, split, *args, **options):
        with open(file, "a", encoding="utf-8") as lines:  # noqa: PTH123
            lines.write(f"{split}\n")
        return scan(root, split, *args, **options)

    auto.index_split = index_split


if __name__ == "__main__":
    from imnet_pl.cli import main
    from imnet_pl.model import classifier

    classifier.build_network = build_network
    if scans := os.environ.get("PROBE_SCANS"):
        count_scans(scans)
    sys.exit(main())
