"""The verb pack: what becomes of pictures, names and bad files, and what can go wrong with the target."""

import io
import json
import multiprocessing
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from conftest import CLASSES, pack, write_classes, write_jpeg
from PIL import Image

from imnet_pl.cli import main
from imnet_pl.core.files import hold_lock
from imnet_pl.data import packer
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.reading import read_picture
from imnet_pl.data.shard_writer import ShardWriter
from imnet_pl.data.sources import auto

LONG = "n" * 251 + ".jpg"


def members_of(tar):
    """Return name -> bytes of a tar file, as Python reads it."""
    with tarfile.open(tar) as content:
        return {m.name: content.extractfile(m).read() for m in content.getmembers()}


def all_members(folder):
    found = {}
    for tar in sorted(folder.glob("*.tar")):
        found |= members_of(tar)
    return found


def tree(folder):
    """Return relative path -> bytes of all files below a folder."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in files}


def facts_of(folder):
    return json.loads((folder / "pack.json").read_text(encoding="utf-8"))


def refused(capsys, root, to, *more):
    """Pack, and return the error."""
    args = ["pack", f"--data.root={root}", f"--to={to}", "--num_processes=0", *more]
    assert main(args) == 1
    return capsys.readouterr().err


def test_pictures_are_shrunk_and_small_jpegs_are_copied(root, tmp_path, capsys):
    write_jpeg(root / "train/n01/large.JPEG", size=(100, 60))
    write_jpeg(root / "train/n01/small.jpg", size=(30, 90))
    Image.new("RGB", (20, 10), "red").save(root / "train/n02/small.png")
    Image.new("RGBA", (200, 100), (0, 0, 0, 0)).save(root / "train/n02/clear.png")
    packed = pack(root, tmp_path / "packed", "--short_side=36")
    found = members_of(packed / "train-00000.tar")
    files = {name: Image.open(io.BytesIO(data)) for name, data in found.items()}
    assert {image.format for image in files.values()} == {"JPEG"}
    assert files["train/n01/large.JPEG"].size == (36, 60)
    assert files["train/n01/p0.jpg"].size == (43, 36)
    small = "train/n01/small.jpg"
    assert found[small] == (root / small).read_bytes()
    assert files["train/n02/small.png.jpg"].size == (20, 10)
    assert files["train/n02/clear.png.jpg"].size == (72, 36)
    assert files["train/n02/clear.png.jpg"].getpixel((9, 9)) == (255, 255, 255)
    shown = capsys.readouterr().out
    assert "train: 28 pictures, 27 of them encoded anew" in shown
    assert "every checksum is right" in shown
    index = auto.index_split(packed, "train", CLASSES)
    names = [index.relative_path(i) for i in range(len(index))]
    row = names.index("train/n01/large.JPEG")
    assert (index.members.width[row], index.members.height[row]) == (36, 60)


def test_shrinking_is_antialiased(tmp_path):
    for name in "ab":
        (tmp_path / "in/train" / name).mkdir(parents=True)
        lines = np.zeros((400, 400, 3), dtype=np.uint8)
        lines[:, ::2] = 255
        Image.fromarray(lines).save(tmp_path / "in/train" / name / "p.png")
    packed = pack(tmp_path / "in", tmp_path / "packed", "--short_side=50")
    for data in all_members(packed).values():
        pixels = np.asarray(Image.open(io.BytesIO(data)))
        assert abs(pixels[4:-4, 4:-4].astype(int) - 128).max() <= 4


def test_orientation_stays_with_a_picture(tmp_path):
    """A picture that is turned by EXIF gives the same pixels from a shard, turned or not."""
    draw = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    picture = Image.fromarray(draw).resize((120, 80), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("a", "b"):
        (tmp_path / "in/train" / name).mkdir(parents=True)
    picture.save(tmp_path / "in/train/a/p.jpg", exif=exif, quality=95)
    picture.save(tmp_path / "in/train/b/p.png", exif=exif)
    packed = pack(tmp_path / "in", tmp_path / "packed", "--short_side=40")
    for turned in (False, True):
        images = []
        for root in (tmp_path / "in", packed):
            data = ImageNetDataModule(
                str(root),
                image_size=32,
                eval_resize=40,
                num_workers=0,
                exif_orientation=turned,
            )
            data.indices["val"] = data.catalog.index("train")
            (batch,) = data.val_dataloader()
            images.append(batch.images.int())
        assert (images[0] - images[1]).abs().float().mean() < 4


def test_names_stay_exact(tmp_path):
    write_classes(tmp_path / "in/train", {"a": 1, "猫 狗": 1})
    names = ["Case.jpg", "case.jpg", "图片 é.jpg", LONG, "a.png.jpg"]
    for seed, name in enumerate(names):
        write_jpeg(tmp_path / "in/train/猫 狗" / name, seed)
    Image.new("RGB", (9, 9)).save(tmp_path / "in/train/猫 狗/a.png")
    packed = pack(tmp_path / "in", tmp_path / "packed")
    expected = [f"train/猫 狗/{name}" for name in names]
    found = members_of(packed / "train-00000.tar")
    # That of a.png, which comes first, is taken as well once it is a JPEG.
    expected[4] = "train/猫 狗/a.png~2.jpg"
    new = {*expected, "train/猫 狗/a.png.jpg"}
    assert found.keys() == {"train/a/p0.jpg", "train/猫 狗/p0.jpg", *new}
    for name in expected[:4]:
        assert found[name] == (tmp_path / "in" / name).read_bytes()
    if shutil.which("tar"):
        listed = subprocess.run(
            ["tar", "--quoting-style=literal", "-tf", packed / "train-00000.tar"],
            capture_output=True,
            env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        )
        assert listed.stdout.decode().splitlines() == list(found)
        assert listed.stderr == b""


def test_bad_pictures_are_left_out_of_train_and_stay_wrong_in_val(
    root, tmp_path, capsys
):
    (root / "train/n01/bad.jpg").write_bytes(b"no picture")
    (root / "val/n02/bad.jpg").write_bytes(b"")
    packed = pack(root, tmp_path / "packed", "--short_side=30", "--shard_gb=1e-5")
    shown = capsys.readouterr().out
    assert "1 can not be read and are left out:\n    train/n01/bad.jpg: it is" in shown
    assert "kept as they are, to count as wrong:\n    val/n02/bad.jpg" in shown
    splits = facts_of(packed)["splits"]
    assert [s["num_samples"] for s in splits.values()] == [24, 10]
    assert [s["bad"][0][0] for s in splits.values()] == [
        "train/n01/bad.jpg",
        "val/n02/bad.jpg",
    ]
    data = ImageNetDataModule(str(packed), image_size=16, num_workers=0)
    data.setup("fit")
    (batch,) = data.val_dataloader()
    row = data.relative_paths(range(10)).index("val/n02/bad.jpg")
    assert batch.status.tolist() == [int(i == row) for i in range(10)]


def test_a_set_without_a_readable_picture_is_refused(tmp_path, capsys):
    for name in ("a", "b"):
        write_jpeg(tmp_path / "in/train" / name / "p.jpg")
        (tmp_path / "in/train" / name / "p.jpg").write_bytes(b"no picture")
    error = refused(capsys, tmp_path / "in", tmp_path / "packed")
    assert "none of the 2 pictures of train can be read (it is no picture" in error


def test_processes_pack_the_same_bytes(root, tmp_path):
    alone = pack(root, tmp_path / "alone", "--short_side=24", "--shard_gb=1e-5")
    together = tmp_path / "together"
    args = [f"--data.root={root}", f"--to={together}", "--short_side=24"]
    more = ["--shard_gb=1e-5", "--num_processes=2"]
    assert main(["pack", *args, *more]) == 0
    assert tree(alone) == tree(together)
    assert len(list(alone.glob("train-*.tar"))) > 2


class Killed(Exception):
    """What ends packing here, as kill -9 would."""


def leave(writer):
    """Leave the unfinished shard behind, as a killed process does."""
    if writer._file is not None:
        writer._file.close()


@pytest.mark.parametrize("place", ["add", "close_shard", "finish"])
def test_packing_goes_on_after_the_last_finished_shard(
    root, tmp_path, monkeypatch, place
):
    (root / "train/n02/bad.jpg").write_bytes(b"no picture")
    options = ("--short_side=24", "--shard_gb=1e-5")
    whole = pack(root, tmp_path / "whole", *options)
    broken, method = tmp_path / "broken", getattr(ShardWriter, place)
    packed_rows = []
    for number in (7, 3, 1):
        calls = iter(range(number))

        def stop(self, *args, calls=calls):
            if next(calls, None) is None:
                monkeypatch.setattr(ShardWriter, "abandon", leave)
                raise Killed
            return method(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(ShardWriter, place, stop)
            try:
                pack(root, broken, *options)
            except Killed:
                assert not (broken / "pack.json").exists()
        rows = [w.start for w in [ShardWriter(broken, "train", 1)]]
        packed_rows += rows
    pack(root, broken, *options)
    assert tree(broken) == tree(whole)
    assert pack(root, broken, *options)  # nothing is left to do
    assert packed_rows == sorted(packed_rows)


def test_a_full_disk_loses_nothing(root, tmp_path, monkeypatch, capsys):
    whole = pack(root, tmp_path / "whole", "--shard_gb=1e-5")
    write, left = ShardWriter._write, [12]

    def write_some(self, *parts):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        write(self, *parts)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "_write", write_some)
        error = refused(capsys, root, tmp_path / "packed", "--shard_gb=1e-5")
    assert "the disk is full; finished shards stay. Make room, and run the" in error
    assert not list((tmp_path / "packed").glob("*.part"))
    assert len(list((tmp_path / "packed").glob("*.tar"))) == 2
    pack(root, tmp_path / "packed", "--shard_gb=1e-5")
    assert tree(tmp_path / "packed") == tree(whole)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small file system")
def test_a_disk_that_really_is_full(root, tmp_path, monkeypatch, capsys):
    for i in range(40):
        write_jpeg(root / f"train/n01/more{i}.jpg", i, size=(200, 200))
    whole = pack(root, tmp_path / "whole", "--shard_gb=2e-4")
    disk = tmp_path / "disk"
    disk.mkdir()
    size = sum(len(content) for content in tree(whole).values())
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size // 2}", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this process may not mount a file system")
    try:
        with monkeypatch.context() as patch:
            free = shutil._ntuple_diskusage(10**9, 0, 10**9)
            patch.setattr(packer.shutil, "disk_usage", lambda path: free)
            error = refused(capsys, root, disk / "packed", "--shard_gb=2e-4")
        assert "the disk is full; finished shards stay. Make room, and run" in error
        assert not list(disk.rglob("*.part"))
        assert list(disk.rglob("*.tar"))
        larger = ["mount", "-o", f"remount,size={4 * size}", str(disk)]
        subprocess.run(larger, check=True)
        pack(root, disk / "packed", "--shard_gb=2e-4")
        assert tree(disk / "packed") == tree(whole)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_room_is_asked_for_before_the_work(root, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        packer.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 9)
    )
    error = refused(capsys, root, tmp_path / "packed")
    assert "needs about 0.0 GB, and 0.0 GB are free there" in error
    assert not list((tmp_path / "packed").glob("*.tar"))


def test_a_target_that_can_not_be_used(root, tmp_path, capsys):
    assert "lies inside data.root" in refused(capsys, root, root / "packed")
    full = tmp_path / "full"
    write_jpeg(full / "mine.jpg")
    assert "is not empty (mine.jpg)" in refused(capsys, root, full)
    assert "is a file" in refused(capsys, root, full / "mine.jpg")
    assert [f.name for f in full.iterdir()] == ["mine.jpg"]
    assert main(["pack", f"--data.root={root}"]) == 1
    assert "--to is missing" in capsys.readouterr().err
    for more in ("--short_side=0", "--quality=101", "--shard_gb=0"):
        assert f"{more} must be" in refused(capsys, root, tmp_path / "new", more)
    assert not (tmp_path / "new").exists()


def test_a_target_of_other_options_or_pictures_is_left_as_it_is(
    root, tmp_path, capsys, monkeypatch
):
    packed = pack(root, tmp_path / "packed")
    before = tree(packed)
    error = refused(capsys, root, packed, "--short_side=64", "--val=keep")
    assert "packed otherwise: short_side 320, here 64, val pack, here keep" in error
    write_jpeg(root / "train/n01/more.jpg")
    assert "otherwise: from other pictures" in refused(capsys, root, packed)
    assert tree(packed) == before
    begun = tmp_path / "begun"

    def stop(self, place, row, picture):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "add", stop)
        with pytest.raises(Killed):
            pack(root, begun)
    assert "otherwise: quality 90, here 80" in refused(
        capsys, root, begun, "--quality=80"
    )


def hold(file, ready, done):
    with hold_lock(Path(file)) as is_free:
        assert is_free
        ready.set()
        done.wait()


def test_two_processes_do_not_pack_into_one_target(root, tmp_path, capsys):
    (tmp_path / "packed" / ".packing").mkdir(parents=True)
    spawn = multiprocessing.get_context("spawn")
    ready, done = spawn.Event(), spawn.Event()
    lock = tmp_path / "packed" / ".lock"
    other = spawn.Process(target=hold, args=(str(lock), ready, done))
    other.start()
    assert ready.wait(120)
    error = refused(capsys, root, tmp_path / "packed")
    done.set()
    other.join()
    assert "another process packs into it" in error
    pack(root, tmp_path / "packed")


def test_a_file_that_can_not_be_read_ends_packing(root, tmp_path, capsys, monkeypatch):
    def read(index, row):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("imnet_pl.data.packing.read_picture", read)
    error = refused(capsys, root, tmp_path / "packed")
    assert "p0.jpg' can not be read (Input/output error)" in error
    assert "run the same command again" in error


def test_packed_data_is_packed_again(root, tmp_path):
    first = pack(root, tmp_path / "first", "--keep_originals=true")
    again = pack(first, tmp_path / "again", "--short_side=24")
    direct = pack(root, tmp_path / "direct", "--short_side=24")
    assert all_members(again) == all_members(direct)


def test_unpacking_refuses_names_that_the_disk_takes_for_one(
    root, tmp_path, capsys, monkeypatch
):
    write_jpeg(root / "train/n01/P0.jpg", 5)
    packed = pack(root, tmp_path / "packed")
    args = ["pack", f"--data.root={packed}", f"--unpack={tmp_path / 'out'}"]
    with monkeypatch.context() as patch:
        patch.setattr("imnet_pl.data.unpacking._ignores_case", lambda folder: True)
        assert main(args) == 1
    assert "1 names of train differ from others in case alone" in (
        capsys.readouterr().err
    )
    assert main(args) == 0
    index = auto.index_split(packed, "train", CLASSES)
    for row in range(len(index)):
        file = tmp_path / "out" / index.relative_path(row)
        assert file.read_bytes() == read_picture(index, row)


def test_verify_of_what_is_no_packed_data(root, capsys):
    assert main(["pack", f"--verify={root}"]) == 1
    assert "is no packed data" in capsys.readouterr().err
