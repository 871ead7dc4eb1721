"""dp: replicas, emulated on the CPU, train as one device does."""

import pytest
import torch
from conftest import fit_args, logged
from torch import nn

from imnet_pl.cli import main
from imnet_pl.model import classifier
from imnet_pl.training.data_parallel import (
    ReplicatedNetwork,
    count_replicas,
    is_compiled,
)

CPU = torch.device("cpu")
DP = ["--trainer.strategy=dp", "--trainer.devices=2"]


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


@pytest.mark.parametrize(
    ("pictures", "devices", "least", "count"),
    [
        *((8, 4, 2, 4), (9, 4, 2, 3), (5, 4, 2, 2), (3, 2, 2, 1), (1, 4, 2, 1)),
        *((0, 4, 2, 1), (4, 4, 1, 4), (3, 4, 1, 3), (5, 4, 1, 3), (0, 4, 1, 1)),
    ],
)
def test_no_replica_gets_too_few(pictures, devices, least, count):
    assert count_replicas(pictures, devices, least) == count
    parts = [len(part) for part in torch.zeros(pictures).chunk(count)]
    assert count == 1 or (len(parts) == count and min(parts) >= least)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_replicas_give_the_logits_and_gradients_of_one(devices):
    network, pixels = small_network(), torch.rand(7, 3, 8, 8)
    expected = network(pixels)
    expected.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    logits = ReplicatedNetwork(network, [CPU] * devices)(pixels)
    torch.testing.assert_close(logits, expected)
    logits.square().sum().backward()
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_replicas_compute_in_the_dtype_of_autocast():
    seen = []

    class Watched(nn.Linear):
        def forward(self, pixels):
            seen.append(torch.get_autocast_dtype("cpu"))
            return super().forward(pixels)

    run = ReplicatedNetwork(Watched(4, 2), [CPU, CPU])
    with torch.autocast("cpu", dtype=torch.float16), torch.no_grad():
        logits = run(torch.rand(6, 4))
    assert logits.dtype == torch.float16
    assert not logits.requires_grad
    assert run(torch.rand(6, 4)).dtype == torch.float32
    assert seen[:2] == [torch.float16] * 2


def test_an_error_in_a_replica_is_raised():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ReplicatedNetwork(nn.Linear(4, 2), [CPU, CPU])(torch.rand(6, 5))


def test_running_statistics_are_those_of_the_first_part():
    network = nn.BatchNorm1d(2)
    pixels = torch.rand(8, 2)
    alone = nn.BatchNorm1d(2)
    alone(pixels[:4])
    ReplicatedNetwork(network, [CPU, CPU])(pixels)
    assert torch.equal(network.running_mean, alone.running_mean)
    assert int(network.num_batches_tracked) == 1


def weights(folder):
    file = folder / "runs/run/version_0/checkpoints/last.ckpt"
    return torch.load(file, weights_only=True)["state_dict"]


def test_an_epoch_of_dp_is_an_epoch_of_one_device(
    root, tmp_path, monkeypatch, tiny_network, capfd
):
    """Weights, their names, rate, logs and predictions: the batch is that of all devices together."""
    args = fit_args(root, "--model.base_lr=4", "--trainer.max_epochs=1")
    args += ["--trainer.log_every_n_steps=1", "--data.drop_last=false"]
    args += ["--data.batch_size=7"]
    shown = {}
    for name, more in (("one", ["--trainer.devices=1"]), ("dp", DP)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert main([*args, *more]) == 0
        shown[name] = capfd.readouterr().err
        assert "a step has 7 pictures" in shown[name]
    one, dp = weights(tmp_path / "one"), weights(tmp_path / "dp")
    assert one.keys() == dp.keys()
    for name in one:
        torch.testing.assert_close(one[name], dp[name], rtol=0, atol=1e-5)
    for column in ("train/loss", "train/lr", "val/loss", "val/top1"):
        files = (tmp_path / x / "runs/run/version_0/metrics.csv" for x in ("one", "dp"))
        of_one, of_dp = (logged(file, column) for file in files)
        assert len(of_one) == len(of_dp) > 0
        assert of_dp == pytest.approx(of_one, abs=1e-5)
    checkpoint = "runs/run/version_0/checkpoints/best.ckpt"
    assert main(["validate", "--ckpt_path", checkpoint, *DP]) == 0
    assert main(["predict", "--ckpt_path", checkpoint, "--input=val", *DP]) == 0


@pytest.mark.slow
def test_a_resnet_trains_under_dp_with_mixed_precision(root, in_tmp):
    """With BatchNorm, accumulation, clipping and bfloat16."""
    args = fit_args(root, *DP, "--model.arch=resnet18", "--trainer.max_epochs=1")
    args += ["--trainer.precision=bf16-mixed", "--trainer.gradient_clip_val=1"]
    assert main([*args, "--trainer.accumulate_grad_batches=2"]) == 0
    assert all(value.isfinite().all() for value in weights(in_tmp).values())


def test_a_compiled_backbone_is_refused(root, in_tmp, monkeypatch, capfd):
    def build(arch, num_classes):
        network = nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))
        network.compile()
        return network

    monkeypatch.setattr(classifier, "build_network", build)
    assert main(fit_args(root, *DP, "--trainer.max_epochs=1")) == 1
    assert "trainer.strategy=dp can not copy a compiled" in capfd.readouterr().err
    assert is_compiled(torch.compile(nn.Identity()))
    assert not is_compiled(nn.Identity())
