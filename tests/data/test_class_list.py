"""A class list from a file: exactly one name a line."""

import pytest

from imnet_pl.core.errors import UserError
from imnet_pl.core.imagenet import human_names
from imnet_pl.data.sources.class_list import read_classes


def written(tmp_path, lines):
    file = tmp_path / "classes.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


def test_one_name_a_line(tmp_path):
    assert read_classes(written(tmp_path, ["black cat ", "n01440764", "", ""])) == [
        "black cat",
        "n01440764",
    ]


@pytest.mark.parametrize("first", ["background", "Background", "dummy"])
def test_list_of_tensorflow_is_refused_with_the_reason(tmp_path, first):  # B04
    names = [first, *human_names()]
    assert len(names) == 1001
    with pytest.raises(UserError, match=f"1001 lines and begins with '{first}': it is"):
        read_classes(written(tmp_path, names))
    assert len(read_classes(written(tmp_path, names[1:]))) == 1000
    assert len(read_classes(written(tmp_path, ["a", *names[1:]]))) == 1001


def test_human_names_that_two_classes_share_are_refused(tmp_path):  # B36
    with pytest.raises(UserError, match=r"crane more than once.* use wnids"):
        read_classes(written(tmp_path, ["crane", "tench", "crane"]))


@pytest.mark.parametrize("mark", [" ", "\t", ",", ", ", ": "])
def test_more_than_a_name_in_a_line_is_refused(tmp_path, mark):
    with pytest.raises(UserError, match=r"more than one name in a line, such as 'n0"):
        read_classes(written(tmp_path, [f"n01440764{mark}tench", "n01443537"]))


def test_a_blank_line_is_no_class(tmp_path):
    with pytest.raises(UserError, match="has a blank line, 2, which"):
        read_classes(written(tmp_path, ["a", "", "b"]))
