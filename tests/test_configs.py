"""Every shipped YAML parses against today's signatures and carries its header."""

from pathlib import Path

import pytest
import yaml

from imnet_pl.cli import main

CONFIGS = Path(__file__).parents[1] / "configs"
RECIPES = sorted(CONFIGS.glob("*.yaml"))
DATA = sorted((CONFIGS / "data").glob("*.yaml"))


@pytest.mark.parametrize("file", RECIPES, ids=lambda f: f.name)
def test_recipe_parses_and_says_what_it_is(file, capsys):
    assert main(["fit", "--config", str(file), "--print_config"]) == 0
    resolved = yaml.safe_load(capsys.readouterr().out)
    assert isinstance(resolved["seed_everything"], int)  # S26
    assert resolved["name"] == file.stem
    header = file.read_text(encoding="utf-8").split("seed_everything")[0]
    assert f"python cli.py fit --config configs/{file.name}" in header
    assert "Expected Top-1" in header
    assert "early_stopping" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", DATA, ids=lambda f: f.name)
def test_data_config_goes_on_top_of_a_recipe(file, capsys):
    recipe = str(CONFIGS / "resnet18.yaml")
    assert (
        main(["fit", "--config", recipe, "--config", str(file), "--print_config"]) == 0
    )
    resolved = yaml.safe_load(capsys.readouterr().out)
    assert (
        resolved["data"]["source"] == yaml.safe_load(file.read_text())["data"]["source"]
    )


def test_imagenet_recipe_is_the_published_one(capsys):  # S10, S21, S22
    main(["fit", "--config", str(CONFIGS / "resnet50.yaml"), "--print_config"])
    config = yaml.safe_load(capsys.readouterr().out)
    model, data, trainer = config["model"], config["data"], config["trainer"]
    assert (model["base_lr"], model["momentum"], model["weight_decay"]) == (
        0.1,
        0.9,
        1e-4,
    )
    assert (model["warmup_epochs"], model["min_lr"], trainer["max_epochs"]) == (
        5,
        1e-6,
        90,
    )
    assert (trainer["precision"], trainer["benchmark"]) == ("16-mixed", True)
    assert (data["batch_size"], data["image_size"], data["eval_resize"]) == (
        256,
        224,
        256,
    )
    assert data["train_scale"] == [0.08, 1.0]
