"""Writing a checkpoint so that a readable one remains whatever happens meanwhile."""

import logging
import os
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from imnet_pl.core.files import replace_file

log = logging.getLogger(__name__)

_SPARE_BYTES = 16 * 2**20
_FOLDER_BIT = 0x10  # of a part's attributes


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes beside the old file, flushes, checks, and only then replaces it.

    A failure does not raise, since with several devices the others wait meanwhile; it is kept in ``failure``
    for who asked for the checkpoint.
    """

    def __init__(self) -> None:
        self.failure: str | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint; afterwards ``failure`` says why it could not be, or is None."""
        self.failure = None
        target = Path(path)
        partial = target.with_name(f"{target.name}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            require_space(target)
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                sync_and_verify(file.fileno(), partial)
            replace_file(partial, target)
            warn_if_nearly_full(target)
        # RuntimeError: what torch raises when the disk is full
        except (OSError, RuntimeError, zipfile.BadZipFile) as error:
            self.failure = f"{str(target)!r} could not be written ({error})"
            partial.unlink(missing_ok=True)

    def load_checkpoint(
        self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint to the CPU; nothing but tensors and plain types is ever loaded."""
        content: dict[str, Any] = super().load_checkpoint(
            path, map_location=lambda storage, _: storage, weights_only=True
        )
        return content


def require_space(target: Path) -> None:
    """Raise OSError unless the file that is there fits a second time.

    Raises:
        OSError: The disk has less room than the checkpoint needs.
    """
    if not target.exists():
        return
    needed = target.stat().st_size + _SPARE_BYTES
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise OSError(
            f"{needed / 2**20:.0f} MiB are needed, {free / 2**20:.0f} MiB are free"
        )


def warn_if_nearly_full(target: Path) -> None:
    """Warn where the next checkpoint will not fit beside the one that is there."""
    try:
        require_space(target)
    except OSError as error:
        log.warning(
            "the disk of %s is nearly full: for the next checkpoint %s.", target, error
        )


def sync_and_verify(descriptor: int, path: Path) -> None:
    """Put a written file onto the disk and read it back, both at once: one waits while the other computes.

    Raises:
        OSError: The disk is full or broken.
        zipfile.BadZipFile: The file is not what was written.
    """
    with ThreadPoolExecutor(1) as pool:
        synced = pool.submit(os.fsync, descriptor)
        verify_archive(path)
        synced.result()


def verify_archive(path: Path) -> None:
    """Read all of a checkpoint and compare its checksums.

    Raises:
        zipfile.BadZipFile: The file is damaged, or torch did not write it.
    """
    with zipfile.ZipFile(path) as archive:
        for part in archive.infolist():
            # No checksum covers these two. Torch unpacks nothing, and fills a "folder" with zeros.
            is_folder = part.external_attr & _FOLDER_BIT
            if is_folder or part.compress_type != zipfile.ZIP_STORED:
                raise zipfile.BadZipFile(
                    f"the part {part.filename} is marked as compressed or a folder"
                )
        if damaged := archive.testzip():
            raise zipfile.BadZipFile(f"the part {damaged} is not as it was written")
