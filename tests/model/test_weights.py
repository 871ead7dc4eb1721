"""Initial weights: by name and from a file."""

import argparse
import logging
from itertools import product

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision.models import ResNet18_Weights, resnet18, resnet34

from imnet_pl.core.errors import UserError
from imnet_pl.model.classifier import ImageClassifier
from imnet_pl.model.weights import build_network, load_weights


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


SUFFIXES = (".pth", ".pt", ".ckpt", ".th", ".safetensors")
WRAPPERS = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"epoch": 3, "state_dict": state},
    "model_state_dict": lambda state: {"model_state_dict": state, "best": 0.5},
    "model": lambda state: {"model": state, "optimizer": {"state": {}, "lr": 0.1}},
    "nested": lambda state: {"model": {"state_dict": state}},
}
# A safetensors file holds nothing but tensors by name.
FORMS = [*product(WRAPPERS, SUFFIXES[:4]), ("plain", ".safetensors")]
PREFIXES = (
    "",
    "module.",
    "_orig_mod.",
    "model.",
    "backbone.",
    "module._orig_mod.",
    "_orig_mod.module.",
    "model.backbone.",
    "module.model._orig_mod.backbone.",
)


def tiny(classes=3):
    return nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, classes))


def prefixed(state, prefix):
    return {f"{prefix}{name}": value for name, value in state.items()}


def row(text, label):
    """Return what the key table in a text says of one label."""
    return next(x for x in text.splitlines() if x.startswith(f"{label}  ")).split()


def refusal(network, file, replace_head=False):
    """Return the lines of the error: its sentence and the key table."""
    with pytest.raises(UserError) as caught:
        load_weights(network, "tiny", str(file), replace_head)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"model.weights={str(file)!r} ")
    return lines


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(("wrapper", "suffix"), FORMS)
def test_foreign_forms(tmp_path, caplog, wrapper, prefix, suffix):
    source, network = tiny(), tiny()
    state = prefixed(source.state_dict(), prefix)
    file = tmp_path / f"w{suffix}"
    if suffix == ".safetensors":
        save_file(state, file)
    else:
        torch.save(WRAPPERS[wrapper](state), file)
    with caplog.at_level(logging.INFO, "imnet_pl"):
        load_weights(network, "tiny", str(file), False)
    assert torch.equal(network[2].weight, source[2].weight)
    assert row(caplog.text, "matched")[1] == str(len(state))
    assert row(caplog.text, "missing")[1] == row(caplog.text, "unexpected")[1] == "0"


def test_torchvision_state_of_a_compiled_and_distributed_model(tmp_path, caplog):
    state = resnet18(num_classes=3).state_dict()
    file = tmp_path / "w.pth"
    torch.save(prefixed(state, "module._orig_mod."), file)
    with caplog.at_level(logging.INFO, "imnet_pl"):
        model = ImageClassifier("resnet18", 3, weights=str(file))
    assert torch.equal(model.backbone.fc.weight, state["fc.weight"])
    assert row(caplog.text, "matched")[1] == str(len(state))


def test_real_checkpoint_of_another_arch_is_refused_with_its_keys(assets):
    file = assets / "checkpoints" / "resnet20-cifar10-dataparallel.th"
    if not file.is_file():
        pytest.skip("the real checkpoint is absent")
    with pytest.raises(UserError, match=r"conv1.weight has shape") as caught:
        ImageClassifier("resnet18", 10, weights=str(file))
    text = str(caught.value)
    assert "conv1.weight (16, 3, 3, 3) for (64, 3, 7, 7)" in text
    assert row(text, "unexpected")[1:3] == ["32", "layer1.2.bn1.bias,"]
    assert int(row(text, "missing")[1]) > 0


@pytest.mark.parametrize("own", PREFIXES[1:])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefix_of_the_networks_own_names_stays(tmp_path, own, prefix):
    class Wrapped(nn.Module):
        def state_dict(self):
            return prefixed(source.state_dict(), own)

        def load_state_dict(self, state, strict):
            loaded.update(state)

    source, loaded = tiny(), {}
    file = tmp_path / "w.pth"
    torch.save(prefixed(source.state_dict(), prefix + own), file)
    load_weights(Wrapped(), "tiny", str(file), False)
    assert loaded.keys() == prefixed(source.state_dict(), own).keys()


def test_names_with_and_without_a_prefix_are_not_mixed_up(tmp_path):
    network = nn.ModuleDict({"backbone": nn.Linear(2, 2), "fc": nn.Linear(2, 2)})
    state = {name: torch.rand_like(x) for name, x in network.state_dict().items()}
    file = tmp_path / "w.pth"
    torch.save(
        {**prefixed(state, "module."), "backbone.fc.weight": torch.ones(2)}, file
    )
    load_weights(network, "tiny", str(file), False)
    assert all(torch.equal(x, state[name]) for name, x in network.state_dict().items())


def test_one_prefix_of_two_copies_is_chosen_for_all(tmp_path, caplog):
    state = tiny().state_dict()
    copy = {name: torch.zeros_like(value) for name, value in state.items()}
    file, network = tmp_path / "w.ckpt", tiny()
    torch.save({**prefixed(copy, "model.module."), **prefixed(state, "model.")}, file)
    with caplog.at_level(logging.INFO, "imnet_pl"):
        load_weights(network, "tiny", str(file), False)
    assert torch.equal(network[0].weight, state["0.weight"])
    assert row(caplog.text, "unexpected")[1] == str(len(copy))


def test_what_is_no_part_of_the_network_is_left_out(tmp_path, caplog):
    extra = {"mean": torch.zeros(3), "val_metrics.top1.total": torch.zeros(())}
    file = tmp_path / "w.ckpt"
    state = prefixed(tiny().state_dict(), "backbone.")
    torch.save({"state_dict": {**state, **extra}, "epoch": 1}, file)
    with caplog.at_level(logging.INFO, "imnet_pl"):
        load_weights(tiny(), "tiny", str(file), False)
    assert row(caplog.text, "unexpected") == [
        *("unexpected", "2", "mean,", "val_metrics.top1.total")
    ]


def test_old_file_without_counters_of_batch_norm(tmp_path, caplog):
    state = tiny().state_dict()
    del state["1.num_batches_tracked"]
    file = tmp_path / "w.pth"
    torch.save(state, file)
    with caplog.at_level(logging.INFO, "imnet_pl"):
        load_weights(tiny(), "tiny", str(file), False)
    assert "missing, unused      1  1.num_batches_tracked" in caplog.text
    del state["1.running_mean"]
    torch.save(state, file)
    assert "lacks 1 of the 9 entries" in refusal(tiny(), file)[0]


def test_other_head_is_in_the_table(tmp_path, caplog):
    file = tmp_path / "w.pth"
    torch.save({"model": prefixed(tiny(7).state_dict(), "module.")}, file)
    lines = refusal(tiny(3), file)
    assert "head for 7 classes, the data has 3" in lines[0]
    assert (
        "other shape          2  2.weight (7, 2) for (3, 2), 2.bias (7,) for (3,)"
        in lines
    )
    with caplog.at_level(logging.INFO, "imnet_pl"):
        load_weights(tiny(3), "tiny", str(file), True)
    assert row(caplog.text, "matched")[1] == "7"


def test_zero_matches_show_the_keys_of_both(tmp_path):
    file = tmp_path / "w.pth"
    torch.save({"state_dict": {"module.other.weight": torch.zeros(2)}}, file)
    lines = refusal(tiny(), file)
    assert "fits no parameter" in lines[0]
    assert row("\n".join(lines), "matched") == ["matched", "0"]
    assert "0.weight, 0.bias" in next(x for x in lines if x.startswith("missing  "))
    assert "other.weight" in lines[-1]


@pytest.mark.parametrize(
    "content", [{}, {"epoch": 1}, [torch.zeros(2)], torch.zeros(2), {"model": "resnet"}]
)
def test_file_without_names_and_tensors(tmp_path, content):
    file = tmp_path / "w.pth"
    torch.save(content, file)
    assert "holds no tensors by name; give" in refusal(tiny(), file)[0]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "content",
    [b"", b"hello world\n" * 9, b"\xff" * 99, b"<!DOCTYPE html>", b"PK\x03\x04"],
)
def test_damaged_file_is_one_sentence_with_a_cure(tmp_path, suffix, content):
    file = tmp_path / f"w{suffix}"
    file.write_bytes(content)
    (line,) = refusal(tiny(), file)
    assert "can not be read: it is damaged" in line
    assert line.endswith("save it again.")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.98])
def test_cut_file_is_one_sentence(tmp_path, zipped, kept):
    file = tmp_path / "w.pth"
    torch.save(tiny().state_dict(), file, _use_new_zipfile_serialization=zipped)
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * kept)])
    (line,) = refusal(tiny(), file)
    assert "it is damaged" in line


def test_cut_safetensors_is_one_sentence(tmp_path):
    file = tmp_path / "w.safetensors"
    save_file(tiny().state_dict(), file)
    file.write_bytes(file.read_bytes()[:-4])
    (line,) = refusal(tiny(), file)
    assert "it is damaged" in line


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_folder_is_refused(tmp_path, suffix):
    folder = tmp_path / f"w{suffix}"
    folder.mkdir()
    assert refusal(tiny(), folder)[0].endswith("is a folder; give a file of weights.")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({"model": tiny()}, "Sequential"),
        ({"state_dict": {}, "args": argparse.Namespace(lr=1)}, "argparse.Namespace"),
    ],
)
def test_file_that_needs_code_says_how_to_save_it(tmp_path, content, name):
    file = tmp_path / "w.pth"
    torch.save(content, file)
    (line,) = refusal(tiny(), file)
    assert "without running code that it names" in line
    assert name in line
    assert "save its state dict alone" in line


@pytest.mark.parametrize("suffix", SUFFIXES[:4])
def test_malicious_file_runs_nothing(tmp_path, suffix):
    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    file = tmp_path / f"w{suffix}"
    torch.save({"state_dict": tiny().state_dict(), "more": Payload()}, file)
    (line,) = refusal(tiny(), file)
    assert "without running code" in line
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "arch", ["googlenet", "mobilenet_v3_small", "squeezenet1_1", "vit_b_32"]
)
def test_other_classifiers_train(arch):  # S20
    network = build_network(arch, 5).train()
    size = 224 if arch in ("vit_b_32",) else 96
    assert network(torch.zeros(2, 3, size, size)).shape == (2, 5)
