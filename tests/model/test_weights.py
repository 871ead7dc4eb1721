"""Initial weights: by name and from a file."""

import logging

import pytest
import torch
from torchvision.models import ResNet18_Weights, resnet18, resnet34

from imnet_pl.core.errors import UserError
from imnet_pl.model.classifier import ImageClassifier
from imnet_pl.model.weights import build_network


@pytest.fixture
def named(monkeypatch):
    """torchvision's download replaced by random weights of the same shapes."""
    torch.manual_seed(3)
    state = resnet18().state_dict()
    monkeypatch.setattr(ResNet18_Weights, "get_state_dict", lambda *_, **__: state)
    return state


@pytest.mark.parametrize("name", ["IMAGENET1K_V1", "DEFAULT"])
def test_named_weights_get_a_new_head_and_say_so(named, name, caplog):  # S20
    with caplog.at_level(logging.INFO, "imnet_pl"):
        model = ImageClassifier("resnet18", 3, weights=name)
    assert torch.equal(model.backbone.conv1.weight, named["conv1.weight"])
    assert model.backbone.fc.weight.shape == (3, 512)
    assert "1000 classes there, 3 here" in caplog.text


def test_named_weights_keep_the_head_for_the_same_classes(named):
    model = ImageClassifier("resnet18", 1000, weights="IMAGENET1K_V1")
    assert torch.equal(model.backbone.fc.weight, named["fc.weight"])


def test_unknown_name_lists_the_names():
    with pytest.raises(UserError, match="Did you mean 'IMAGENET1K_V1'"):
        ImageClassifier("resnet18", 3, weights="IMAGENET1K")


def test_failed_download_says_what_to_fetch(monkeypatch):
    from urllib.error import URLError

    def fail(*_, **__):
        raise URLError("no route")

    monkeypatch.setattr(ResNet18_Weights, "get_state_dict", fail)
    with pytest.raises(UserError, match=r"fetch https://.*resnet18"):
        ImageClassifier("resnet18", 3, weights="IMAGENET1K_V1")


@pytest.mark.parametrize("wrapped", [False, True])
def test_file_with_another_head_needs_the_users_word(tmp_path, wrapped):
    state = resnet18(num_classes=7).state_dict()
    if wrapped:
        state = {
            "state_dict": {f"backbone.{key}": value for key, value in state.items()}
        }
    file = tmp_path / "w.pth"
    torch.save(state, file)
    with pytest.raises(UserError, match=r"7 classes, the data has 3.*replace_head"):
        ImageClassifier("resnet18", 3, weights=str(file))
    model = ImageClassifier("resnet18", 3, weights=str(file), replace_head=True)
    original = (
        state["state_dict"]["backbone.conv1.weight"]
        if wrapped
        else state["conv1.weight"]
    )
    assert torch.equal(model.backbone.conv1.weight, original)


def test_file_of_another_arch_is_refused(tmp_path):
    file = tmp_path / "w.pth"
    torch.save(resnet18(num_classes=3).state_dict(), file)
    with pytest.raises(UserError, match="another arch"):
        ImageClassifier("resnet34", 3, weights=str(file))
    torch.save(resnet34(num_classes=3).state_dict(), file)
    with pytest.raises(UserError, match="another arch"):
        ImageClassifier("resnet50", 3, weights=str(file))


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut"])
def test_unreadable_file_is_one_sentence(tmp_path, content):
    file = tmp_path / "w.pth"
    file.write_bytes(content)
    with pytest.raises(UserError, match="can not be read"):
        ImageClassifier("resnet18", 3, weights=str(file))


def test_file_that_matches_nothing_is_refused(tmp_path):
    file = tmp_path / "w.pth"
    torch.save({"other.weight": torch.zeros(2)}, file)
    with pytest.raises(UserError, match="fits no parameter"):
        ImageClassifier("resnet18", 3, weights=str(file))


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        ImageClassifier("resnet18", 3, weights=str(tmp_path / "w.pth"))


def test_file_that_would_run_code_is_refused(tmp_path):
    class Payload:
        def __reduce__(self):
            return (print, ("executed",))

    file = tmp_path / "w.pth"
    torch.save({"w": Payload()}, file)
    with pytest.raises(UserError, match="can not be read"):
        ImageClassifier("resnet18", 3, weights=str(file))


@pytest.mark.parametrize(
    "arch", ["googlenet", "mobilenet_v3_small", "squeezenet1_1", "vit_b_32"]
)
def test_other_classifiers_train(arch):  # S20
    network = build_network(arch, 5).train()
    size = 224 if arch in ("vit_b_32",) else 96
    assert network(torch.zeros(2, 3, size, size)).shape == (2, 5)
