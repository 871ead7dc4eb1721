"""Arguments of the data module that can not work, and a batch that is larger than the training set."""

import logging
import os
from typing import Any, get_args

from imnet_pl.core.errors import UserError, require_choice
from imnet_pl.core.machine import usable_cores
from imnet_pl.data.augment import Interpolation
from imnet_pl.data.block_sampler import SHUFFLE_BLOCK, SHUFFLE_WINDOW
from imnet_pl.data.dataset import OnBadEvalImage, OnBadImage
from imnet_pl.data.sampler import Shuffle

log = logging.getLogger(__name__)


def check_arguments(data: Any) -> None:
    """Raise for values that can not work.

    Args:
        data: The data module.

    Raises:
        UserError: It names the argument, its value and what is allowed.
    """
    _check_choices_and_bounds(data)
    _check_shuffle(data)
    if data.eval_resize < data.image_size:
        raise UserError(
            f"data.eval_resize={data.eval_resize} must be at least data.image_size={data.image_size}."
        )
    low, high = data.train_scale
    if not 0 < low <= high <= 1:
        raise UserError(
            f"data.train_scale=[{low}, {high}] must be 0 < low <= high <= 1."
        )
    low, high = data.train_ratio
    if not 0 < low <= high:
        raise UserError(f"data.train_ratio=[{low}, {high}] must be 0 < low <= high.")
    if not 0 <= data.hflip <= 1:
        raise UserError(f"data.hflip={data.hflip} is a probability, from 0 to 1.")


def _check_choices_and_bounds(data: Any) -> None:
    choices = {
        "interpolation": Interpolation,
        "on_bad_image": OnBadImage,
        "on_bad_eval_image": OnBadEvalImage,
        "shuffle": Shuffle,
    }
    for name, choice in choices.items():
        require_choice(f"data.{name}", getattr(data, name), get_args(choice))
    least = {
        "num_per_class": 1,
        "batch_size": 1,
        "eval_batch_size": 1,
        "prefetch_factor": 1,
    }
    least |= {"image_size": 2, "num_threads": 1, "num_workers": 0, "stall_sec": 1}
    least |= {"stall_warn_sec": 1, "shuffle_block": 1, "shuffle_window": 1}
    for name, bound in least.items():
        value = getattr(data, name)
        if value is not None and value < bound:
            raise UserError(f"data.{name}={value} must be at least {bound}.")
    most = {
        "num_workers": most_workers(os.name),
        "num_threads": 512,
        "prefetch_factor": 256,
    }
    for name, bound in most.items():
        value = getattr(data, name)
        if value is not None and value > bound:
            raise UserError(
                f"data.{name}={value} must be at most {bound}; {usable_cores()} cores are usable here."
            )


def most_workers(system: str) -> int:
    """Return how many worker processes a system can wait for; Windows: 63, and two are this program's own."""
    return 61 if system == "nt" else 512


def settle_batch_size(data: Any, num_pictures: int, num_devices: int) -> None:
    """Give a data module the training batch of a device.

    Args:
        data: The data module.
        num_pictures: Training pictures of all devices.
        num_devices: Devices.

    Raises:
        UserError: There are too few pictures, or the batch can not be divided.
    """
    wanted = data.batch_size
    if data.strong_scaling:
        wanted = divide_batch_size(data.hparams["batch_size"], num_devices)
    data.batch_size = fit_batch_size(wanted, num_pictures, num_devices, data.drop_last)


def divide_batch_size(batch_size: int, num_devices: int) -> int:
    """Return a device's share of the batch of all devices.

    Raises:
        UserError: Not every device would get as many pictures; it names batches that can be divided.
    """
    share, rest = divmod(batch_size, num_devices)
    if rest:
        below, above = share * num_devices, (share + 1) * num_devices
        nearest = f"{below} or {above}" if below else f"{above}"
        raise UserError(
            f"data.batch_size={batch_size} can not be divided among {num_devices} devices (data.strong_scaling); "
            f"give {nearest}."
        )
    return share


def _check_shuffle(data: Any) -> None:
    given = data.shuffle_block, data.shuffle_window
    if data.shuffle == "full":
        if given != (SHUFFLE_BLOCK, SHUFFLE_WINDOW):
            log.warning(
                "data.shuffle_block and data.shuffle_window change nothing without --data.shuffle block."
            )
    elif data.shuffle_window < data.shuffle_block:
        raise UserError(
            f"data.shuffle_window={data.shuffle_window} must be at least data.shuffle_block={data.shuffle_block}: a "
            "window is made of whole blocks."
        )


def fit_batch_size(
    batch_size: int, num_pictures: int, num_devices: int, drop_last: bool
) -> int:
    """Return a device's batch, no larger than its training set, and say what a dropped rest means.

    Args:
        batch_size: What was asked for.
        num_pictures: Training pictures of all devices.
        num_devices: Devices.
        drop_last: Whether a last short batch is left out.

    Raises:
        UserError: There are too few pictures.
    """
    num_samples = num_pictures // num_devices
    if num_samples < 2:
        raise UserError(
            f"data.root has {num_pictures} training pictures for {num_devices} devices; each needs two, the fewest "
            "that BatchNorm can work on."
        )
    if batch_size > num_samples:
        log.warning(
            "data.batch_size=%d is more than the %d training pictures of a device; using %d.",
            *(batch_size, num_samples, num_samples),
        )
        batch_size = num_samples
    rest = num_samples % batch_size
    if rest == 1 and not drop_last:
        log.warning(
            "data.drop_last=False uses all but one of %d training pictures each epoch: alone in the last "
            "batch of %d it has no variance for BatchNorm.",
            *(num_samples, batch_size),
        )
    if drop_last and rest > 0.1 * num_samples:
        log.warning(
            "%d of %d training pictures are left out each epoch, since they do not fill a batch of %d; "
            "a smaller data.batch_size or --data.drop_last false uses them.",
            *(rest, num_samples, batch_size),
        )
    return batch_size
