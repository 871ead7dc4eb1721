"""What every room uses."""

import pytest

from imnet_pl.core.errors import nearest_hint, some_of
from imnet_pl.core.files import ESCAPED, cache_dir, create_dir_atomically
from imnet_pl.core.imagenet import human_name, human_names
from imnet_pl.core.machine import loader_defaults, usable_cores
from imnet_pl.core.stats import wilson_interval


def test_hints():
    assert nearest_hint("resnet19", ["resnet18", "vgg"]) == " Did you mean 'resnet18'?"
    assert nearest_hint("zzz", ["resnet18"]) == ""
    assert some_of("abc", 2) == "a, b and 1 more"


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fail(folder):
        (folder / "half").write_text("x")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        create_dir_atomically(tmp_path / "a" / "b", fail)
    assert list((tmp_path / "a").iterdir()) == []
    create_dir_atomically(
        tmp_path / "a" / "b", lambda folder: (folder / "x").write_text("1")
    )
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"]


def test_a_folder_that_another_process_made_stays(tmp_path):
    target = tmp_path / "b"

    def slow(folder):
        (folder / "mine").write_text("1")
        target.mkdir()
        (target / "theirs").write_text("2")

    create_dir_atomically(target, slow)
    assert [p.name for p in target.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    ("cores", "ranks", "expected"),
    [
        (1, 1, (1, 1)),
        (2, 1, (2, 1)),
        (3, 1, (2, 2)),
        (8, 1, (2, 4)),
        (16, 1, (4, 4)),
        (16, 2, (2, 4)),
        (2, 2, (1, 1)),
        (2, 4, (1, 1)),
    ],
)
def test_loader_defaults(cores, ranks, expected):  # S16
    assert loader_defaults(cores, ranks) == expected
    assert loader_defaults(cores, ranks, num_batches=1) == (1, max(1, cores // ranks))
    assert usable_cores() >= 1


def test_wilson_interval():
    low, high = wilson_interval(0.76, 50_000)
    assert (round(low, 4), round(high, 4)) == (0.7562, 0.7637)
    assert wilson_interval(1.0, 10)[1] == pytest.approx(1)
    assert wilson_interval(0.0, 10)[0] == pytest.approx(0)


def test_cache_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("IMNET_PL_CACHE", str(tmp_path / "here"))
    assert cache_dir() == tmp_path / "here"
    monkeypatch.delenv("IMNET_PL_CACHE")
    assert cache_dir().name == "imnet_pl"


def test_imagenet_table(assets):
    wnids = (assets / "imagenet-wnids.txt").read_text(encoding="utf-8").split()
    assert list(human_names()) == wnids


def test_imagenet_names():
    assert list(human_names()) == sorted(human_names())
    assert len(human_names()) == 1000
    assert all(name == name.strip() != "" for name in human_names().values())
    assert human_name("n01440764") == "tench"
    assert human_name("n03126707") == "crane"
    assert human_name("n02012849") == "crane bird"
    assert human_name("digit_0") is None


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("猫é", "猫é"),
        ("a\udce7\udc8c\udcab.jpg", "a猫.jpg"),  # found where the locale is ASCII
        ("\udcff\udcc3\udca9", "\\udcffé"),
        ("\ud800.jpg", "\\ud800.jpg"),
    ],
)
def test_names_of_files_are_written_as_utf_8(tmp_path, name, written):
    file = tmp_path / "names.txt"
    file.write_text(name, encoding="utf-8", errors=ESCAPED)
    assert file.read_text(encoding="utf-8") == written
