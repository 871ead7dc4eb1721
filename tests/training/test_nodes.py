"""A run on two hosts, here two network namespaces with a cable between them (Gloo)."""

import subprocess

import pytest
import torch
from conftest import fit_args
from node_probe import build_network
from nodes import Hosts, finish, node_env, start, wait_until_held

from imnet_pl.cli import main
from imnet_pl.training.contract import read_contract

pytestmark = pytest.mark.slow

PORT = 29511  # of a host that is made here: nobody else has it
CHECKPOINTS = "runs/run/version_0/checkpoints"
TWO_NODES = ["--trainer.num_nodes=2", "--trainer.devices=1", "--trainer.strategy=ddp"]
ONE_NODE = ["--trainer.num_nodes=1", "--trainer.strategy=auto"]


@pytest.fixture
def hosts():
    """Two hosts; a test is skipped where this process may not make them."""
    hosts = Hosts()
    try:
        hosts.build()
        yield hosts
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    finally:
        hosts.remove()


@pytest.fixture(autouse=True)
def _network(monkeypatch):
    monkeypatch.setattr("imnet_pl.model.classifier.build_network", build_network)


def start_on_both(hosts, folder, args, is_torchrun=False, **env):
    """Start the command line on both hosts, each in a folder of its own, by variables or by torchrun."""
    processes = []
    for node, name in enumerate(hosts.ends):
        own = node_env(node, PORT, hosts.ADDRESSES[0], GLOO_SOCKET_IFNAME=name, **env)
        launcher = ()
        if is_torchrun:
            del own["NODE_RANK"]
            launcher = ("--nnodes=2", f"--node_rank={node}", "--nproc_per_node=1")
            launcher += (f"--master_addr={hosts.ADDRESSES[0]}",)
            launcher += (f"--master_port={PORT}",)
        where = folder / f"host{node}"
        processes.append(start(args, where, own, hosts.on(node), launcher))
    return processes


def assert_close(one, other):
    """The weights of two checkpoints differ by rounding at most."""
    one, other = (
        torch.load(file, weights_only=True)["state_dict"] for file in (one, other)
    )
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=1e-6, rtol=0)


@pytest.mark.parametrize("is_torchrun", [False, True], ids=["variables", "torchrun"])
def test_two_hosts_train_as_one(hosts, root, in_tmp, is_torchrun):
    """Two hosts with 4 pictures each take the steps of one with 8; one of them writes."""
    short = ["--trainer.max_epochs=1"]
    assert main(fit_args(root, *short)) == 0
    args = fit_args(root, *short, *TWO_NODES, "--data.batch_size=4")
    shown = finish(*start_on_both(hosts, in_tmp, args, is_torchrun))
    for node, (status, text) in enumerate(shown):
        assert status == 0, text
        assert text.count("a step has ") == text.count("epoch 1/1") == 1 - node
    assert_close(
        in_tmp / CHECKPOINTS / "last.ckpt", in_tmp / "host0" / CHECKPOINTS / "last.ckpt"
    )
    assert not list((in_tmp / "host1").iterdir())


def test_a_host_that_is_cut_off_ends_the_run_which_goes_on_on_one(
    hosts, root, in_tmp, monkeypatch
):
    """Each says of whom nothing is heard; the resumed run takes the steps that one host takes."""
    args = fit_args(root, "--trainer.max_epochs=3")
    assert main(args) == 0
    more = ["--data.batch_size=4", "--checkpoint.every_minutes=1e-9"]
    more += ["--ranks.timeout_sec=20"]
    # 24 pictures, 8 a step: 3 steps an epoch.
    processes = start_on_both(hosts, in_tmp, [*args, *TWO_NODES, *more], PROBE_HOLD="5")
    folders = [in_tmp / f"host{node}" for node in (0, 1)]
    wait_until_held(processes, folders)
    hosts.cut()
    for folder in folders:
        (folder / "go").touch()
    (status, first), (other_status, second) = finish(*processes)
    assert (status, other_status) == (1, 1), first + second
    for text in (first, second):
        assert "Traceback" not in text
    last = folders[0] / CHECKPOINTS / "last.ckpt"
    error = [line for line in first.splitlines() if line.startswith("error: ")]
    assert "rank 1 (host host-b) gives no sign of life for " in error[0], first
    assert "s, last heard of at step " in error[0]
    assert f"To go on: python cli.py fit --ckpt_path {CHECKPOINTS}/last.ckpt" in first
    error = [line for line in second.splitlines() if line.startswith("error: ")]
    assert "of rank 0 (host host-a)" in error[0], second
    assert f"what is saved is with rank 0 (host host-a), in '{CHECKPOINTS}'" in error[0]
    progress = read_contract(str(last))["progress"]
    assert (progress["epochs"], progress["batches"]) == (1, 2)
    monkeypatch.chdir(folders[0])
    resume = ["fit", "--ckpt_path", f"{CHECKPOINTS}/last.ckpt", "--data.batch_size=8"]
    assert main([*resume, *ONE_NODE]) == 0
    progress = read_contract(str(last))["progress"]
    assert (progress["epochs"], progress["steps"]) == (3, 9)
    assert_close(in_tmp / CHECKPOINTS / "last.ckpt", last)


def test_a_host_that_nobody_joins_says_so(hosts, root, in_tmp):
    args = fit_args(root, *TWO_NODES, "--ranks.timeout_sec=5")
    env = node_env(0, PORT, hosts.ADDRESSES[0], GLOO_SOCKET_IFNAME=hosts.ends[0])
    ((status, text),) = finish(start(args, in_tmp / "host0", env, hosts.on(0)))
    assert status == 1
    assert f"MASTER_ADDR:MASTER_PORT={hosts.ADDRESSES[0]}:{PORT} within" in text, text
    assert "Traceback" not in text
