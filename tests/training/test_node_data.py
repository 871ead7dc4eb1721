"""The data of a run on several nodes: indexed once a node, loaded with the cores of the node."""

from types import SimpleNamespace

import pytest
import torch
from conftest import fit_args, settle
from nodes import finish, free_port, node_env, start

from imnet_pl.core import machine
from imnet_pl.data.datamodule import ImageNetDataModule

FOUR_RANKS = ["--trainer.num_nodes=2", "--trainer.devices=2", "--trainer.strategy=ddp"]


@pytest.mark.slow
@pytest.mark.parametrize("is_shared", [False, True], ids=["own cache", "shared cache"])
def test_each_node_scans_once_for_all_its_ranks(root, tmp_path, is_shared):
    settle(root)
    port = free_port()
    args = fit_args(root, *FOUR_RANKS, "--data.batch_size=1", "--trainer.max_epochs=1")
    processes, files = [], []
    for node in (0, 1):
        folder = tmp_path / f"node{node}"
        files.append(tmp_path / f"scans{node}")
        cache = tmp_path / "cache" if is_shared else folder / "cache"
        more = {"PROBE_SCANS": str(files[node]), "IMNET_PL_CACHE": str(cache)}
        processes.append(start(args, folder, node_env(node, port, **more)))
    (status, text), (other_status, _) = finish(*processes)
    assert (status, other_status) == (0, 0), text
    scans = [file.read_text().split() if file.exists() else [] for file in files]
    if is_shared:  # the second may find what the first has kept
        assert all(scan in ([], ["train"], ["val"], ["train", "val"]) for scan in scans)
        assert {split for scan in scans for split in scan} == {"train", "val"}
    else:
        assert scans == [["train", "val"]] * 2
    assert " on each of 4 devices)" in text


def test_the_cores_are_shared_by_the_ranks_of_the_node_not_by_all(root, monkeypatch):
    """Two of eight ranks are on this node, which has six cores."""
    monkeypatch.setattr(machine, "usable_cores", lambda: 6)
    data = ImageNetDataModule(root=str(root), batch_size=8, num_workers=0)
    data.setup("fit")
    cpu = torch.device("cpu")
    strategy = SimpleNamespace(root_device=cpu, num_processes=2)
    data.trainer = SimpleNamespace(strategy=strategy, global_rank=5, world_size=8)
    assert data.train_dataloader().dataset.num_threads == 3
