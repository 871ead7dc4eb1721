"""Every private name of Lightning or torch that the package uses: an upgrade that moves one fails here."""

import inspect
import multiprocessing.spawn
import re
from pathlib import Path

import torch
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from lightning.pytorch.cli import LightningCLI, SaveConfigCallback
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from lightning.pytorch.strategies.launchers import (
    _MultiProcessingLauncher,
    _SubprocessScriptLauncher,
)
from lightning.pytorch.trainer import Trainer
from torch._C import _remove_worker_pids, _set_worker_pids
from torch.distributed import default_pg_timeout
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torchmetrics import SumMetric

PACKAGE = Path(__file__).parents[1] / "imnet_pl"


def test_lightning():
    assert callable(LightningCLI._parse_ckpt_path)
    assert callable(LightningCLI._prepare_subcommand_parser)
    assert callable(LightningCLI.instantiate_trainer)
    assert callable(LightningCLI._run_subcommand)
    assert {"parser", "config"} <= set(SaveConfigCallback.__init__.__annotations__)
    trainer = Trainer(logger=False, accelerator="cpu", enable_progress_bar=False)
    assert callable(trainer.fit_loop.setup_data)
    assert issubclass(Tqdm, object)


def test_lightning_checkpoints_and_loops():
    for name in (
        "_save_checkpoint",
        "_save_topk_checkpoint",
        "_monitor_candidates",
        "_should_skip_saving_checkpoint",
        "_should_save_on_train_epoch_end",
    ):
        assert callable(getattr(ModelCheckpoint, name))
    trainer = Trainer(logger=False, accelerator="cpu", enable_progress_bar=False)
    assert trainer.fit_loop._should_accumulate() is False
    assert trainer.fit_loop.epoch_loop._batches_that_stepped == 0
    assert callable(trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor)
    assert trainer.fit_loop.epoch_loop.val_loop.max_batches == []
    state = trainer.fit_loop.state_dict()
    assert {
        "epoch_progress",
        "epoch_loop.batch_progress",
        "epoch_loop.val_loop.batch_progress",
    } <= set(state)


def test_lightning_ddp():
    assert DDPStrategy()._timeout == default_pg_timeout


def test_lightning_strategies():
    assert callable(DDPStrategy._configure_launcher)
    assert callable(_SubprocessScriptLauncher._check_can_spawn_children)
    assert callable(_MultiProcessingLauncher._wrapping_function)
    assert callable(_set_num_threads_if_needed)
    strategy = DDPStrategy(process_group_backend="gloo", start_method="spawn")
    assert (strategy._layer_sync, strategy._start_method) == (None, "spawn")
    assert strategy._process_group_backend == "gloo"
    entry = StrategyRegistry["ddp_spawn"]
    assert set(entry) >= {"strategy", "description", "init_params"}


def test_torchmetrics():
    metric = SumMetric()
    assert set(metric._defaults) == {"sum_value"}
    assert (metric._update_count, metric._computed) == (0, None)


def test_torch_loader():
    loader = DataLoader([1], num_workers=1, persistent_workers=True)
    assert loader._iterator is None
    iterator = _MultiProcessingDataLoaderIter
    for name in ("_shutdown_workers", "_get_data", "_try_get_data"):
        assert callable(getattr(iterator, name))
    assert callable(loader._get_iterator)
    source = inspect.getsource(iterator)
    for name in ("_workers", "_index_queues", "_workers_done_event", "_task_info"):
        assert f"self.{name} = " in source
    for name in ("_shutdown", "_worker_pids_set"):
        assert f"self.{name} = False" in source


def test_worker_pids_of_torch():
    """Its handler of SIGCHLD raises for these processes."""
    _set_worker_pids(1, (1,))
    _remove_worker_pids(1)


def test_a_process_that_is_being_started():
    source = inspect.getsource(multiprocessing.spawn)
    assert "process.current_process()._inheriting = True" in source


def test_shared_storage():
    assert torch.UntypedStorage._new_shared(8).is_shared()


def test_torch_compile():
    assert torch.nn.Identity()._compiled_call_impl is None
    assert hasattr(torch.compile(torch.nn.Identity()), "_orig_mod")


def test_torch():
    tensor = torch.zeros(4)
    storage = StorageWeakRef(tensor.untyped_storage())
    assert not storage.expired()
    del tensor
    assert storage.expired()
    picture = torch.randint(0, 256, (1, 9, 11, 3), dtype=torch.uint8).permute(
        0, 3, 1, 2
    )
    for kind in ("bilinear", "bicubic"):
        out = torch.empty((5, 6, 3), dtype=torch.uint8).permute(2, 0, 1)[None]
        getattr(torch.ops.aten, f"_upsample_{kind}2d_aa").out(
            picture, [5, 6], False, None, None, out=out
        )
        expected = torch.nn.functional.interpolate(
            picture, (5, 6), mode=kind, antialias=True
        )
        assert torch.equal(out, expected)


def test_the_list_is_complete():
    """No other private attribute of another object is touched."""
    allowed = {
        "_iterator",
        "_new_shared",
        "_shutdown_workers",
        "_parse_ckpt_path",
        "_prepare_subcommand_parser",
        "_run_subcommand",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
        "_replace",
        "_save_checkpoint",
        "_should_skip_saving_checkpoint",
        "_should_accumulate",
        "_broadcast_sigterm_tensor",
        "_workers",
        "_exit",
        "_batches_that_stepped",
        "_defaults",
        "_update_count",
        "_computed",
        "_configure_launcher",
        "_compiled_call_impl",
        "_asdict",
        "_wrapping_function",
        "_timeout",
    }
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        touched = set(re.findall(r"(?<!self)(?<!cls)\.(_[a-z]\w+)", text))
        assert touched <= allowed, (file, touched - allowed)
