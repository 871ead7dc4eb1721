"""Ranks with different data are told so at the start."""

import pytest
from conftest import CLASSES, fit_args, write_classes
from nodes import finish, free_port, node_env, start

from imnet_pl.training.same_data import describe_difference

TWO_NODES = ["--trainer.num_nodes=2", "--trainer.devices=1", "--trainer.strategy=ddp"]


@pytest.mark.slow
def test_another_picture_on_one_node_ends_the_run_on_both(root, tmp_path):
    other = tmp_path / "other"
    write_classes(other / "train", dict.fromkeys(CLASSES, 8) | {CLASSES[0]: 9})
    write_classes(other / "val", dict.fromkeys(CLASSES, 3))
    port = free_port()
    processes = [
        start(fit_args(of_node, *TWO_NODES), tmp_path / f"node{i}", node_env(i, port))
        for i, of_node in enumerate((root, other))
    ]
    for status, text in finish(*processes):
        assert status == 1, text
        (line,) = [line for line in text.splitlines() if line.startswith("error:")]
        assert "the train data: 24 pictures (fingerprint " in line
        assert ") on rank 0 (host " in line
        assert "25 pictures (fingerprint " in line
        assert "the val data" not in line
        assert "Traceback" not in text
    assert not list(tmp_path.rglob("*.ckpt"))


def test_the_sentence_names_ranks_and_hosts():
    one = {"the val data": "9 pictures", "data.seed": "0"}
    other = {"the val data": "8 pictures", "data.seed": "0"}
    sentence = describe_difference([("a", one), ("a", one), ("b", other), ("c", one)])
    assert "the val data: 9 pictures on ranks 0, 1, 3 (hosts a, c), " in sentence
    assert "8 pictures on rank 2 (host b)." in sentence
    assert "seed" not in sentence


def test_what_is_absent_on_a_rank_is_named():
    sentence = describe_difference([("a", {"x": "1"}), ("b", {})])
    assert "x: 1 on rank 0 (host a), absent on rank 1 (host b)" in sentence
