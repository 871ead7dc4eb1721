"""Counts of each class, and what its pictures are taken for."""

import torch

from imnet_pl.model.class_counts import ClassCounts
from imnet_pl.training.per_class import describe_confusions, rows

TARGETS = torch.tensor([0, 0, 0, 0, 1, 2, 2, -1])
GUESSES = torch.tensor([0, 2, 2, 1, 1, 2, 0, 0])


def counted(num_classes=3, parts=1):
    counts = ClassCounts(num_classes)
    scores = torch.nn.functional.one_hot(GUESSES, num_classes).float()
    scores[6, 2] = -torch.inf  # could not be read
    for some, labels in zip(scores.chunk(parts), TARGETS.chunk(parts), strict=True):
        counts.update(some, labels)
    counts.update(scores[:0], TARGETS[:0])  # of a rank whose pictures are over
    return counts


def test_counts_by_hand_whatever_the_batches_are():
    for parts in (1, 4, 8):
        right, total, confusions = counted(parts=parts).compute()
        assert right.tolist() == [1, 1, 1]
        assert total.tolist() == [4, 1, 2]
        assert confusions.tolist() == [[1, 1, 2], [0, 1, 0], [0, 0, 1]]


def test_of_very_many_classes_the_confusions_are_left_out():
    right, total, confusions = counted(num_classes=2049).compute()
    assert (right.sum(), total.sum(), confusions.numel()) == (3, 7, 0)
    assert describe_confusions(("a",) * 2049, confusions) == [""] * 2049


def test_the_table_names_the_most_frequent_confusion_first():
    right, total, confusions = counted().compute()
    taken_for = describe_confusions(("a", "b", "c"), confusions)
    assert taken_for == ["c: 2; b: 1", "", ""]
    lines = list(
        rows("abcd", [*right.tolist(), 0], [*total.tolist(), 0], [*taken_for, ""])
    )
    assert lines[0] == ("a", "", 1, 4, "0.250000", "c: 2; b: 1")
    assert lines[3] == ("d", "", 0, 0, "", "")


def test_deterministic_algorithms_are_enough():
    torch.use_deterministic_algorithms(True)
    try:
        assert counted().compute()[2].sum() == 6
    finally:
        torch.use_deterministic_algorithms(False)
