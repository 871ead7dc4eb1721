"""What ranks say of one that is lost."""

import os
import signal
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from conftest import fit_args
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from nodes import finish, free_port, node_env, start, wait_until_held

from imnet_pl.cli import main
from imnet_pl.core.errors import UserError
from imnet_pl.training.leaving import Leave
from imnet_pl.training.lost_rank import (
    LostRank,
    describe_silent,
    describe_waiting,
    describe_words,
    is_lost_connection,
    limit_waiting,
)
from imnet_pl.training.signs_of_life import Sign, SignsOfLife

TWO_NODES = ["--trainer.num_nodes=2", "--trainer.devices=1", "--trainer.strategy=ddp"]
HOSTS = ("a", "b", "b")


@pytest.fixture
def port():
    """A store as the process group has one, on a port of its own."""
    server = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=False
    )
    yield server.port
    del server


def signs_of(rank, *silent, words=""):
    """Return what a rank of three has heard, with some silent for a minute."""
    signs = SignsOfLife(rank, HOSTS, "127.0.0.1", 1)
    now = time.monotonic()
    for other in range(3):
        ago = 60 if other in silent else 0
        signs.signs[other] = Sign(1, 10 + other, "", now - ago)
    if words:
        signs.signs[2].words = words
    return signs


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_ranks_hear_steps_and_last_words_of_each_other(port):
    both = [SignsOfLife(rank, HOSTS[:2], "127.0.0.1", port) for rank in (0, 1)]
    for signs in both:
        signs.step = 7
        signs.start()
    wait_for(lambda: both[0].signs[1].step == both[1].signs[0].step == 7)
    both[1].stop("ValueError: no more")
    wait_for(lambda: both[0].signs[1].words)
    assert describe_words(both[0]) == (
        "rank 1 (host b) ended at step 7: ValueError: no more"
    )
    assert both[0].silent(-1) == []  # it did not vanish
    both[0].stop()


def test_a_store_that_is_not_there_is_a_notice(caplog):
    signs = SignsOfLife(0, HOSTS, "127.0.0.1", free_port())
    signs.start()
    wait_for(lambda: "ranks can not hear of each other" in caplog.text)


def test_a_silent_rank_is_named_with_its_host():
    signs = signs_of(0, 2)
    assert signs.silent(30) == [2]
    assert describe_silent(signs, [2]) == (
        "rank 2 (host b) gives no sign of life for 60 s, last heard of at step 12"
    )


def test_where_all_are_silent_the_first_rank_is_named():
    signs = signs_of(1, 0, 2)
    assert signs.silent(30) == [0, 2]
    assert describe_silent(signs, [0, 2]) == (
        "nothing is heard for 60 s of rank 0 (host a), through which ranks hear of each other; it was at step 10"
    )


def test_where_none_is_silent_steps_are_named():
    assert "at steps 10 (rank 0), 11 (rank 1), 12 (rank 2)" in describe_waiting(
        signs_of(0), 900
    )


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (RuntimeError("[a/gloo/transport/tcp/pair.cc:1] Connection closed"), True),
        (dist.DistBackendError("NCCL"), True),
        (dist.DistNetworkError("timed out"), True),
        (RuntimeError("CUDA out of memory"), False),
        (UserError("gloo/transport"), False),
    ],
)
def test_errors_of_the_connection_are_told_from_others(error, is_lost):
    assert is_lost_connection(error) == is_lost


@pytest.mark.parametrize(
    ("local_rank", "silent", "raised"),
    [(0, [], UserError), (1, [], Leave), (1, [2], UserError)],
)
def test_one_rank_of_a_node_speaks(local_rank, silent, raised):
    """The first, or any where the first is lost."""
    callback = LostRank(900)
    callback.sentence, callback._silent = "lost", silent
    trainer = SimpleNamespace(local_rank=local_rank, global_rank=2 + local_rank)
    with pytest.raises(raised, match="lost"):
        callback.raise_lost(trainer, RuntimeError())


def test_another_error_stays():
    LostRank(900).raise_lost(SimpleNamespace(), RuntimeError())


@pytest.mark.parametrize("given", [None, timedelta(seconds=7)])
def test_the_time_of_a_strategy_that_was_given_one_stays(given):
    more = {} if given is None else {"timeout": given}
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(**more),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    limit_waiting(trainer, 900)
    assert trainer.strategy._timeout == (given or timedelta(seconds=900))


def test_a_time_that_can_not_work_is_refused(root, in_tmp, capfd):
    assert main(fit_args(root, "--ranks.timeout_sec=0")) == 1
    assert "ranks.timeout_sec=0.0 must be above 0" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 on Windows")
@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_ends_the_other(root, tmp_path, killed):
    port = free_port()
    args = fit_args(root, *TWO_NODES, "--data.batch_size=4")
    folders = [tmp_path / f"node{node}" for node in (0, 1)]
    processes = [
        start(args, folder, node_env(node, port, PROBE_HOLD="4"))
        for node, folder in enumerate(folders)
    ]
    wait_until_held(processes, folders)
    os.kill(processes[killed].pid, signal.SIGKILL)
    (folders[1 - killed] / "go").touch()
    ended = finish(*processes)
    assert ended[killed][0] == -signal.SIGKILL
    status, text = ended[1 - killed]
    assert status == 1, text
    (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
    assert f"rank {killed} (host " in line
    assert "Traceback" not in text
