"""Damaged, foreign and hostile checkpoints: one sentence that names the file, and never other weights or code."""

import os
import pickle
import random
import shutil
import socket
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import CLASSES, fit_args, write_classes
from torch import nn

from imnet_pl.cli import main
from imnet_pl.core.errors import UserError
from imnet_pl.training.checkpoint_io import SafeCheckpointIO
from imnet_pl.training.runs import read_checkpoint

FOLDER = Path("runs/run/version_0/checkpoints")
VERBS = ("fit", "validate", "test", "predict")


def build_network(arch, num_classes):
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2),
        nn.BatchNorm2d(4),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, num_classes),
    )


@pytest.fixture(autouse=True)
def network(monkeypatch):
    monkeypatch.setattr("imnet_pl.model.classifier.build_network", build_network)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with pictures and a run of two epochs, which tests only read."""
    folder = tmp_path_factory.mktemp("trained")
    root = folder / "pictures"
    write_classes(root / "train", dict.fromkeys(CLASSES, 8))
    write_classes(root / "val", dict.fromkeys(CLASSES, 3), seed=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("IMNET_PL_CACHE", str(folder / "cache"))
        patch.setattr("imnet_pl.model.classifier.build_network", build_network)
        epochs = ["--trainer.max_epochs=2", "--model.warmup_epochs=0"]
        assert main(fit_args(root, *epochs, "--checkpoint.keep=all")) == 0
    return folder


@pytest.fixture
def whole(trained):
    """The bytes of a good checkpoint."""
    return (trained / FOLDER / "last.ckpt").read_bytes()


@pytest.fixture
def folder(trained, in_tmp):
    """The checkpoints of a copy of the run, each a minute older than the next."""
    shutil.copytree(trained / "runs", in_tmp / "runs")
    order = ("epoch_001.ckpt", "best.ckpt", "epoch_002.ckpt", "last.ckpt")
    for i, name in enumerate(order):
        os.utime(FOLDER / name, (1e9 + 60 * i, 1e9 + 60 * i))
    return FOLDER


def refusal(capsys, args):
    """Return the one line on stderr with which a command line is refused."""
    capsys.readouterr()
    assert main(args) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


def args_of(verb, file, trained):
    extra = {"predict": [f"--input={trained / 'pictures/val'}"]}
    return [verb, "--ckpt_path", str(file), *extra.get(verb, [])]


@pytest.mark.parametrize("seed", range(5))
def test_a_cut_at_any_byte_is_refused(tmp_path, whole, seed):
    draw = random.Random(seed)
    file = tmp_path / "x.ckpt"
    for end in (draw.randrange(len(whole)) for _ in range(10)):
        file.write_bytes(whole[:end])
        with pytest.raises(UserError, match=r"x\.ckpt' can not be read") as caught:
            read_checkpoint(file)
        assert "\n" not in str(caught.value)


def assert_same(left, right):
    """Compare what a checkpoint holds, keys and types included."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        assert_same(list(left.values()), list(right.values()))
    elif isinstance(left, list | tuple):
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    else:
        assert left == right


def assert_refused_or_right(file, right):
    """A damaged file is refused, or both ways to load it give what was saved."""
    try:
        content = read_checkpoint(file)
    except UserError as error:
        message = str(error)
    else:
        assert_same(content, right)
        assert_same(SafeCheckpointIO().load_checkpoint(file), right)
        return
    assert "x.ckpt" in message
    assert "\n" not in message


@pytest.mark.parametrize("seed", range(5))
def test_a_changed_byte_is_refused_or_harmless(tmp_path, trained, whole, seed):
    draw = random.Random(seed)
    right = torch.load(trained / FOLDER / "last.ckpt", weights_only=True)
    file = tmp_path / "x.ckpt"
    for at in (draw.randrange(len(whole)) for _ in range(10)):
        changed = bytearray(whole)
        changed[at] ^= draw.randrange(1, 256)
        file.write_bytes(changed)
        assert_refused_or_right(file, right)


@pytest.mark.parametrize("seed", range(5))
def test_a_changed_table_of_contents_is_refused_or_harmless(
    tmp_path, trained, whole, seed
):
    draw = random.Random(seed)
    right = torch.load(trained / FOLDER / "last.ckpt", weights_only=True)
    file = tmp_path / "x.ckpt"
    start = whole.index(b"PK\x01\x02")
    for at in (draw.randrange(start, len(whole)) for _ in range(20)):
        changed = bytearray(whole)
        changed[at] ^= 1 << draw.randrange(8)
        file.write_bytes(changed)
        assert_refused_or_right(file, right)


# Byte of an entry of the zip's table: method, attributes. Torch reads a "folder" as zeros.
@pytest.mark.parametrize(("byte", "bit"), [(10, 8), (38, 0x10)])
def test_marks_that_no_checksum_covers_are_looked_at(tmp_path, whole, byte, bit):
    changed = bytearray(whole)
    changed[changed.rindex(b"PK\x01\x02") + byte] ^= bit
    file = tmp_path / "x.ckpt"
    file.write_bytes(changed)
    with pytest.raises(UserError, match="is marked as compressed or a folder"):
        read_checkpoint(file)


class Code:
    """An object whose unpickling makes a folder."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return os.mkdir, (self.trace,)


def write_bad_file(file, kind, whole, trace):
    if kind == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    elif kind == "flip":
        file.write_bytes(whole.replace(b"state_dict", b"state_dicu"))
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "folder":
        file.mkdir()
    elif kind == "text":
        file.write_text("epoch: 3\n", encoding="utf-8")
    elif kind == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("readme.txt", "no tensors here")
    elif kind == "pickle":
        file.write_bytes(pickle.dumps(Code(trace)))
    elif kind == "old torch file":
        torch.save(Code(trace), file, _use_new_zipfile_serialization=False)
    else:
        torch.save({"state_dict": {}, "imnet_pl": Code(trace)}, file)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("cut", "can not be read as a checkpoint"),
        ("flip", "archive/data.pkl is not as it was written"),
        ("empty", "can not be read as a checkpoint"),
        ("folder", "is a folder"),
        ("text", "can not be read as a checkpoint"),
        ("zip", "can not be read as a checkpoint"),
        ("pickle", "can not be read as a checkpoint"),
        ("old torch file", "can not be read as a checkpoint"),
        ("code", "which could run code; it is not loaded"),
    ],
)
def test_a_bad_file_is_one_line_and_runs_no_code(
    in_tmp, trained, whole, capsys, kind, reason
):
    file, trace = in_tmp / "x.ckpt", in_tmp / "trace"
    write_bad_file(file, kind, whole, trace)
    line = refusal(capsys, ["validate", "--ckpt_path", str(file)])
    assert "x.ckpt" in line
    assert reason in line
    weights = [f"--data.root={trained / 'pictures'}", f"--model.weights={file}"]
    assert "x.ckpt" in refusal(capsys, ["validate", *weights])
    assert not trace.exists()


@pytest.mark.parametrize(
    ("verb", "url"),
    [
        *((verb, "http://host/x.ckpt") for verb in VERBS),
        ("validate", "https://host/x"),
        ("validate", "file:///x.ckpt"),
    ],
)
def test_nothing_is_loaded_from_a_url(in_tmp, trained, capsys, monkeypatch, verb, url):
    def connect(*args):
        raise AssertionError("something was sent")

    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, connect)
    line = refusal(capsys, args_of(verb, url, trained))
    cure = f"={url!r} is a URL; download the file first and give its path."
    assert line == f"error: --ckpt_path{cure}"
    if verb != "predict":
        weights = [f"--data.root={trained / 'pictures'}", f"--model.weights={url}"]
        assert refusal(capsys, [verb, *weights]) == f"error: model.weights{cure}"


def rewrite(file, **changes):
    """Change what a checkpoint says about itself."""
    content = torch.load(file, weights_only=True)
    content["imnet_pl"].update(changes)
    torch.save(content, file)


@pytest.mark.parametrize("verb", VERBS)
def test_a_later_format_is_refused_and_a_later_version_is_not(
    folder, trained, capsys, verb
):
    last = folder / "last.ckpt"
    rewrite(last, version="9.1.0", format=2)
    line = refusal(capsys, args_of(verb, last, trained))
    assert f"--ckpt_path={str(last)!r} was written by a newer version 9.1.0" in line
    assert "(format 2, this one reads up to 1); update it." in line
    rewrite(last, format=1)
    assert main(args_of(verb, last, trained)) == 0


def test_resume_does_not_pass_over_a_later_format(folder, capsys):
    rewrite(folder / "last.ckpt", version="9.1.0", format=2)
    assert "newer version 9.1.0" in refusal(capsys, ["fit", "--resume"])


def test_a_checkpoint_without_a_format_is_read(folder):
    content = torch.load(folder / "last.ckpt", weights_only=True)
    assert content["imnet_pl"].pop("format") == 1
    torch.save(content, folder / "last.ckpt")
    assert main(["validate", "--ckpt_path", "last"]) == 0


@pytest.mark.parametrize("verb", VERBS)
def test_another_arch_is_refused_in_one_line(folder, trained, capsys, verb):
    args = args_of(verb, folder / "best.ckpt", trained)
    line = refusal(capsys, [*args, "--model.arch=resnet18"])
    reason = "is of model.arch='resnet50', but model.arch='resnet18' was asked for."
    assert line == f"error: --ckpt_path={str(folder / 'best.ckpt')!r} {reason}"


@pytest.mark.parametrize("verb", VERBS)
def test_the_next_older_readable_one_is_offered(folder, trained, capsys, verb):
    for name in ("last.ckpt", "epoch_002.ckpt"):
        status = (folder / name).stat()
        (folder / name).write_bytes(b"")
        os.utime(folder / name, (status.st_atime, status.st_mtime))
    line = refusal(capsys, args_of(verb, folder / "last.ckpt", trained))
    assert "last.ckpt' can not be read" in line
    offer = f"; the next older readable one is {str(folder / 'best.ckpt')!r}."
    assert line.endswith(offer)
    assert main(args_of(verb, folder / "best.ckpt", trained)) == 0


def test_the_oldest_one_offers_a_newer_one(folder, capsys):
    oldest = folder / "epoch_001.ckpt"
    oldest.write_bytes(b"")
    os.utime(oldest, (1e9, 1e9))
    line = refusal(capsys, ["validate", "--ckpt_path", str(oldest)])
    offer = f"; the next newer readable one is {str(folder / 'best.ckpt')!r}."
    assert line.endswith(offer)


def test_a_copy_of_the_last_one_is_as_old_and_offered_first(trained, in_tmp, capsys):
    shutil.copytree(trained / "runs", in_tmp / "runs")
    last = FOLDER / "last.ckpt"
    written = last.stat().st_mtime_ns
    last.write_bytes(b"")
    os.utime(last, ns=(written, written))
    line = refusal(capsys, ["validate", "--ckpt_path", "last"])
    offer = f"; the next older readable one is {str(FOLDER / 'epoch_002.ckpt')!r}."
    assert line.endswith(offer)


def test_without_another_readable_one_nothing_is_offered(folder, capsys):
    for file in folder.iterdir():
        file.write_bytes(b"")
    line = refusal(capsys, ["validate", "--ckpt_path", "last"])
    assert "readable one" not in line
