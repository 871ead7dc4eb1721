"""The main job through the real entry point, on tiny generated pictures."""

import subprocess
import sys

import pytest
import torch
import yaml
from conftest import REPO, fit_args, logged

from imnet_pl.cli import VERBS, main


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
        assert "--data.root" in printed
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
        ("trainer: 3", "trainer=3 must be a mapping of arguments"),
        ("- a", "a --config file must be a mapping of arguments"),
        ("", "a --config file must be a mapping of arguments"),
        ("name: caf\xe9", "not UTF-8"),
        ("checkpoint: {monitor: top1}", "checkpoint.monitor: Expected a"),
        ("early_stopping: {mode: up}", "early_stopping.mode: Expected a"),
    ],
)
def test_a_wrong_key_or_type_is_one_sentence(tmp_path, capsys, yaml_text, sentence):
    file = tmp_path / "c.yaml"
    file.write_text(yaml_text, encoding="latin-1")
    assert main(["fit", "--config", str(file), "--data.root", "no"]) == 2
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
        "epoch_002.ckpt",
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
    ("flags", "sentence"),
    [
        (["--trainer.limit_train_batches=0"], "trainer.limit_train_batches=0"),
        (
            ["--checkpoint.monitor=val/top5"],
            "checkpoint.monitor='val/top5' needs 6 classes",
        ),
        (["--data.classes=[n01]"], "gives 1 class (n01)"),
        (["--trainer.max_epochs=-1"], "trainer.max_epochs=-1"),
        (["--model.min_lr=1"], "model.min_lr=1.0 is above the peak rate"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_can_not_work_is_known_early(
    root, in_tmp, tiny_network, capsys, flags, sentence
):
    assert main(fit_args(root, *flags)) == 1
    captured = capsys.readouterr()
    assert sentence in captured.err.splitlines()[-1]
    assert "epoch 1/" not in captured.out


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
