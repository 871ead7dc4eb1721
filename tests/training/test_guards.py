"""What ends a run early or warns before it starts."""

from conftest import fit_args

from imnet_pl.cli import main


def test_early_stopping_after_exactly_10_epochs_without_gain(
    root, in_tmp, tiny_network, capsys
):  # S29
    still = [
        "--model.base_lr",
        "0",
        "--model.min_lr",
        "0",
        "--trainer.max_epochs",
        "30",
    ]
    assert main(fit_args(root, *still, "--early_stopping.patience", "10")) == 0
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("epoch")]
    assert len(lines) == 11


def test_gpu_that_torch_does_not_use_is_said_once(
    root, in_tmp, tiny_network, capsys, monkeypatch
):
    monkeypatch.setattr(
        "imnet_pl.training.guards._nvidia_gpus", lambda: ["NVIDIA GeForce X"]
    )
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for cuda, cure in ((None, "CPU build"), ("13.0", "newer NVIDIA driver")):
        monkeypatch.setattr("torch.version.cuda", cuda)
        main(fit_args(root, "--trainer.fast_dev_run", "1"))
        error = capsys.readouterr().err
        assert error.count("although NVIDIA GeForce X is there") == 1
        assert cure in error
