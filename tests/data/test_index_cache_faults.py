"""A kept index that is damaged, can not be written, or is not to be trusted: the data is scanned."""

import logging
import os
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from conftest import CLASSES
from layouts import paths_of

from imnet_pl.core import files
from imnet_pl.data import index_cache
from imnet_pl.data.catalog import Catalog
from imnet_pl.data.sources import auto


def train(root, **options):
    return Catalog(str(root), **options).index("train")


def versions(kept_in):
    return [path for path in kept_in.glob("*/*") if not path.name.startswith(".")]


@pytest.mark.parametrize("name", ["labels.npy", "path_ends.npy", "path_bytes.npy"])
@pytest.mark.parametrize("how", ["cut", "empty", "flipped", "gone", "zeros"])
def test_a_damaged_column_is_made_anew_with_a_notice(
    old_root, kept_in, caplog, name, how
):
    scanned = train(old_root)
    paths, labels = paths_of(scanned), scanned.labels.tolist()
    del scanned
    (version,) = versions(kept_in)
    data = bytearray((version / name).read_bytes())
    damaged = {
        "cut": data[:-3],
        "empty": b"",
        "flipped": data[:-1] + bytes([data[-1] ^ 1]),
        "zeros": bytes(len(data)),
    }
    (version / name).unlink()
    if how != "gone":
        (version / name).write_bytes(damaged[how])
    for _ in range(2):
        again = train(old_root)
        assert (paths_of(again), again.labels.tolist()) == (paths, labels)
    assert caplog.text.count("is damaged") == 1
    assert len(versions(kept_in)) == 1


@pytest.mark.parametrize("name", ["kept.json", "index.json", "marks.npy"])
@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\0\0"])
def test_damaged_facts_are_made_anew_with_a_notice(
    old_root, kept_in, caplog, name, content
):
    expected = paths_of(train(old_root))
    (version,) = versions(kept_in)
    (version / name).write_bytes(content)
    assert paths_of(train(old_root)) == expected
    assert paths_of(train(old_root)) == expected
    assert caplog.text.count("is damaged") == 1


def test_what_a_killed_writer_left_is_no_version(old_root, kept_in, scans):
    train(old_root)
    (version,) = versions(kept_in)
    version.rename(version.with_name(f".{version.name}-abc123"))
    train(old_root)
    train(old_root)
    assert scans == ["train"] * 2


def test_a_cache_that_can_not_be_written_is_a_notice(
    old_root, monkeypatch, caplog, scans
):
    def refuse(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(index_cache.np, "save", refuse)
        for _ in range(2):
            index = train(old_root)
            assert (len(index), index.folder) == (24, None)
    assert caplog.text.count("can not be kept in") == 1
    assert "No space left on device" in caplog.text
    assert "IMNET_PL_CACHE" in caplog.text
    assert len(scans) == 2
    assert train(old_root).folder is not None


def test_a_cache_folder_that_is_a_file_is_a_notice(
    old_root, monkeypatch, caplog, tmp_path
):
    """Said once, not for each split."""
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("IMNET_PL_CACHE", str(tmp_path / "file"))
    for split, count in (("train", 24), ("val", 9)):
        assert len(Catalog(str(old_root)).index(split)) == count
    assert caplog.text.count("can not be kept in") == 1


def test_a_damaged_version_that_can_not_be_replaced_is_not_used(
    old_root, kept_in, monkeypatch, caplog
):
    """As on Windows, where another process has it open."""
    train(old_root)
    (version,) = versions(kept_in)
    (version / "labels.npy").write_bytes(b"x")
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **options: None)
    index = train(old_root)
    assert index.labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert index.folder is None
    assert "can not be kept in" in caplog.text


@pytest.mark.parametrize(
    "then", [lambda: time.time() - 1, lambda: time.time() + 3600, lambda: 0]
)
def test_what_has_just_changed_or_has_no_time_is_not_kept(
    old_root, kept_in, scans, then
):
    os.utime(old_root / "train" / "n02", (then(), then()))
    for _ in range(2):
        assert train(old_root).folder is None
    assert not kept_in.exists()
    assert len(scans) == 2


@pytest.mark.parametrize(
    ("system", "kind", "notes"),
    [
        ("nt", "NTFS", True),
        ("nt", "exFAT", False),
        ("nt", "FAT32", False),
        ("posix", "exfat", True),
        ("posix", "fuse.gcsfuse", False),
        ("posix", "fuseblk", True),
    ],
)
def test_file_systems_that_note_changes(old_root, monkeypatch, system, kind, notes):
    disks = [
        (old_root.anchor, "ext4"),
        (str(old_root), kind),
        (str(old_root / "train"), "x"),
    ]
    rows = [SimpleNamespace(mountpoint=place, fstype=fs) for place, fs in disks]
    monkeypatch.setattr(files.psutil, "disk_partitions", lambda all: rows)
    monkeypatch.setattr(files, "os", SimpleNamespace(name=system, path=os.path))
    assert files.notes_folder_changes(old_root) is notes


def test_nothing_is_kept_where_changes_are_not_noted(
    old_root, kept_in, monkeypatch, caplog
):
    monkeypatch.setattr(index_cache, "notes_folder_changes", lambda _: False)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert train(old_root).folder is None
    assert not kept_in.exists()
    assert caplog.text.count("does not note when a folder changes") == 1


def test_two_writers_at_once_leave_one_whole_version(old_root, kept_in):
    code = (
        "import sys; from imnet_pl.data.catalog import Catalog\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        f"i = Catalog({str(old_root)!r}).index('train')\n"
        "print(i.fingerprint, i.folder)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [
        subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    outputs = [writer.communicate()[0] for writer in writers]
    scanned = auto.index_split(old_root, "train", CLASSES)
    (version,) = kept_in.glob("*/*")
    assert outputs == [f"{scanned.fingerprint} {version}\n"] * 2


def test_unused_versions_go_after_a_month_and_used_ones_stay(old_root, kept_in, scans):
    train(old_root)
    (version,) = versions(kept_in)
    then = time.time() - 40 * 86_400
    os.utime(version, (then, then))
    Catalog(str(old_root)).index("train")  # used: young again
    Catalog(str(old_root)).index("val")
    assert version.is_dir()
    os.utime(version, (then, then))
    Catalog(str(old_root), source="folder").index("val")
    assert not version.exists()
