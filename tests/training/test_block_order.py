"""Training in block order: stopped within an epoch it goes on bit for bit, on one rank and on two."""

import signal
from itertools import chain

import pytest
from conftest import CLASSES, pack, write_classes
from test_leaving import launch, wait_for_rows
from test_resume import Stopped, assert_same_run, network, read, stop_at, train  # noqa: F401

from imnet_pl.cli import main
from imnet_pl.data.dataset import ImageDataset

# 12 blocks of 2 pictures, 4 in a window.
BLOCK = ["--data.shuffle=block", "--data.shuffle_block=2", "--data.shuffle_window=8"]


@pytest.fixture
def taken(monkeypatch):
    """Return a list that gets the positions of the training pictures of each batch."""
    seen, getitems = [], ImageDataset.__getitems__

    def record(self, request):
        if self.on_bad_image == "replace":  # that of training
            seen.append([key.position for key in request.keys])
        return getitems(self, request)

    monkeypatch.setattr(ImageDataset, "__getitems__", record)
    return seen


def in_folders(in_tmp, monkeypatch):
    """Go from one folder to the next."""
    for name in ("whole", "parts"):
        (in_tmp / name).mkdir()
        monkeypatch.chdir(in_tmp / name)
        yield


# 24 pictures in batches of 4: 6 an epoch, 2 a window.
@pytest.mark.parametrize("stop", [3, 10])
def test_resume_is_exact(
    root,
    in_tmp,
    network,  # noqa: F811
    stop_at,  # noqa: F811
    monkeypatch,
    taken,
    stop,
):
    folders = in_folders(in_tmp, monkeypatch)
    next(folders)
    assert train(root, *BLOCK) == 0
    whole = list(taken)
    next(folders)
    stop_at(stop)
    with pytest.raises(Stopped):
        train(root, *BLOCK)
    stop_at(-1)
    taken.clear()
    assert main(["fit", "--resume"]) == 0
    assert_same_run(in_tmp / "whole", in_tmp / "parts")
    assert taken == whole[stop:]
    for epoch in range(3):
        pictures = list(chain(*whole[6 * epoch : 6 * epoch + 6]))
        assert sorted(pictures) == list(range(24))
        assert pictures != list(range(24))


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ([], BLOCK, "data.shuffle=block differs from the checkpoint's full"),
        (BLOCK, ["--data.shuffle_window=16"], "data.shuffle_window=16 differs from"),
    ],
)
def test_another_order_is_refused_within_an_epoch_alone(
    root,
    in_tmp,
    network,  # noqa: F811
    stop_at,  # noqa: F811
    capsys,
    before,
    after,
    named,
):
    stop_at(8)
    with pytest.raises(Stopped):
        train(root, *before)
    stop_at(-1)
    assert main(["fit", "--resume", *after]) == 1
    assert named in capsys.readouterr().err
    epoch = "runs/run/version_0/checkpoints/epoch_001.ckpt"
    assert main(["fit", "--ckpt_path", epoch, *after]) == 0
    assert read(in_tmp)["global_step"] == 18


def test_pictures_that_lie_otherwise_are_refused_within_an_epoch_alone(
    root,
    in_tmp,
    network,  # noqa: F811
    stop_at,  # noqa: F811
    capsys,
):
    kept = "--keep_originals=true"
    mixed = pack(root, in_tmp / "mixed", kept)
    as_source = pack(root, in_tmp / "as_source", kept, "--order=source")
    stop_at(8)
    with pytest.raises(Stopped):
        train(root, *BLOCK)
    stop_at(-1)
    assert (
        main(["fit", "--resume", f"--data.root={mixed}", "--data.source=shards"]) == 1
    )
    assert "lie in another order on the disk" in capsys.readouterr().err
    epoch = "runs/run/version_0/checkpoints/epoch_001.ckpt"
    assert (
        main(
            [
                "fit",
                "--ckpt_path",
                epoch,
                f"--data.root={mixed}",
                "--data.source=shards",
            ]
        )
        == 0
    )
    there = [f"--data.root={as_source}", "--data.source=shards"]
    assert main(["fit", "--resume", *there]) == 0


@pytest.mark.slow
def test_two_ranks_on_shards_that_were_stopped_go_on_exactly(in_tmp, monkeypatch):
    many = in_tmp / "many"
    write_classes(many / "train", dict.fromkeys(CLASSES, 40))  # 30 steps an epoch
    write_classes(many / "val", dict.fromkeys(CLASSES, 3))
    root = pack(many, in_tmp / "packed", "--keep_originals=true", "--shard_gb=1e-5")
    more = [*BLOCK, "--trainer.max_epochs=2"]
    folders = in_folders(in_tmp, monkeypatch)
    next(folders)
    whole = launch(root, *more)
    whole.communicate(timeout=300)
    assert whole.returncode == 0
    next(folders)
    parts = launch(root, *more)
    wait_for_rows(2)
    parts.send_signal(signal.SIGTERM)
    parts.communicate(timeout=60)
    assert parts.returncode == 143
    assert 0 < read(in_tmp / "parts")["global_step"] < 30
    resumed = launch(root, *more, "--resume")
    resumed.communicate(timeout=300)
    assert resumed.returncode == 0
    assert_same_run(in_tmp / "whole", in_tmp / "parts")
