"""ImageNetDataModule ties sources, sampler, dataset and loader together."""

import logging
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningDataModule

from imnet_pl.core.errors import UserError
from imnet_pl.core.position import position_of
from imnet_pl.data.argument_checks import check_arguments, settle_batch_size
from imnet_pl.data.augment import (
    EvalTransform,
    Interpolation,
    TrainTransform,
    Transform,
)
from imnet_pl.data.block_sampler import SHUFFLE_BLOCK, SHUFFLE_WINDOW
from imnet_pl.data.catalog import Catalog
from imnet_pl.data.dataset import (
    BadPicture,
    ImageDataset,
    OnBadEvalImage,
    OnBadImage,
)
from imnet_pl.data.decode import MAX_PIXELS, DecodePolicy
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.loader import BatchLoader
from imnet_pl.data.loader_plan import plan_loader
from imnet_pl.data.order import build_train_sampler, order_of, require_same_order
from imnet_pl.data.sampler import EvalSampler, Shuffle, TrainSampler
from imnet_pl.data.sources import auto
from imnet_pl.data.sources.layout import LabelFormat
from imnet_pl.data.sources.pictures import index_pictures
from imnet_pl.data.splits import SplitBy

log = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")


class ImageNetDataModule(LightningDataModule):
    """Pictures from disk as batches of uint8 [N, 3, image_size, image_size].

    Works without a Trainer too: ``setup("fit")``, then iterate ``train_dataloader()``.

    Args:
        root: Folder of the data, or a table (CSV); the digits alone have a default, in the user's cache folder.
        source: Layout below ``root``; ``auto`` recognises it.
        image_root: Folder that the paths of a table are relative to; default: the table's own, or images/ in it.
        classes: Class names in label order, or a text file with one a line; default: those of train, sorted as text.
        label_format: How a label file or table gives labels: ``index0``, ``index1``, ``name`` or ``auto``.
        split_by: Split train into train and val: ``stratified``, ``group``, ``time`` or ``kfold``; default: the
            data's own val.
        val_frac: Share of val.
        num_folds: Folds of ``kfold``.
        fold: The one that is val, from 0.
        group: Regular expression on a picture's relative path that gives its group; default: a table's column group.
        split_seed: Seed of the split.
        allow_group_overlap: Take a given train and val although groups are in both.
        verify_crc: Compare the checksum of every picture that is read from packed data.
        num_per_class: Use only so many pictures of each class of train and val, drawn with the seed.
        batch_size: Pictures in a training batch of one device; of all devices with ``strong_scaling``, or under dp.
        eval_batch_size: Pictures in a batch of validation and test; default twice ``batch_size``.
        strong_scaling: Divide ``batch_size`` among the devices, so that more devices train on the same batches.
        image_size: Side of the pictures that the model sees, in px.
        train_scale: Least and largest share of the area that a training crop takes.
        train_ratio: Least and largest width / height of a training crop.
        hflip: Probability of a horizontal flip in training.
        eval_resize: Short side before the centre crop in px; default ``image_size * 256 / 224``.
        interpolation: Resizing, always antialiased: ``bilinear`` or ``bicubic``.
        reduced_decode: Decode training JPEGs at 1/2, 1/4 or 1/8 where the crop stays large enough.
        alpha_background: RGB colour behind what is transparent in a picture, 0 to 255 each.
        exif_orientation: Turn pictures as their EXIF says, in all stages.
        max_pixels: Larger pictures are not read, but for baseline JPEGs, decoded at 1/2, 1/4 or 1/8.
        on_bad_image: A training picture that can not be read: ``error``, ``replace`` it by another of its class,
            or use a JPEG that ends early as far as it goes (``partial``) and replace all others.
        on_bad_eval_image: One in validation and test: ``error``, or it counts as ``wrong``.
        shuffle: Order of the training pictures: ``full``, or by ``block`` for disks that seek slowly and for data
            larger than memory.
        shuffle_block: Pictures side by side that ``block`` keeps together.
        shuffle_window: Pictures, of as many blocks as fit, among which it shuffles.
        drop_last: Leave out a last short training batch (other pictures each epoch).
        num_workers: Worker processes of a loader; 0: decode in the training process; default by cores.
        num_threads: Decoding threads in each worker; default by cores.
        prefetch_factor: Batches that each worker prepares ahead.
        stall_sec: Seconds without a batch from the workers after which the run ends, its state saved.
        stall_warn_sec: Seconds without a batch after which a warning says what is waited for.
        seed: Seed of order and augmentation; default: ``seed_everything`` on the command line, else 0.
        predict_input: What ``predict`` reads: a folder, picture or list file, or the split train, val or test.
    """

    def __init__(
        self,
        root: str | None = None,
        source: auto.Source = "auto",
        image_root: str | None = None,
        classes: list[str] | str | None = None,
        label_format: LabelFormat = "auto",
        split_by: SplitBy | None = None,
        val_frac: float = 0.2,
        num_folds: int = 5,
        fold: int = 0,
        group: str | None = None,
        split_seed: int = 0,
        allow_group_overlap: bool = False,
        verify_crc: bool = False,
        num_per_class: int | None = None,
        batch_size: int = 256,
        eval_batch_size: int | None = None,
        strong_scaling: bool = False,
        image_size: int = 224,
        train_scale: tuple[float, float] = (0.08, 1.0),
        train_ratio: tuple[float, float] = (3 / 4, 4 / 3),
        hflip: float = 0.5,
        eval_resize: int | None = None,
        interpolation: Interpolation = "bilinear",
        reduced_decode: bool = False,
        alpha_background: tuple[int, int, int] = (255, 255, 255),
        exif_orientation: bool = False,
        max_pixels: int = MAX_PIXELS,
        on_bad_image: OnBadImage = "replace",
        on_bad_eval_image: OnBadEvalImage = "wrong",
        shuffle: Shuffle = "full",
        shuffle_block: int = SHUFFLE_BLOCK,
        shuffle_window: int = SHUFFLE_WINDOW,
        drop_last: bool = True,
        num_workers: int | None = None,
        num_threads: int | None = None,
        prefetch_factor: int = 2,
        stall_sec: float = 600,
        stall_warn_sec: float = 30,
        seed: int | None = None,
        predict_input: str | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.catalog = Catalog(
            root,
            source,
            image_root,
            classes,
            label_format,
            split_by,
            val_frac,
            num_folds,
            fold,
            group,
            split_seed,
            allow_group_overlap,
            verify_crc,
        )
        self.predict_input = predict_input
        if self._needs_root:
            _ = self.catalog.root  # raises where it is missing
        self.num_per_class, self.batch_size = num_per_class, batch_size
        self.strong_scaling = strong_scaling
        self.eval_batch_size = (
            2 * batch_size if eval_batch_size is None else eval_batch_size
        )
        self.image_size = image_size
        self.eval_resize = (
            round(image_size * 256 / 224) if eval_resize is None else eval_resize
        )
        self.train_scale, self.train_ratio = tuple(train_scale), tuple(train_ratio)
        self.hflip, self.interpolation = hflip, interpolation
        self.reduced_decode = reduced_decode
        background = tuple(alpha_background)
        self.max_pixels = max_pixels
        self.policy = DecodePolicy(background, exif_orientation, max_pixels)  # type: ignore[arg-type]
        self.on_bad_image, self.on_bad_eval_image = on_bad_image, on_bad_eval_image
        # By split and position in its index, of the batches that came so far.
        self.bad_pictures: dict[str, dict[int, BadPicture]] = {}
        self.shuffle, self.shuffle_block = shuffle, shuffle_block
        self.shuffle_window = shuffle_window
        self.drop_last, self.prefetch_factor = drop_last, prefetch_factor
        self.num_workers, self.num_threads = num_workers, num_threads
        self.stall_sec, self.stall_warn_sec = stall_sec, stall_warn_sec
        self.seed = seed or 0
        self.indices: dict[str, ImageIndex] = {}
        self._resume_from: dict[str, Any] | None = None
        check_arguments(self)

    @property
    def _needs_root(self) -> bool:
        """False where pictures outside the data are predicted: its root may be on another machine."""
        return self.predict_input is None or self.predict_input in SPLITS

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order: from ``classes``, else from the training pictures."""
        return self.catalog.classes

    @property
    def num_classes(self) -> int:
        """Number of classes, two at least."""
        return self.catalog.num_classes

    def prepare_data(self) -> None:
        """Write the digits, if they are the source, and index the data before other ranks do: they find it kept."""
        if self._needs_root:
            self.catalog.ensure()
        if self.trainer is not None and self.trainer.state.fn is not None:
            for split in self._splits_of(self.trainer.state.fn.value):
                self._index_split(split)

    def _splits_of(self, stage: str) -> tuple[str, ...]:
        """Return the splits that a stage needs."""
        if stage == "predict":
            return tuple(split for split in SPLITS if split == self.predict_input)
        if stage == "fit":
            return ("train", "val")
        return ("val",) if stage == "validate" else (self.test_split,)

    def setup(self, stage: str) -> None:
        """Index what a stage needs: ``fit``, ``validate``, ``test`` or ``predict``.

        Raises:
            UserError: The data is absent, or does not fit the classes.
        """
        if stage == "predict":
            self.indices["predict"] = self._index_predict()
            return
        self.catalog.ensure()
        for split in self._splits_of(stage):
            self._index_split(split)
        if stage == "fit":
            train, val = self.indices["train"], self.indices["val"]
            self.catalog.require_groups_apart(train, val)
            settle_batch_size(self, len(train), self._rank_and_world()[1])

    def _index_split(self, split: str) -> ImageIndex:
        if split not in self.indices:
            index = self.catalog.index(split)
            if self.num_per_class is not None and split in ("train", "val"):
                index = index.draw_per_class(self.num_per_class, self.seed)
            self.indices[split] = index
        return self.indices[split]

    def _index_predict(self) -> ImageIndex:
        if self.predict_input is None:
            raise UserError(
                "data.predict_input is missing: say which pictures with --input PATH."
            )
        if not self._needs_root:
            return index_pictures(self.predict_input, self.classes)
        self.catalog.ensure()
        return self._index_split(self.predict_input)

    @property
    def test_split(self) -> str:
        """``test`` where the data has one, else ``val``."""
        return "test" if self.catalog.has_split("test") else "val"

    def train_dataloader(self) -> BatchLoader:
        """Return the loader of the shuffled, augmented training split."""
        transform = TrainTransform(
            image_size=self.image_size,
            scale=self.train_scale,  # type: ignore[arg-type]
            ratio=self.train_ratio,  # type: ignore[arg-type]
            hflip=self.hflip,
            interpolation=self.interpolation,
            reduced_decode=self.reduced_decode,
            policy=self.policy,
        )
        sampler = build_train_sampler(self, *self._rank_and_world(), self._resume_from)
        self._resume_from = None
        # A last batch of one picture has no variance for BatchNorm: it is dropped in any case.
        drop_last = self.drop_last or len(sampler) % self.batch_size == 1
        return self._loader(
            "train", transform, sampler, self.batch_size, self.on_bad_image, drop_last
        )

    def val_dataloader(self) -> BatchLoader:
        """Return the loader of every picture of the validation split, once, in order."""
        return self.eval_dataloader("val")

    def test_dataloader(self) -> BatchLoader:
        """Return the loader of the test split, or of the validation split where there is none."""
        if self.test_split == "val":
            log.warning("the data has no split 'test': the figures are those of 'val'.")
        return self.eval_dataloader(self.test_split)

    def predict_dataloader(self) -> BatchLoader:
        """Return the loader of every picture of ``predict_input``, once, in order."""
        return self.eval_dataloader("predict")

    def eval_dataloader(self, split: str) -> BatchLoader:
        """Return the loader of every picture of a split, once, in order, as for validation."""
        transform = EvalTransform(
            self.image_size, self.eval_resize, self.interpolation, self.policy
        )
        sampler = EvalSampler(len(self.indices[split]), *self._rank_and_world())
        # In a prediction it is a row that says so.
        on_bad = "wrong" if split == "predict" else self.on_bad_eval_image
        return self._loader(
            split, transform, sampler, self.eval_batch_size, on_bad, drop_last=False
        )

    def _loader(
        self,
        split: str,
        transform: Transform,
        sampler: TrainSampler | EvalSampler,
        batch_size: int,
        on_bad_image: OnBadImage | OnBadEvalImage,
        drop_last: bool,
    ) -> BatchLoader:
        plan = plan_loader(self, split, batch_size)
        dataset = ImageDataset(
            self.indices[split],
            transform,
            seed=self.seed,
            num_threads=plan.num_threads,
            slots=plan.make_slots(),
            on_bad_image=on_bad_image,
        )
        return BatchLoader(
            dataset,
            sampler,
            batch_size,
            drop_last=drop_last,
            num_workers=plan.num_workers,
            prefetch_factor=plan.prefetch_factor,
            pin_memory=self._on_cuda(),
            stall_sec=self.stall_sec,
            stall_warn_sec=self.stall_warn_sec,
            bad_pictures=self.bad_pictures.setdefault(split, {}),
        )

    def _on_cuda(self) -> bool:
        if self.trainer is None:
            return False
        return self.trainer.strategy.root_device.type == "cuda"

    def _rank_and_world(self) -> tuple[int, int]:
        trainer = self.trainer
        return (trainer.global_rank, trainer.world_size) if trainer else (0, 1)

    def state_dict(self) -> dict[str, Any]:
        """Return where training stands: the epoch, and how many of its pictures all devices have seen."""
        assert self.trainer is not None
        position = position_of(self.trainer)
        return {
            "epoch": position.epoch,
            "num_samples": position.batches
            * self.batch_size
            * self._rank_and_world()[1],
            **order_of(self),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next training loader start where a checkpoint stood.

        Raises:
            UserError: Within an epoch the order would not go on: the seed or the shuffling is another one.
        """
        if self.trainer is None or self.trainer.state.fn != "fit":
            return
        require_same_order(state_dict, self)
        self._resume_from = dict(state_dict)

    def paths(self, indices: Sequence[int], split: str = "val") -> list[str]:
        """Return the paths of pictures by their position in a split's index."""
        return [self.indices[split].path(int(i)) for i in indices]

    def relative_paths(self, indices: Sequence[int], split: str = "val") -> list[str]:
        """Return paths as ``paths`` does, relative to the folder that was indexed."""
        return [self.indices[split].relative_path(int(i)) for i in indices]

    def labels(self, indices: Sequence[int], split: str = "val") -> list[int]:
        """Return the labels of pictures by their position in a split's index."""
        return [int(self.indices[split].labels[int(i)]) for i in indices]

    def describe(self) -> dict[str, Any]:
        """Return what a reader of a checkpoint must know of the data, in plain types."""
        return {
            "classes": list(self.classes),
            "image_size": self.image_size,
            "eval_resize": self.eval_resize,
            "interpolation": self.interpolation,
            "alpha_background": list(self.policy.alpha_background),
            "exif_orientation": self.policy.exif_orientation,
            "max_pixels": self.policy.max_pixels,
            "data": {split: index.summary() for split, index in self.indices.items()},
        }
