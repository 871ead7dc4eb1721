"""What the README shows works, and the commands of the first screen are CI's."""

import re
import subprocess
import sys

import pytest
from conftest import REPO

from imnet_pl.cli import VERBS, main

README = (REPO / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]


def test_first_screen_has_two_commands():
    first_screen = README.split("## Train and evaluate")[0]
    assert first_screen.count("```sh") == 2
    assert COMMANDS[0].endswith("&& python cli.py fit --config configs/quickstart.yaml")
    assert COMMANDS[1].endswith("&& python -m pytest")
    assert "CUDA wheel" in first_screen


@pytest.mark.filterwarnings(
    "ignore::UserWarning"
)  # Lightning's about a deterministic trainer
def test_commands_in_their_order(root, in_tmp, tiny_network, monkeypatch):
    """On tiny pictures and a tiny network, one epoch of two batches each."""

    monkeypatch.setattr("imnet_pl.model.classifier.load_weights", lambda *_: None)
    (in_tmp / "configs").symlink_to(REPO / "configs")
    short = [
        "--trainer.accelerator",
        "cpu",
        "--trainer.max_epochs",
        "1",
        "--data.num_workers",
        "0",
    ]
    short += [
        "--trainer.limit_train_batches",
        "2",
        "--data.source",
        "folder",
        "--data.image_size",
        "16",
    ]
    ran = set()
    for command in COMMANDS[2:]:
        words = command.replace("DIR", str(root)).split()
        assert words[:2] == ["python", "cli.py"], command
        # tests/tools runs the first on a network that can learn, tests/training the second on ranks.
        if {"--smoke", "--trainer.devices"} & set(words):
            continue
        more = short if words[2] == "fit" else []
        assert main([*words[2:], *more]) == 0, command
        ran.add(words[2])
    assert ran == set(VERBS)


def test_every_verb_is_in_the_table():
    table = README.split("| verb |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == list(VERBS)


def test_every_recipe_is_in_the_table():
    rows = set(re.findall(r"^\| `(\w+\.yaml)` \|", README, re.MULTILINE))
    assert rows == {file.name for file in (REPO / "configs").glob("*.yaml")}


def test_python_example(root, tmp_path):
    (code,) = [text for kind, text in BLOCKS if kind == "python"]
    script = tmp_path / "example.py"
    script.write_text(code.replace('"DIR"', repr(str(root))), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=REPO
    )
    assert done.returncode == 0, done.stderr
    assert "torch.Size([24, 3, 160, 160])" in done.stdout


def test_ci_runs_the_test_command_of_the_readme():
    script = (REPO / ".ci" / "run").read_text(encoding="utf-8")
    found = re.search(r"grep -m 1 -F '(.+?)' README.md", script)
    assert found
    assert COMMANDS[1] == next(x for x in README.splitlines() if found.group(1) in x)
