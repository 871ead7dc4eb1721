"""ImageClassifier: pixels, metrics, learning rate and accumulation, through Trainer.fit."""

import math
from typing import NamedTuple

import pytest
import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from torch import Tensor, nn

from imnet_pl.core.errors import UserError
from imnet_pl.core.status import FINE, UNREADABLE
from imnet_pl.model.classifier import IMAGENET_MEAN, IMAGENET_STD, ImageClassifier


class Batch(NamedTuple):
    images: Tensor
    targets: Tensor
    indices: Tensor
    status: Tensor


class Loader:
    """Batches in memory, with what the model asks of a training loader."""

    def __init__(self, images, targets, batch_size, status=None):
        self.images, self.targets, self.batch_size = images, targets, batch_size
        self.status = torch.full((len(targets),), FINE) if status is None else status

    def __len__(self):
        return math.ceil(len(self.targets) / self.batch_size)

    def batch_len(self, batch_idx):
        return min(self.batch_size, len(self.targets) - batch_idx * self.batch_size)

    def __iter__(self):
        for start in range(0, len(self.targets), self.batch_size):
            rows = slice(start, start + self.batch_size)
            indices = torch.arange(len(self.targets))[rows]
            yield Batch(
                self.images[rows], self.targets[rows], indices, self.status[rows]
            )


class Data(LightningDataModule):
    def __init__(self, loader):
        super().__init__()
        self.loader = loader

    def train_dataloader(self):
        return self.loader

    def val_dataloader(self):
        return self.loader


def random_data(n, num_classes=10, batch_size=4, size=8, status=None):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(
        0, 256, (n, 3, size, size), dtype=torch.uint8, generator=generator
    )
    targets = torch.randint(0, num_classes, (n,), generator=generator)
    return Data(Loader(images, targets, batch_size, status))


@pytest.fixture
def tiny_network(monkeypatch):
    """A network without BatchNorm, so that large and small batches give the same gradient."""

    def build(arch, num_classes):
        torch.manual_seed(1)
        return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(12, num_classes))

    monkeypatch.setattr("imnet_pl.model.classifier.build_network", build)


def trainer(**kwargs):
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
    quiet |= dict(
        enable_model_summary=False, accelerator="cpu", use_distributed_sampler=False
    )
    return Trainer(**quiet, num_sanity_val_steps=0, **kwargs)


def fit(model, data, **kwargs):
    run = trainer(limit_val_batches=0, **kwargs)
    run.fit(model, datamodule=data)
    return run


def test_normalises_inside_as_torchvision_does():
    from torchvision.transforms.v2 import functional as tv

    model = ImageClassifier("resnet18", 3).eval()
    seen = []
    model.backbone.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    kept = images.clone()
    model(images)
    expected = tv.normalize(
        images.float() / 255, list(IMAGENET_MEAN), list(IMAGENET_STD)
    )
    assert torch.equal(seen[0], expected)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, kept)


def test_normalised_pixels_are_refused():
    with pytest.raises(ValueError, match="uint8 is expected"):
        ImageClassifier("resnet18", 3)(torch.zeros(1, 3, 32, 32))


def test_state_dict_is_torchvisions_behind_one_prefix():
    from torchvision.models import resnet18

    expected = {f"backbone.{key}" for key in resnet18(num_classes=3).state_dict()}
    assert set(ImageClassifier("resnet18", 3).state_dict()) == expected


@pytest.mark.parametrize("batch_size", [1, 3, 7, 25])
def test_top1_top5_and_loss_are_a_hand_count(tiny_network, batch_size):  # S28
    status = torch.full((25,), FINE)
    status[[3, 11]] = UNREADABLE
    data = random_data(25, batch_size=batch_size, status=status)
    model = ImageClassifier("tiny", 10)
    scores = trainer().validate(model, datamodule=data, verbose=False)[0]
    with torch.inference_mode():
        logits = model(data.loader.images)
    ranked = logits.argsort(dim=1, descending=True)
    hit = ranked == data.loader.targets[:, None]
    fine = status == FINE
    losses = nn.functional.cross_entropy(logits, data.loader.targets, reduction="none")
    assert scores["val/top1"] == pytest.approx((hit[:, 0] & fine).sum().item() / 25)
    assert scores["val/top5"] == pytest.approx(
        (hit[:, :5].any(1) & fine).sum().item() / 25
    )
    assert scores["val/loss"] == pytest.approx(
        losses[fine].double().mean().item(), abs=1e-6
    )
    assert (scores["val/num_samples"], scores["val/num_unreadable"]) == (25, 2)


@pytest.mark.parametrize(
    ("num_classes", "has_top5"), [(2, False), (4, False), (5, False), (6, True)]
)
def test_no_top5_below_six_classes(tiny_network, num_classes, has_top5):
    data = random_data(6, num_classes)
    scores = trainer().validate(
        ImageClassifier("t", num_classes), datamodule=data, verbose=False
    )[0]
    assert ("val/top5" in scores) is has_top5


def test_label_smoothing_is_for_training_only(tiny_network):
    data = random_data(8)
    losses = []
    for smoothing in (0.0, 0.3):
        model = ImageClassifier("tiny", 10, label_smoothing=smoothing, warmup_epochs=0)
        val_loss = trainer().validate(model, datamodule=data, verbose=False)[0][
            "val/loss"
        ]
        run = fit(model, data, max_steps=1)
        losses.append((val_loss, float(run.callback_metrics["train/loss"])))
    assert losses[0][0] == losses[1][0]
    assert losses[0][1] != losses[1][1]


@pytest.mark.parametrize("accumulate", [1, 2, 4, 16])
def test_accumulation_is_the_large_batch_in_every_window(
    tiny_network, accumulate
):  # S24
    """10 pictures in batches of 2 (and a last one of 1), against the whole window as one batch."""
    steps = -(-5 // accumulate)
    large = 2 * min(accumulate, 5)
    weights = []
    for batch_size, acc in ((2, accumulate), (large, 1)):
        model = ImageClassifier(
            "tiny", 10, base_lr=1e-2 * 256 / (batch_size * acc), warmup_epochs=0
        )
        run = fit(
            model,
            random_data(9, batch_size=batch_size),
            max_epochs=3,
            accumulate_grad_batches=acc,
        )
        assert run.global_step == 3 * steps
        weights.append(model.backbone[2].weight.detach())
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-6)


def test_rate_is_scaled_by_the_global_batch(tiny_network):  # S21, S34
    class Rates(Callback):
        def __init__(self):
            self.rates = []

        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            self.rates.append(optimizer.param_groups[0]["lr"])

    rates = Rates()
    model = ImageClassifier("tiny", 10, base_lr=0.1, warmup_epochs=1)
    fit(
        model,
        random_data(64, batch_size=16),
        max_epochs=4,
        accumulate_grad_batches=2,
        callbacks=[rates],
    )
    peak = 0.1 * 16 * 2 / 256
    assert len(rates.rates) == 8
    assert rates.rates[:3] == pytest.approx([peak / 2, peak, peak])
    assert rates.rates[-1] == pytest.approx(1e-6)


def test_accumulation_scheduler_is_refused(tiny_network):
    schedule = GradientAccumulationScheduler({0: 1, 2: 4})
    with pytest.raises(UserError, match=r"trainer\.accumulate_grad_batches"):
        fit(
            ImageClassifier("tiny", 10),
            random_data(8),
            max_epochs=3,
            callbacks=[schedule],
        )


def test_a_run_without_end_is_refused(tiny_network):
    with pytest.raises(UserError, match=r"trainer\.max_epochs"):
        fit(ImageClassifier("tiny", 10), random_data(8), max_epochs=-1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"arch": "resnet19"}, "Did you mean 'resnet18'"),
        ({"num_classes": 1}, "model.num_classes=1"),
        ({"base_lr": -1.0}, "model.base_lr=-1.0"),
        ({"label_smoothing": 1.0}, "model.label_smoothing=1.0"),
        ({"nesterov": True, "momentum": 0.0}, "model.nesterov"),
        ({"std": (0.0, 1.0, 1.0)}, "model.std"),
        ({"float32_matmul_precision": "hihg"}, "hihg"),
    ],
)
def test_bad_arguments_are_named(arguments, named):
    with pytest.raises(UserError, match=named):
        ImageClassifier(**{"arch": "resnet18", **arguments})


def test_channels_last_can_be_switched_off():
    model = ImageClassifier("resnet18", 3, channels_last=False).eval()
    conv = model.backbone.conv1.weight
    assert conv.is_contiguous()
    images = torch.zeros(1, 32, 32, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    assert model(images).shape == (1, 3)


@pytest.mark.gpu
def test_infinite_gradient_under_fp16_skips_the_update_and_halves_the_scale(
    tiny_network,
):  # S23
    class Plant(Callback):
        def on_after_backward(self, trainer, pl_module):
            pl_module.backbone[2].weight.grad.fill_(float("inf"))

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            self.weight = pl_module.backbone[2].weight.detach().clone()
            self.scale = trainer.precision_plugin.scaler.get_scale()

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            assert torch.equal(self.weight, pl_module.backbone[2].weight)
            assert trainer.precision_plugin.scaler.get_scale() == self.scale / 2

    model = ImageClassifier("tiny", 10)
    run = Trainer(
        accelerator="gpu",
        devices=1,
        precision="16-mixed",
        max_steps=3,
        callbacks=[Plant()],
        logger=False,
        enable_checkpointing=False,
        limit_val_batches=0,
    )
    run.fit(model, datamodule=random_data(8))
    assert run.global_step == 3
