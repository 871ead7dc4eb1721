"""ImageClassifier: normalise -> network -> loss -> Top-1 / Top-5."""

import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric, SumMetric
from torchmetrics.classification import MulticlassAccuracy

from imnet_pl.core.errors import UserError, require_choice
from imnet_pl.core.status import PARTIAL, REPLACED, UNREADABLE
from imnet_pl.model.class_counts import ClassCounts
from imnet_pl.model.optim import scaled_lr, warmup_cosine, window_weight
from imnet_pl.model.weights import build_network, load_weights

log = logging.getLogger(__name__)

MIN_CLASSES_FOR_TOP5 = 6
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class ImageBatch(Protocol):
    """What a step needs of a batch: uint8 images [N, 3, H, W], int64 targets [N], uint8 status [N]."""

    images: Tensor
    targets: Tensor
    status: Tensor


class TrainLoader(Protocol):
    """What the learning rate and accumulation need of the training loader."""

    batch_size: int

    def batch_len(self, batch_idx: int) -> int:
        """Return the number of pictures in a batch."""
        ...


class MeanLoss(Metric):
    """Mean of per-picture losses, added up in float64 and given to six decimals.

    The further digits of a float32 network depend on the batch size, since kernels add in another order.
    torchmetrics' MeanMetric (1.9) either waits for the device at each update, or ignores the weights.
    """

    full_state_update = False
    total: Tensor
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state(
            "total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum"
        )
        self.add_state(
            "weight", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum"
        )

    def update(self, losses: Tensor, weights: Tensor) -> None:
        """Add losses [N] with their weights [N]."""
        self.total += (losses * weights).sum(dtype=torch.float64)
        self.weight += weights.sum(dtype=torch.float64)

    def compute(self) -> Tensor:
        """Return the mean, float64 []; NaN where nothing was added."""
        return (self.total / self.weight).round(decimals=6)


class ImageClassifier(LightningModule):
    """A torchvision classifier that takes uint8 pictures.

    Logs ``train/loss`` and ``train/lr`` (a step), ``train/loss_epoch``, ``train/num_replaced`` and
    ``train/num_partial`` (pictures of an epoch that could not be read), and for ``val`` and ``test``: ``/loss``, ``/top1``, ``/top5`` (0-1; none below 6 classes), ``/num_samples``, ``/num_unreadable``.

    Args:
        arch: Name of a torchvision classifier, such as ``resnet50``.
        num_classes: Number of classes; on the command line it comes from the data.
        weights: Initial weights: a name such as ``IMAGENET1K_V1``, or a file; default: random.
        replace_head: Start with a new head where the weights of a file have another number of classes.
        base_lr: Peak learning rate for 256 pictures a step; scaled linearly with the global batch.
        momentum: Momentum of SGD.
        nesterov: Nesterov momentum.
        weight_decay: L2 penalty of all parameters.
        warmup_epochs: Epochs of linear warm-up.
        min_lr: Learning rate of the last step, never scaled.
        label_smoothing: Share of the target that is spread over all classes, in training only.
        channels_last: Keep the network and its input in channels_last memory.
        float32_matmul_precision: ``highest``, ``high`` or ``medium``, applied on CUDA.
        mean: Mean of the RGB channels, 0-1.
        std: Standard deviation of the RGB channels, 0-1.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        arch: str = "resnet50",
        num_classes: int = 1000,
        weights: str | None = None,
        replace_head: bool = False,
        base_lr: float = 0.1,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 1e-4,
        warmup_epochs: float = 5.0,
        min_lr: float = 1e-6,
        label_smoothing: float = 0.0,
        channels_last: bool = True,
        float32_matmul_precision: str = "high",
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self._check_arguments()
        self.num_classes = num_classes
        self.backbone = build_network(arch, num_classes)
        if weights is not None:
            load_weights(self.backbone, arch, weights, replace_head)
        self.memory_format = (
            torch.channels_last if channels_last else torch.contiguous_format
        )
        self.backbone.to(memory_format=self.memory_format)
        # Runs the backbone in its place: a strategy's, on several devices.
        self.run_backbone: Callable[[Tensor], Tensor] | None = None
        self.register_buffer(
            "mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False
        )
        self.register_buffer(
            "std", torch.tensor(std).view(1, 3, 1, 1), persistent=False
        )
        self.train_loss = MeanLoss()
        self.train_replaced = SumMetric(nan_strategy="disable")
        self.train_partial = SumMetric(nan_strategy="disable")
        self.val_metrics = _eval_metrics(num_classes)
        self.test_metrics = _eval_metrics(num_classes)
        self.val_classes = ClassCounts(num_classes)
        self.test_classes = ClassCounts(num_classes)

    def _check_arguments(self) -> None:
        """Raise for values that can not work."""
        given = self.hparams
        least = {
            "num_classes": 2,
            "base_lr": 0,
            "momentum": 0,
            "weight_decay": 0,
            "warmup_epochs": 0,
            "min_lr": 0,
        }
        for name, bound in least.items():
            if given[name] < bound:
                raise UserError(f"model.{name}={given[name]} must be at least {bound}.")
        if not 0 <= given["label_smoothing"] < 1:
            raise UserError(
                f"model.label_smoothing={given['label_smoothing']} must be 0 <= value < 1."
            )
        if given["nesterov"] and given["momentum"] == 0:
            raise UserError("model.nesterov=true needs model.momentum above 0.")
        name = "float32_matmul_precision"
        require_choice(f"model.{name}", given[name], ("highest", "high", "medium"))
        if min(given["std"]) <= 0:
            raise UserError(f"model.std={list(given['std'])} must be above 0.")

    def setup(self, stage: str) -> None:
        """Set the precision of float32 products on CUDA."""
        if self.trainer.strategy.root_device.type == "cuda":
            torch.set_float32_matmul_precision(self.hparams["float32_matmul_precision"])

    def forward(self, images: Tensor) -> Tensor:
        """Return logits float32 [N, num_classes] of uint8 images [N, 3, H, W].

        Raises:
            ValueError: The pixels are not uint8: they may be normalised already.
        """
        if images.dtype != torch.uint8:
            raise ValueError(
                f"images are {images.dtype}, uint8 is expected; normalising is done here."
            )
        pixels = images.to(self.mean.dtype, memory_format=self.memory_format)
        run = self.run_backbone or self.backbone
        logits: Tensor = run(pixels.div_(255).sub_(self.mean).div_(self.std))
        return logits.float()

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """Return the mean loss of a batch, weighted for its accumulation window."""
        smoothing = self.hparams["label_smoothing"]
        loss = functional.cross_entropy(
            self(batch.images), batch.targets, label_smoothing=smoothing
        )
        self.train_loss.update(loss.detach(), torch.full_like(loss, len(batch.targets)))
        self.train_replaced.update((batch.status == REPLACED).sum())
        self.train_partial.update((batch.status == PARTIAL).sum())
        self.log("train/loss", loss.detach(), batch_size=len(batch.targets))
        self.log(
            "train/lr", self.trainer.optimizers[0].param_groups[0]["lr"], batch_size=1
        )
        loader: TrainLoader = self.trainer.train_dataloader  # type: ignore[assignment]
        return loss * window_weight(
            batch_idx,
            int(self.trainer.num_training_batches),
            self.trainer.accumulate_grad_batches,
            loader.batch_len,
        )

    def on_train_epoch_end(self) -> None:
        """Give the figures of the epoch to who watches them; StepTimer writes them into the logs."""
        self.log("train/loss_epoch", self.train_loss, logger=False)
        self.log("train/num_replaced", self.train_replaced, logger=False)
        self.log("train/num_partial", self.train_partial, logger=False)

    def on_validation_epoch_start(self) -> None:
        """Count the classes anew; Lightning does so with what is logged."""
        self.val_classes.reset()

    def on_test_epoch_start(self) -> None:
        """Count the classes anew."""
        self.test_classes.reset()

    def validation_step(self, batch: ImageBatch, batch_idx: int) -> None:
        """Count a validation batch."""
        self._count(batch, "val", self.val_metrics, self.val_classes)

    def test_step(self, batch: ImageBatch, batch_idx: int) -> None:
        """Count a test batch."""
        self._count(batch, "test", self.test_metrics, self.test_classes)

    def predict_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """Return the probabilities of a batch, float32 [N, num_classes]."""
        return functional.softmax(self(batch.images), dim=1)

    def _count(
        self,
        batch: ImageBatch,
        split: str,
        metrics: nn.ModuleDict,
        classes: ClassCounts,
    ) -> None:
        """Update and log the metrics of a split. An unreadable picture is wrong, and has no loss."""
        logits, targets = self(batch.images), batch.targets
        labelled, unreadable = targets >= 0, batch.status == UNREADABLE
        losses = functional.cross_entropy(
            logits, targets, reduction="none", ignore_index=-1
        )
        # -inf at the target of an unreadable picture keeps it out of every top k.
        penalty = torch.zeros_like(losses).masked_fill_(unreadable, -torch.inf)
        scores = logits.scatter_add(1, targets.clamp(min=0)[:, None], penalty[:, None])
        counted = {
            "loss": (losses, labelled & ~unreadable),
            "top1": (scores, targets),
            "top5": (scores, targets),
            "num_samples": (labelled.sum(),),
            "num_unreadable": (unreadable.sum(),),
        }
        classes.update(scores, targets)
        for name, metric in metrics.items():
            assert isinstance(metric, Metric)
            if len(targets):  # a rank whose pictures are over makes empty batches
                metric.update(*counted[name])
            self.log(
                f"{split}/{name}",
                metric,
                on_step=False,
                on_epoch=True,
                batch_size=len(targets),
            )

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return SGD with warm-up and cosine a step.

        Raises:
            UserError: The run has no end, or changes its accumulation on the way.
        """
        total_steps, steps_per_epoch = self._count_steps()
        warmup_steps = round(self.hparams["warmup_epochs"] * steps_per_epoch)
        if warmup_steps >= total_steps:
            log.warning(
                "model.warmup_epochs=%g is as long as the run of %d steps: the rate only rises.",
                *(self.hparams["warmup_epochs"], total_steps),
            )
        peak_lr, min_lr = self._peak_lr(), self.hparams["min_lr"]
        self._schedule_peak_lr = peak_lr
        optimizer = torch.optim.SGD(
            self.parameters(),
            lr=peak_lr,
            momentum=self.hparams["momentum"],
            weight_decay=self.hparams["weight_decay"],
            nesterov=self.hparams["nesterov"],
        )

        def share_of_peak(step: int) -> float:
            lr = warmup_cosine(step, total_steps, warmup_steps, peak_lr, min_lr)
            return lr / peak_lr if peak_lr else 1.0

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_peak)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def on_train_start(self) -> None:
        """Let this run's arguments hold after a resume, which brings the optimiser's of the checkpoint."""
        for config in self.trainer.lr_scheduler_configs:
            schedule = config.scheduler
            if not isinstance(schedule, torch.optim.lr_scheduler.LambdaLR):
                continue
            groups = schedule.optimizer.param_groups
            schedule.base_lrs = [self._schedule_peak_lr] * len(groups)
            for group, base_lr, share in zip(
                groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
            ):
                group["initial_lr"] = base_lr
                group["lr"] = base_lr * share(schedule.last_epoch)
                for name in ("momentum", "weight_decay", "nesterov"):
                    group[name] = self.hparams[name]

    def _count_steps(self) -> tuple[int, int]:
        """Return the optimiser steps of the run and of an epoch."""
        trainer = self.trainer
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(c, GradientAccumulationScheduler) for c in callbacks):
            raise UserError(
                "trainer.callbacks holds GradientAccumulationScheduler, with which the number of steps and the "
                "learning rate would be wrong; set trainer.accumulate_grad_batches instead."
            )
        trainer.fit_loop.setup_data()  # with max_steps alone the next line would not load it
        total_steps = trainer.estimated_stepping_batches
        if total_steps == float("inf"):
            raise UserError(
                "trainer.max_epochs=-1: the schedule needs an end; set trainer.max_epochs or max_steps."
            )
        if trainer.limit_train_batches == 0:
            raise UserError("trainer.limit_train_batches=0 leaves nothing to train on.")
        batches = int(trainer.num_training_batches)
        return int(total_steps), -(-batches // trainer.accumulate_grad_batches)

    def _peak_lr(self) -> float:
        """Return the rate scaled by the global batch, and say once how it came about."""
        loader: TrainLoader = self.trainer.train_dataloader  # type: ignore[assignment]
        batch_size, world_size = loader.batch_size, self.trainer.world_size
        accumulate = self.trainer.accumulate_grad_batches
        base_lr, min_lr = self.hparams["base_lr"], self.hparams["min_lr"]
        step_size = batch_size * world_size * accumulate
        peak_lr = scaled_lr(base_lr, step_size)
        if min_lr > peak_lr:
            raise UserError(
                f"model.min_lr={min_lr} is above the peak rate {peak_lr:g} of this run."
            )
        log.info(
            "a step has %d pictures: %d a rank x %d ranks x %d accumulated; learning rate %g x %d / 256 = %g at its "
            "peak.",
            *(step_size, batch_size, world_size, accumulate),
            *(base_lr, step_size, peak_lr),
        )
        return peak_lr

    def describe(self) -> dict[str, Any]:
        """Return what a reader of a checkpoint must know of the model, in plain types."""
        return {
            "arch": self.hparams["arch"],
            "num_classes": self.num_classes,
            "mean": list(self.hparams["mean"]),
            "std": list(self.hparams["std"]),
            "weights": "raw",
        }


def _eval_metrics(num_classes: int) -> nn.ModuleDict:
    """Return the metrics of one split; their states add up over devices."""

    def top(k: int) -> MulticlassAccuracy:
        return MulticlassAccuracy(
            num_classes, top_k=k, average="micro", ignore_index=-1, validate_args=False
        )

    metrics: dict[str, nn.Module] = {"loss": MeanLoss(), "top1": top(1)}
    if num_classes >= MIN_CLASSES_FOR_TOP5:
        metrics["top5"] = top(5)
    metrics["num_samples"] = SumMetric(nan_strategy="disable")
    metrics["num_unreadable"] = SumMetric(nan_strategy="disable")
    return nn.ModuleDict(metrics)
