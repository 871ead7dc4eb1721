"""Pictures a second of other loaders beside ours: DALI on the CPU, FFCV and WebDataset, where they are installed.

python benchmarks/peers.py [--pictures DIR] [--repeats 5] [--json FILE]

They are no dependencies: ``pip install nvidia-dali-cuda120 webdataset``; FFCV has to be compiled. All sides run in turn
in one run, with as many threads or processes as cores; the ratios count. Needs an idle machine.

Every side makes training batches of 128 pictures of 224 px, cropped and flipped at random. DALI, FFCV and ours give uint8; the
others, as they are usually written, float32 that is normalised. FFCV keeps pictures encoded anew at quality 90 in its
own format. The FFCV side was written by its documentation and has not been run.
"""

import gc
import importlib.util
import json
import os
import statistics
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import jpegs_in, loader_arguments, machine_facts
from loading import (
    BATCH,
    WARM_UP,
    make_root,
    measure_ours,
    measure_seed,
    shrink,
    time_batches,
)
from seed_loader import PillowDataset

SIZE = 224
NUM_TARS = 4  # WebDataset deals whole tar files out to its workers
PICTURE_SETS = ("originals", "short side 256")
NOT_INSTALLED = "not installed"


def dali_batches(data: Any, _: Path) -> Iterator[tuple[Any]]:
    """Yield batches of a DALI pipeline on the CPU."""
    from nvidia.dali import fn, pipeline_def

    index = data.indices["train"]
    files = [index.path(i) for i in range(len(index))]

    @pipeline_def(
        batch_size=BATCH,
        num_threads=os.cpu_count() or 1,
        device_id=None,
    )
    def pipeline() -> tuple[Any, Any]:
        read = {"random_shuffle": True, "name": "reader"}
        encoded, labels = fn.readers.file(
            files=files, labels=index.labels.tolist(), **read
        )
        decoded = fn.decoders.image_random_crop(
            encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        resized = fn.resize(decoded, size=[SIZE, SIZE], antialias=True)
        return fn.flip(resized, horizontal=fn.random.coin_flip()), labels

    built = pipeline()
    built.build()
    while True:
        yield (built.run()[0].as_array(),)


def ffcv_batches(data: Any, folder: Path) -> Iterator[tuple[Any]]:
    """Yield batches of an FFCV loader on a file that is written once."""
    import numpy as np
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter
    from PIL import Image

    index, cores = data.indices["train"], os.cpu_count() or 1
    file = folder / "train.beton"
    if not file.exists():

        class Pictures:
            def __len__(self) -> int:
                return len(index)

            def __getitem__(self, i: int) -> tuple[Any, int]:
                with Image.open(index.path(i)) as image:
                    return np.asarray(image.convert("RGB")), int(index.labels[i])

        fields = {
            "image": RGBImageField(write_mode="jpg", jpeg_quality=90),
            "label": IntField(),
        }
        DatasetWriter(str(file), fields, num_workers=cores).from_indexed_dataset(
            Pictures()
        )
    image = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip()]
    yield from Loader(
        str(file),
        batch_size=BATCH,
        num_workers=cores,
        order=OrderOption.RANDOM,
        drop_last=True,
        pipelines={
            "image": [*image, ToTensor(), ToTorchImage()],
            "label": [IntDecoder(), ToTensor()],
        },
    )


class Transform:
    """What the usual DataLoader does to a picture, to one that is decoded already."""

    def __init__(self) -> None:
        self.transform = PillowDataset([], [], train=True).transform

    def __call__(self, picture: tuple[Any, str]) -> tuple[Any, int]:
        """Return (float32 [3, S, S], label) of (picture, name)."""
        image, name = picture
        return self.transform(image), int(Path(name).parent.name.split("_")[-1])


def web_batches(data: Any, folder: Path) -> Iterator[tuple[Any, Any]]:
    """Yield batches of a WebDataset loader with as many spawned workers as cores, on tar files that are written once."""
    import webdataset

    index = data.indices["train"]
    tars = [folder / f"train-{i}.tar" for i in range(NUM_TARS)]
    for number, file in enumerate(tars):
        if not file.exists():
            with tarfile.open(file, "w") as tar:
                for i in range(number, len(index), NUM_TARS):
                    path = Path(index.path(i))
                    name = f"{path.parent.name}/{path.stem}.jpg"
                    tar.add(path.resolve(), arcname=name)
    urls = [f"file:{file.as_posix()}" for file in tars]
    dataset = (
        webdataset.WebDataset(urls, shardshuffle=NUM_TARS)
        .shuffle(1000)
        .decode("pil")
        .to_tuple("jpg", "__key__")
        .map(Transform())
        .batched(BATCH, partial=False)
    )
    loader = webdataset.WebLoader(
        dataset,
        batch_size=None,
        num_workers=os.cpu_count() or 1,
        multiprocessing_context="spawn",
    )
    yield from loader


# side: (the module that must be installed, what makes its batches)
PEERS: dict[str, tuple[str, Callable[[Any, Path], Iterator[Any]]]] = {
    "DALI (CPU)": ("nvidia.dali", dali_batches),
    "FFCV": ("ffcv", ffcv_batches),
    "WebDataset, PIL": ("webdataset", web_batches),
}
SEED, OURS = "DataLoader, 2 workers, PIL", "ours"


def is_installed(module: str) -> bool:
    """Tell whether a module can be found."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def measure_peer(name: str, data: Any, folder: Path, count: int) -> float | str:
    """Return pictures a second of another loader, or why there is no figure."""
    module, batches = PEERS[name]
    if not is_installed(module):
        return NOT_INSTALLED
    try:
        return time_batches(batches(data, folder), count)[1]
    except Exception as error:  # noqa: BLE001  # of a program that is not ours; the rest is measured
        first_line = str(error).strip().partition("\n")[0]
        return f"fails: {type(error).__name__}: {first_line}"


def measure(
    sets: dict[str, tuple[Any, Path]], repeats: int, count: int
) -> dict[str, dict[str, list[float] | str]]:
    """Run every side in turn on every set of pictures; return pictures a second, or why there are none."""
    found: dict[str, dict[str, Any]] = {
        name: {which: [] for which in sets} for name in (SEED, *PEERS, OURS)
    }
    for _ in range(repeats):
        for name, rates in found.items():
            for which, (data, folder) in sets.items():
                if isinstance(rates[which], str):
                    continue
                if name in PEERS:
                    rate = measure_peer(name, data, folder, count)
                else:
                    side = measure_ours if name == OURS else measure_seed
                    rate = side(data, "train", count)[1]
                if isinstance(rate, str):
                    rates[which] = rate
                else:
                    rates[which].append(rate)
                gc.collect()  # the side's worker processes end with its loader
    return found


def open_sets(folder: Path, pictures: Path, least: int) -> dict[str, tuple[Any, Path]]:
    """Return (data module, folder for what others write) of the pictures as they are, and of shrunk ones."""
    from imnet_pl.data.datamodule import ImageNetDataModule

    sources = (pictures, shrink(pictures, folder / "small"))
    sets = {}
    for name, source in zip(PICTURE_SETS, sources, strict=True):
        root, written = folder / name, folder / f"{name}, written"
        written.mkdir()
        make_root(source, root, least)
        data = ImageNetDataModule(str(root), batch_size=BATCH, eval_batch_size=BATCH)
        data.setup("fit")
        sets[name] = data, written
    return sets


def show(figures: dict[str, Any]) -> None:
    """Print the figures as a table."""
    print(f"load before: {figures['load_before']:.2f}; cores: {figures['cores']}\n")
    rates = figures["pictures_per_sec"]
    print(f"{'':28}" + "".join(f"{name:>34}" for name in PICTURE_SETS))
    for name, row in rates.items():
        cells = []
        for which in PICTURE_SETS:
            rate = row[which]
            if isinstance(rate, str):
                cells.append(rate)
                continue
            pairs = [a / b for a, b in zip(rate, rates[SEED][which], strict=True)]
            per_sec, ratio = statistics.median(rate), statistics.median(pairs)
            cells.append(f"{per_sec:.0f} pictures/s, {ratio:.2f} x")
        print(f"{name:28}" + "".join(f"{cell[:32]:>34}" for cell in cells))
    for name, row in rates.items():
        for why in {rate for rate in row.values() if isinstance(rate, str)}:
            if why != NOT_INSTALLED:
                print(f"\n{name} {why}")


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = loader_arguments(__doc__)
    args = parser.parse_args()
    jpegs_in(args.pictures)  # or the end, before anything is made
    facts = machine_facts()
    with tempfile.TemporaryDirectory() as temporary:
        # WebDataset's workers leave out the rest of their tar files: twice as many pictures are enough.
        least = 2 * (WARM_UP + args.batches) * BATCH
        sets = open_sets(Path(temporary), args.pictures, least)
        found = measure(sets, args.repeats, args.batches)
    figures = {**facts, "pictures_per_sec": found}
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
