"""The loader that people write first: PIL, torchvision transforms, a DataLoader with worker processes."""

from typing import Any

from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class PillowDataset(Dataset[Any]):
    """Pictures by PIL; training: random resized crop and flip, evaluation: resize and centre crop.

    Args:
        paths: Picture files.
        labels: Their labels.
        train: Which transform.
        image_size: Side of the result in px.
        resize: Short side before the centre crop in px.
        train_scale: Least and largest share of the area of a training crop.
    """

    def __init__(
        self,
        paths: list[str],
        labels: list[int],
        train: bool,
        image_size: int = 224,
        resize: int = 256,
        train_scale: tuple[float, float] = (0.08, 1.0),
    ) -> None:
        self.paths, self.labels = paths, labels
        geometry: list[Any] = [
            transforms.Resize(resize),
            transforms.CenterCrop(image_size),
        ]
        if train:
            geometry = [
                transforms.RandomResizedCrop(image_size, scale=train_scale),
                transforms.RandomHorizontalFlip(),
            ]
        self.transform = transforms.Compose(
            [*geometry, transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), self.labels[index]


def seed_loader(
    dataset: PillowDataset, train: bool, batch_size: int = 128
) -> "DataLoader[Any]":
    """Return a DataLoader with 2 spawned, persistent workers."""
    return DataLoader(
        dataset,
        batch_size,
        shuffle=train,
        drop_last=train,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
