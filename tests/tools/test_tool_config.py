"""A config of fit does for the tools too, and check-data decodes as it says."""

from pathlib import Path

import pytest
import yaml
from conftest import REPO, fit_args
from PIL import Image
from test_check_data import check

from imnet_pl.cli import main

RUN = "runs/run/version_0/config.yaml"


def write_config(**config):
    Path("c.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return "--config=c.yaml"


@pytest.mark.parametrize("verb", ["check-data", "split"])
def test_recipes_and_the_config_of_a_run_are_taken(root, in_tmp, tiny_network, verb):
    assert main(fit_args(root, "--trainer.max_epochs=1")) == 0
    more = {"check-data": ["--num_processes=0"], "split": ["--to=s.csv"]}[verb]
    recipes = sorted(REPO.glob("configs/*.yaml"))
    given = [["--config", str(recipe)] for recipe in recipes]
    given.append(
        [*given[0], f"--config={REPO / 'configs' / 'data' / 'tiny_imagenet.yaml'}"]
    )
    for configs in given:
        assert (
            main([verb, *configs, f"--data.root={root}", "--data.source=folder", *more])
            == 0
        )
    assert main([verb, "--config", RUN, *more]) == 0  # it names the data


@pytest.mark.parametrize("verb", ["check-data", "split"])
@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"data": {"rot": "x"}}, "'data.rot' is no argument. Did you mean 'data.root'"),
        ({"data": {"batch_size": 4, "sorce": "x"}}, "'data.sorce' is no argument"),
        ({"modell": {"arch": "resnet18"}}, "'modell"),
        ({"model": {"arch": "resnet18"}, "data": 3}, "data=3 must be a mapping"),
    ],
)
def test_a_key_that_no_verb_knows_is_an_error(in_tmp, capsys, verb, config, sentence):
    assert main([verb, write_config(**config), "--data.root=no"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["check-data", "split"])
@pytest.mark.parametrize("config", ["nowhere.yaml", "broken.yaml", "list.yaml"])
def test_a_config_that_is_none(in_tmp, capsys, verb, config):
    (in_tmp / "broken.yaml").write_text("data: [1")
    (in_tmp / "list.yaml").write_text("- a")
    assert main([verb, "--config", config]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1


def test_pictures_are_decoded_as_the_config_says(root, in_tmp):
    # The same picture lying on its side; equal only when the EXIF is heeded.
    with Image.open(root / "train/n01/p0.jpg") as image:
        upright = image.copy()
    upright.save(root / "train/n01/upright.png")
    exif = Image.Exif()
    exif[0x0112] = 8  # counter-clockwise
    upright.transpose(Image.Transpose.ROTATE_270).save(
        root / "val/n01/turned.png", exif=exif
    )
    # Equal only on a blue background.
    Image.new("RGBA", (40, 40), (0, 0, 0, 0)).save(root / "train/n02/clear.png")
    Image.new("RGB", (40, 40), (0, 0, 255)).save(root / "val/n02/blue.png")

    def leaked(*args):
        _, findings = check(root, "--near=false", *args)
        return [f["path"] for f in findings if f["kind"] == "leaked_duplicate"]

    settings = {"exif_orientation": True, "alpha_background": [0, 0, 255]}
    (in_tmp / "data").mkdir()
    assert leaked() == []
    assert leaked(write_config(data={**settings, "batch_size": 7})) == [
        "train/n01/p0.jpg",
        "train/n02/clear.png",
    ]


def test_pictures_above_the_limit(root, in_tmp):
    Image.new("RGB", (200, 101)).save(root / "train/n01/large.jpg")
    Image.new("RGB", (200, 101)).save(root / "train/n02/large.png")
    status, findings = check(root, "--data.max_pixels=6000")
    assert status == 1
    texts = {
        f["path"]: f["text"] for f in findings if f["path"].endswith(("e.jpg", "e.png"))
    }
    assert texts == {
        "train/n01/large.jpg": "above data.max_pixels, decoded at 1/2 of its size",
        "train/n02/large.png": "200 x 101 px are more than data.max_pixels=6000",
    }


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("max_pixels=0", "data.max_pixels=0 must be at least 1."),
        ("alpha_background=[0,0,256]", "data.alpha_background=[0, 0, 256] must be"),
    ],
)
def test_settings_that_can_not_work(root, capsys, flag, sentence):
    assert main(["check-data", f"--data.root={root}", f"--data.{flag}"]) == 1
    assert sentence in capsys.readouterr().err
