"""The main job through the real entry point, on tiny generated pictures."""

import csv
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import CLASSES, write_classes
from torch import nn

from imnet_pl.cli import VERBS, main

REPO = Path(__file__).parents[1]


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """Runs are written below the test's own folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tiny_network(monkeypatch):
    """A network that costs nothing and has no BatchNorm."""

    def build(arch, num_classes):
        return nn.Sequential(
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, num_classes)
        )

    monkeypatch.setattr("imnet_pl.model.classifier.build_network", build)


def fit_args(root, *more):
    small = [
        "--data.image_size",
        "32",
        "--data.batch_size",
        "8",
        "--data.num_workers",
        "0",
    ]
    return [
        "fit",
        "--data.root",
        str(root),
        *small,
        "--trainer.accelerator",
        "cpu",
        *more,
    ]


def rows_of(file):
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def logged(file, name):
    return [float(row[name]) for row in rows_of(file) if row.get(name)]


def run_cli(*args, cwd=REPO):
    command = [sys.executable, str(REPO / "cli.py"), *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


def test_help_lists_every_verb_without_torch():
    code = (
        "import sys; from imnet_pl.cli import main; status = main(['--help']); "
        "sys.exit(status or 'torch' in sys.modules or 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO
    )
    assert done.returncode == 0, done.stderr
    assert all(verb in done.stdout for verb in VERBS)


@pytest.mark.parametrize("argv", [["vlidate"], []])
def test_unknown_verb_exits_2_with_the_list(argv, capsys):
    assert main(argv) == 2
    printed = "".join(capsys.readouterr())
    assert all(verb in printed for verb in VERBS)


def test_each_verb_has_help(capsys):
    for verb in VERBS:
        assert main([verb, "--help"]) == 0
        printed = capsys.readouterr().out
        assert "--data.train_scale" in printed
        assert "weights_only" not in printed


@pytest.mark.parametrize(
    ("yaml_text", "sentence"),
    [
        (
            "model: {archh: resnet18}",
            "'model.archh' is no argument. Did you mean 'model.arch'?",
        ),
        (
            "trainer: {max_epoch: 3}",
            "'trainer.max_epoch' is no argument. Did you mean 'trainer.max_epochs'?",
        ),
        (
            "data: {batch_size: many}",
            "data.batch_size: Expected a <class 'int'>. Got value: many.",
        ),
        ("data: {source: foldr}", "data.source: Expected a"),
        ("modle: {arch: resnet18}", "'modle"),
        ("early_stoping: {patience: 3}", "'early_stoping"),
        ("trainer: {max_epochs: 3", "Problems parsing config"),
        ("trainer: {callbacks: [{class_path: EarlyStoping}]}", "EarlyStoping"),
        ("name: [1", "Problems parsing config"),
    ],
)
def test_a_wrong_key_or_type_is_one_sentence(tmp_path, capsys, yaml_text, sentence):
    file = tmp_path / "c.yaml"
    file.write_text(yaml_text)
    assert main(["fit", "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert sentence in error
    assert len(error.splitlines()) == 1


def test_fit_then_validate_gives_the_logged_figures(root, in_tmp, capsys):  # S28, S30
    """ResNet-18 with real worker processes; validate needs the checkpoint alone."""
    args = fit_args(
        root, "--model.arch", "resnet18", "--trainer.max_epochs", "2", "--name", "try"
    )
    assert main([*args, "--data.num_workers", "1", "--model.warmup_epochs", "0"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line[:10] for line in out if line.startswith("epoch")] == [
        "epoch 1/2 ",
        "epoch 2/2 ",
    ]
    run = in_tmp / "runs" / "try" / "version_0"
    assert {p.name for p in run.iterdir()} >= {
        "config.yaml",
        "metrics.csv",
        "checkpoints",
    }
    assert {p.name for p in (run / "checkpoints").iterdir()} == {
        "best.ckpt",
        "last.ckpt",
    }

    best = run / "checkpoints" / "best.ckpt"
    top1, loss = (
        logged(run / "metrics.csv", "val/top1"),
        logged(run / "metrics.csv", "val/loss"),
    )
    epoch = torch.load(best, weights_only=True)["epoch"]
    assert top1[epoch] == max(top1)
    assert main(["validate", "--ckpt_path", str(best)]) == 0
    line = capsys.readouterr().out
    assert f"val loss {loss[epoch]:.6f}  top1 {top1[epoch]:.6f}" in line
    assert line.rstrip().endswith("n 9")
    assert "top5" not in line


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
    assert main([*fit_args(root), "--ckpt_path", str(best)]) == 1
    assert "3 classes (n01, n02, n03), the data has 4" in capsys.readouterr().err
    (root / "train" / "n04").rename(root / "other")
    (root / "train" / "n03").rename(root / "train" / "n05")
    assert main([*fit_args(root), "--ckpt_path", str(best)]) == 1
    assert "'n03' is 'n05' here" in capsys.readouterr().err
    (root / "val" / "n03").rename(root / "val" / "n09")
    assert main(["validate", "--ckpt_path", str(best)]) == 1
    assert "n09" in capsys.readouterr().err


def test_evaluation_without_a_model_is_refused(root, capsys):
    assert main(["validate", "--data.root", str(root)]) == 1
    assert "--ckpt_path" in capsys.readouterr().err


def test_missing_root_draws_the_layouts(tmp_path, capsys):
    assert (
        main(
            [
                "fit",
                "--config",
                str(REPO / "configs" / "resnet50.yaml"),
                "--data.root",
                str(tmp_path / "no"),
            ]
        )
        == 1
    )
    error = capsys.readouterr().err
    assert "--data.root DIR" in error
    assert "val/val_label.txt" in error


@pytest.mark.parametrize(
    "flag", ["--trainer.strategy=foo", "--trainer.precision=8", "--trainer.devices=-7"]
)
def test_bad_trainer_values_are_no_traceback(root, in_tmp, tiny_network, capsys, flag):
    assert main(fit_args(root, flag)) in (1, 2)
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: trainer")


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


def test_two_runs_are_bitwise_equal(root, in_tmp):  # S26
    more = [
        "--model.arch",
        "resnet18",
        "--trainer.max_epochs",
        "2",
        "--data.num_threads",
    ]
    states = []
    for version, threads in enumerate(("1", "3")):
        assert main(fit_args(root, *more, threads)) == 0
        last = (
            in_tmp / "runs" / "run" / f"version_{version}" / "checkpoints" / "last.ckpt"
        )
        states.append(torch.load(last, weights_only=True)["state_dict"])
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize(
    "flags",
    [
        ["--trainer.fast_dev_run", "1"],
        ["--trainer.barebones", "true"],
        ["--trainer.logger", "false"],
        ["--trainer.limit_val_batches", "0"],
        ["--trainer.limit_train_batches", "1"],
        ["--trainer.enable_checkpointing", "false"],
        ["--trainer.enable_progress_bar", "true"],
        ["--trainer.callbacks+=RichProgressBar"],
    ],
    ids=lambda flags: flags[0].split(".")[1],
)
@pytest.mark.filterwarnings(
    "ignore::UserWarning"
)  # Lightning's about what is switched off
def test_trainer_switches_work(root, in_tmp, tiny_network, flags):
    if "Rich" in flags[0]:
        pytest.importorskip("rich")
    assert main(fit_args(root, "--trainer.max_epochs", "1", *flags)) == 0
    assert not (in_tmp / "config.yaml").exists()
    assert not (in_tmp / "checkpoints").exists() or "logger" in flags[0]


def test_progress_bar_on_a_terminal(
    root, in_tmp, tiny_network, capsys, monkeypatch
):  # S27
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert (
        main(fit_args(root, "--trainer.max_epochs", "1", "--model.warmup_epochs", "0"))
        == 0
    )
    out = "".join(capsys.readouterr())
    for shown in ("loss=", "lr=", "pictures/s="):
        assert shown in out
    line = r"epoch 1/1  train loss [\d.]+  val loss .*n 9  [\d.]+ s"
    assert any(re.fullmatch(line, text) for text in out.splitlines()), out


def test_deterministic_turns_benchmark_off(root, in_tmp, tiny_network):  # S26
    benchmark = ["--trainer.benchmark", "true", "--trainer.max_epochs", "1"]
    for more, expected in ([], True), (["--trainer.deterministic", "true"], False):
        try:
            assert main(fit_args(root, *benchmark, *more)) == 0
            assert torch.backends.cudnn.benchmark is expected
        finally:
            torch.use_deterministic_algorithms(False)
            torch.backends.cudnn.benchmark = False
    written = yaml.safe_load(
        (in_tmp / "runs" / "run" / "version_1" / "config.yaml").read_text()
    )
    assert written["trainer"]["benchmark"] is False


def test_best_checkpoint_is_named_at_the_end(root, in_tmp, tiny_network, capsys):
    chosen = ["--checkpoint.monitor", "val/loss", "--checkpoint.mode", "min"]
    assert main(fit_args(root, "--trainer.max_epochs", "2", *chosen)) == 0
    losses = logged(in_tmp / "runs" / "run" / "version_0" / "metrics.csv", "val/loss")
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith(f"best val/loss {min(losses):.4f}: ")
    assert last_line.endswith("best.ckpt")


@pytest.mark.parametrize("workers", ["0", "1"])
def test_unreadable_pictures(root, in_tmp, tiny_network, capsys, workers):  # S12
    (root / "val" / "n02" / "p1.jpg").write_bytes(b"no picture")
    args = fit_args(root, "--trainer.max_epochs", "1", "--data.num_workers", workers)
    assert main(args) == 0
    assert "n 9  1 unreadable, counted as wrong" in capsys.readouterr().out
    (root / "train" / "n02" / "p1.jpg").write_bytes(b"no picture")
    assert main(args) == 1
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith("error: picture ")
    assert "p1.jpg' (index 9) can not be read" in last_line


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


@pytest.mark.slow
def test_recipe_at_224_px_and_validate_word_for_word(root, in_tmp):
    """configs/resnet50.yaml itself for two steps, then validate from the checkpoint's folder."""
    two_steps = [
        "--trainer.max_steps",
        "2",
        "--data.batch_size",
        "4",
        "--trainer.accelerator",
        "cpu",
    ]
    recipe = str(REPO / "configs" / "resnet50.yaml")
    done = run_cli(
        "fit", "--config", recipe, "--data.root", str(root), *two_steps, cwd=in_tmp
    )
    assert done.returncode == 0, done.stderr
    folder = in_tmp / "runs" / "resnet50" / "version_0" / "checkpoints"
    (folder / "cli.py").symlink_to(REPO / "cli.py")
    command = [sys.executable, "cli.py", "validate", "--ckpt_path", "best.ckpt"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("n 9")


@pytest.mark.parametrize("command", [["-m", "imnet_pl"], [str(REPO / "cli.py")]])
def test_entry_points(command):
    done = subprocess.run(
        [sys.executable, *command, "nonsense"], capture_output=True, text=True, cwd=REPO
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: 'nonsense' is no verb.")
