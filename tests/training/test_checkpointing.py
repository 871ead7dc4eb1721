"""best.ckpt and last.ckpt: what they say, and what is refused."""

import shutil

import pytest
import torch
import yaml
from conftest import CLASSES, fit_args, logged, write_classes

from imnet_pl.cli import main


def test_checkpoint_says_what_it_is(root, in_tmp, tiny_network):
    main(fit_args(root, "--trainer.max_epochs", "1", "--model.warmup_epochs", "0"))
    last = in_tmp / "runs" / "run" / "version_0" / "checkpoints" / "last.ckpt"
    contract = torch.load(last, weights_only=True)["imnet_pl"]
    assert contract["classes"] == list(CLASSES)
    assert (contract["arch"], contract["weights"]) == ("resnet50", "raw")
    assert (contract["image_size"], contract["eval_resize"]) == (32, 37)
    assert contract["mean"] == [0.485, 0.456, 0.406]
    assert contract["data"]["train"]["num_samples"] == 24
    assert len(contract["data"]["train"]["fingerprint"]) == 64
    config = yaml.safe_load(contract["config"])
    assert config["data"]["root"] == str(root)
    assert config["data"]["seed"] == 0
    assert "num_classes" not in config["model"]


def test_evaluation_needs_neither_train_nor_the_old_place(
    root, in_tmp, tiny_network, capsys
):
    main(
        fit_args(root, "--trainer.max_epochs", "1", "--trainer.precision", "bf16-mixed")
    )
    best = in_tmp / "runs" / "run" / "version_0" / "checkpoints" / "best.ckpt"
    shutil.rmtree(root / "train")
    root.rename(in_tmp / "elsewhere")
    capsys.readouterr()
    assert main(["validate", "--ckpt_path", str(best)]) == 1
    assert "--data.root" in capsys.readouterr().err
    moved = ["--ckpt_path", str(best), "--data.root", str(in_tmp / "elsewhere")]
    outputs = set()
    for more in ([], ["--data.eval_batch_size", "1"], ["--data.eval_batch_size=7"]):
        assert main(["validate", *moved, *more]) == 0
        captured = capsys.readouterr()
        assert "bfloat16" in captured.err
        outputs.add(captured.out)
    assert len(outputs) == 1
    assert main(["test", *moved]) == 0
    assert "no split 'test'" in capsys.readouterr().err


def test_flags_and_configs_override_the_checkpoint(root, in_tmp, tiny_network, capsys):
    main(fit_args(root, "--trainer.max_epochs", "1"))
    best = in_tmp / "runs" / "run" / "version_0" / "checkpoints" / "best.ckpt"
    file = in_tmp / "c.yaml"
    file.write_text(
        "data: {image_size: 48, eval_resize: 64}\ntrainer: {limit_val_batches: 0.5}\n"
    )
    args = [
        "validate",
        "--config",
        str(file),
        "--data.eval_batch_size",
        "4",
        "--ckpt_path",
        str(best),
    ]
    capsys.readouterr()
    assert main(args) == 0
    assert capsys.readouterr().out.rstrip().endswith("n 4")
    assert main([*args, "--data.eval_resize", "40"]) == 1
    assert (
        "data.eval_resize=40 must be at least data.image_size=48"
        in capsys.readouterr().err
    )


def test_unknown_keys_of_an_older_checkpoint_are_dropped_with_a_notice(
    root, in_tmp, tiny_network, capsys
):
    main(fit_args(root, "--trainer.max_epochs", "1"))
    best = in_tmp / "runs" / "run" / "version_0" / "checkpoints" / "best.ckpt"
    content = torch.load(best, weights_only=True)
    config = yaml.safe_load(content["imnet_pl"]["config"])
    config["model"]["gone"] = 1
    content["imnet_pl"]["config"] = yaml.safe_dump(config)
    torch.save(content, best)
    assert main(["validate", "--ckpt_path", str(best)]) == 0
    assert "model arguments are no longer known: gone" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["fit", "validate"])
@pytest.mark.parametrize(
    "damage", ["cut", "empty", "text", "folder", "absent", "foreign"]
)
def test_bad_checkpoints_are_one_sentence(
    root, in_tmp, tiny_network, capsys, verb, damage
):
    file = in_tmp / "x.ckpt"
    if damage == "folder":
        file.mkdir()
    elif damage == "foreign":
        torch.save({"state_dict": {"w": torch.zeros(3)}}, file)
    elif damage != "absent":
        main(fit_args(root, "--trainer.max_epochs", "1"))
        best = in_tmp / "runs" / "run" / "version_0" / "checkpoints" / "best.ckpt"
        content = best.read_bytes()
        file.write_bytes(
            {"cut": content[:-300], "empty": b"", "text": b"hello"}[damage]
        )
    capsys.readouterr()
    args = fit_args(root) if verb == "fit" else ["validate"]
    assert main([*args, "--ckpt_path", str(file)]) == 1
    error = capsys.readouterr().err.strip()
    assert "x.ckpt" in error.splitlines()[-1]
    assert "Traceback" not in error


def test_checkpoint_of_another_arch_or_class_count(root, in_tmp, tiny_network, capsys):
    main(fit_args(root, "--trainer.max_epochs", "1"))
    best = in_tmp / "runs" / "run" / "version_0" / "checkpoints" / "best.ckpt"
    for args in (["validate"], fit_args(root)):
        assert main([*args, "--ckpt_path", str(best), "--model.arch", "resnet18"]) == 1
        assert (
            "model.arch='resnet50', but model.arch='resnet18'"
            in capsys.readouterr().err
        )
    write_classes(root / "train", {"n04": 3})
    assert (
        main([*fit_args(root, "--trainer.max_epochs=2"), "--ckpt_path", str(best)]) == 1
    )
    assert "3 classes (n01, n02, n03), the data has 4" in capsys.readouterr().err
    (root / "train" / "n04").rename(root / "other")
    (root / "train" / "n03").rename(root / "train" / "n05")
    assert (
        main([*fit_args(root, "--trainer.max_epochs=2"), "--ckpt_path", str(best)]) == 1
    )
    assert "'n03' is 'n05' here" in capsys.readouterr().err
    (root / "val" / "n03").rename(root / "val" / "n09")
    assert main(["validate", "--ckpt_path", str(best)]) == 1
    assert "n09" in capsys.readouterr().err


def test_checkpoint_named_in_a_config(root, in_tmp, tiny_network, capsys):
    main(fit_args(root, "--trainer.max_epochs", "1"))
    file = in_tmp / "c.yaml"
    file.write_text(
        f"ckpt_path: {in_tmp / 'runs/run/version_0/checkpoints/best.ckpt'}\n"
    )
    assert main(["validate", "--config", str(file)]) == 2
    assert "on the command line" in capsys.readouterr().err
    assert (
        main([*fit_args(root, "--model.arch", "resnet18"), "--config", str(file)]) == 1
    )
    assert "model.arch='resnet50'" in capsys.readouterr().err


def test_best_checkpoint_is_named_at_the_end(root, in_tmp, tiny_network, capsys):
    chosen = ["--checkpoint.monitor", "val/loss", "--checkpoint.mode", "min"]
    assert main(fit_args(root, "--trainer.max_epochs", "2", *chosen)) == 0
    losses = logged(in_tmp / "runs" / "run" / "version_0" / "metrics.csv", "val/loss")
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith(f"best val/loss {min(losses):.4f}: ")
    assert last_line.endswith("best.ckpt")
