"""What a strategy decides or refuses before ranks start."""

import pickle
import signal
import socket
import sys

import pytest
from conftest import fit_args
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy

from imnet_pl.cli import main
from imnet_pl.core.errors import UserError
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.training import launcher, strategies
from imnet_pl.training.data_parallel import DataParallelStrategy
from imnet_pl.training.launcher import (
    RankLauncher,
    describe_status,
    rank_command,
    user_error_in,
)
from imnet_pl.training.strategies import (
    ExactDDPStrategy,
    check_devices,
    choose_backend,
    prepare_windows,
)

TWO = ["--trainer.devices=2", "--trainer.strategy=ddp"]


def trainer(strategy, devices=2, **more):
    strategies.register_strategies()
    return Trainer(
        strategy=strategy,
        devices=devices,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        **more,
    )


@pytest.mark.parametrize("name", ["ddp", "auto"])
def test_ddp_and_auto_are_this_programs(name):
    strategy = trainer(name).strategy
    assert type(strategy) is ExactDDPStrategy
    assert isinstance(strategy.launcher, RankLauncher)
    assert strategy.process_group_backend == "gloo"
    assert strategy._ddp_kwargs == {
        "find_unused_parameters": False,
        "gradient_as_bucket_view": True,
    }


def test_relatives_of_ddp_are_this_programs_too():
    strategy = trainer("ddp_spawn_find_unused_parameters_true").strategy
    assert type(strategy) is ExactDDPStrategy
    assert strategy._ddp_kwargs["find_unused_parameters"] is True
    assert strategy._start_method == "spawn"


def test_a_strategy_can_be_given_as_an_object():
    given = ExactDDPStrategy(process_group_backend="gloo", static_graph=False)
    assert trainer(given).strategy is given
    assert (
        type(trainer(DDPStrategy(process_group_backend="gloo")).strategy) is DDPStrategy
    )


@pytest.mark.parametrize(
    ("device", "platform", "chosen"),
    [("cuda", "linux", "nccl"), ("cuda", "win32", "gloo"), ("cpu", "linux", "gloo")],
)
def test_backend_follows_device_and_system(device, platform, chosen, monkeypatch):
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    assert choose_backend(None, device, platform, {}) == chosen
    assert choose_backend("gloo", device, platform, {}) == "gloo"
    variable = {strategies.BACKEND_VARIABLE: "gloo"}
    assert choose_backend(None, device, platform, variable) == "gloo"


@pytest.mark.parametrize(
    ("device", "platform", "where"),
    [("cuda", "win32", "on Windows"), ("cpu", "linux", "without CUDA devices")],
)
def test_nccl_is_refused_where_it_can_not_work(device, platform, where, monkeypatch):
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    with pytest.raises(UserError, match=f"process_group_backend=nccl .* {where}"):
        choose_backend("nccl", device, platform, {})
    variable = {strategies.BACKEND_VARIABLE: "nccl"}
    with pytest.raises(
        UserError, match=f"{strategies.BACKEND_VARIABLE}=nccl .* {where}"
    ):
        choose_backend(None, device, platform, variable)


def test_nccl_on_the_cpu_is_one_sentence(root, in_tmp, monkeypatch, capfd):
    monkeypatch.setenv(strategies.BACKEND_VARIABLE, "nccl")
    assert main(fit_args(root, *TWO)) == 1
    assert capfd.readouterr().err.startswith(
        f"error: {strategies.BACKEND_VARIABLE}=nccl"
    )


@pytest.mark.parametrize("version", ["2.8.0+cu128", "2.9.1", "2.10.0"])
def test_torch_without_gloo_on_windows_is_refused(version):
    with pytest.raises(UserError, match=r"install torch 2.11 or later, or use .* dp"):
        prepare_windows(version, {})


def test_libuv_on_windows_is_switched_off_or_refused():
    environ = {}
    prepare_windows("2.11.0", environ)
    prepare_windows("2.14.1+cpu", environ)
    assert environ == {"USE_LIBUV": "0"}
    with pytest.raises(UserError, match=r"USE_LIBUV=1 .* set it to 0"):
        prepare_windows("2.14.1", {"USE_LIBUV": "1"})


def test_windows_is_looked_at_when_the_trainer_is_made(monkeypatch):
    monkeypatch.setattr(strategies.sys, "platform", "win32")
    monkeypatch.setattr(strategies.torch, "__version__", "2.9.1")
    with pytest.raises(UserError, match=r"torch 2\.9\.1 for Windows"):
        trainer("ddp")


def test_synchronised_batchnorm_needs_gpus(root, in_tmp, capfd):
    assert main(fit_args(root, *TWO, "--trainer.sync_batchnorm=true")) == 1
    assert "trainer.sync_batchnorm=true needs GPUs" in capfd.readouterr().err


def test_a_port_in_use_is_an_error_at_once(root, in_tmp, monkeypatch, capfd):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        assert main(fit_args(root, *TWO)) == 1
    assert f"MASTER_PORT={port} can not be used" in capfd.readouterr().err


def test_a_free_port_is_fine():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    launcher.require_free_port(port)
    with pytest.raises(UserError, match="MASTER_PORT=70000 "):
        launcher.require_free_port(70000)


@pytest.mark.parametrize("devices", [3, "3", [0, 2], "0,2"])
def test_more_gpus_than_there_are(devices, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(UserError, match="more than the 2 CUDA devices"):
        check_devices("auto", devices)
    check_devices("cpu", devices)


@pytest.mark.parametrize("devices", [2, 1, "2", "auto", -1, "-1", [0, 1], "0,1", "1,"])
def test_gpus_that_are_there(devices, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    check_devices("gpu", devices)


def test_more_processes_than_cores_are_said(monkeypatch, caplog):
    monkeypatch.setattr(strategies, "usable_cores", lambda: 2)
    trainer("ddp", devices=3)
    assert "trainer.devices=3 starts as many processes" in caplog.text
    caplog.clear()
    trainer("ddp", devices=2)
    assert "trainer.devices" not in caplog.text


def test_a_script_and_a_module_start_again_as_they_were(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "cli.py"
    script.touch()
    assert rank_command(["cli.py", "fit", "--x=1"], None) == [
        *(sys.executable, str(script), "fit", "--x=1")
    ]
    module = rank_command(["/x/imnet_pl/__main__.py", "fit"], "imnet_pl.__main__")
    assert module == [sys.executable, "-m", "imnet_pl.__main__", "fit"]
    console_script = tmp_path / "imnet-pl"
    console_script.touch()
    started = rank_command([str(console_script), "fit"], None)
    assert started == [sys.executable, str(console_script), "fit"]


@pytest.mark.parametrize("main_name", [None, "__main__"])
def test_a_console_script_of_windows_starts_again_as_module(main_name, tmp_path):
    """The program is a .exe that holds an archive, and its name in argv ends before the point, or does not."""
    (tmp_path / "imnet-pl.exe").touch()
    for name in ("imnet-pl.exe", "imnet-pl"):
        command = rank_command([str(tmp_path / name), "fit", "--x=1"], main_name)
        assert command == [sys.executable, "-m", "imnet_pl", "fit", "--x=1"]


def test_how_a_process_ended_in_words():
    assert describe_status(-signal.SIGTERM) == "was killed by SIGTERM"
    assert describe_status(3) == "ended with status 3"


def test_threads_are_divided_among_ranks_and_not_among_devices_of_dp(root, monkeypatch):
    monkeypatch.setattr("imnet_pl.core.machine.usable_cores", lambda: 8)
    threads = {}
    for name, devices in (("auto", 1), ("ddp", 2), ("dp", 2)):
        data = ImageNetDataModule(root=str(root), batch_size=4, image_size=32)
        data.trainer = trainer(name, devices)
        data.setup("fit")
        loader = data.train_dataloader()
        threads[name] = loader.num_workers * loader.dataset.num_threads
        assert loader.batch_size == 4
    assert threads == {"auto": 8, "ddp": 4, "dp": 8}


def test_dp_is_one_rank_that_can_not_be_many(monkeypatch):
    strategy = trainer("dp").strategy
    assert type(strategy) is DataParallelStrategy
    assert (strategy.world_size, strategy.global_rank) == (1, 0)
    assert strategy.launcher is None
    with pytest.raises(UserError, match=r"trainer.num_nodes=2 needs .*=ddp"):
        trainer("dp", num_nodes=2)
    with pytest.raises(UserError, match=r"sync_batchnorm=true needs .*=ddp"):
        trainer("dp", sync_batchnorm=True)
    for name in ("RANK", "GROUP_RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    with pytest.raises(UserError, match="dp is one process, but 2 were started"):
        trainer("dp")


def test_an_error_in_a_spawned_rank_is_its_sentence():
    trace = (
        'Traceback:\n  File "x"\nimnet_pl.core.errors.UserError: data.root=1 is bad.\n'
    )
    assert user_error_in(trace) == "data.root=1 is bad."
    assert user_error_in("Traceback:\nRuntimeError: gloo\n") == ""


def test_what_ddp_spawn_sends_can_be_pickled():
    strategy = trainer("ddp_spawn").strategy
    assert type(pickle.loads(pickle.dumps(strategy))) is ExactDDPStrategy
