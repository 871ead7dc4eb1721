"""The layouts that tests write, all of the same few pictures, and how a test reads them."""

import csv
import shutil

import numpy as np
from conftest import CLASSES, write_jpeg
from scipy.io import savemat

from imnet_pl.data.sources import auto

WNIDS = ("n01440764", "n02012849", "n03126707")
# Ids of the devkit are not in the order of wnids.
DEVKIT_IDS = {"n01440764": 3, "n02012849": 1, "n03126707": 2}
TRAIN = {f"{wnid}_{i}.JPEG": wnid for wnid in WNIDS for i in range(4)}
VAL = {
    f"ILSVRC2012_val_{i + 1:08d}.JPEG": WNIDS[label]
    for i, label in enumerate((2, 0, 1, 1, 2, 0))
}


def index(root, split, classes=CLASSES, **options):
    return auto.index_split(root, split, classes, **options)


def paths_of(image_index):
    return [image_index.relative_path(i) for i in range(len(image_index))]


def labels_of(image_index):
    """Return file name -> label."""
    names = [path.rpartition("/")[2] for path in paths_of(image_index)]
    return dict(zip(names, image_index.labels.tolist(), strict=True))


def classes_of(image_index):
    """Return file name -> class name."""
    names = image_index.classes
    return {file: names[label] for file, label in labels_of(image_index).items()}


def assert_same(index, other):
    """Compare two indices by all that they hold."""
    assert paths_of(index) == paths_of(other)
    assert index.labels.tolist() == other.labels.tolist()
    assert (index.classes, index.root) == (other.classes, other.root)
    assert index.fingerprint == other.fingerprint
    for name in ("groups", "times"):
        column, expected = getattr(index, name), getattr(other, name)
        assert (column is None) == (expected is None)
        if column is not None:
            assert column.codes.tolist() == expected.codes.tolist()
            assert column.names == expected.names


def write_labels(root, text, encoding="utf-8", where="val"):
    (root / where / "val_label.txt").write_bytes(text.encode(encoding))


def write_pool(folder):
    """Write each picture once; every layout copies them from here."""
    for seed, name in enumerate({**TRAIN, **VAL}):
        write_jpeg(folder / name, seed)
    return folder


def _copy(pool, folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(pool / name, folder / name)


def write_train(pool, folder):
    for wnid in WNIDS:
        _copy(pool, folder / wnid, [name for name, c in TRAIN.items() if c == wnid])


def write_rows(file, rows, delimiter=","):
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as text:
        csv.writer(text, delimiter=delimiter).writerows(rows)


def write_folder(pool, root):
    write_train(pool, root / "train")
    for wnid in WNIDS:
        _copy(pool, root / "val" / wnid, [n for n, c in VAL.items() if c == wnid])
    return root


def write_flat_val(pool, root):
    write_train(pool, root / "train")
    _copy(pool, root / "val", VAL)
    lines = [f"{name} {wnid}\n" for name, wnid in VAL.items()]
    (root / "val_label.txt").write_text("".join(lines), encoding="utf-8")
    return root


def write_solution(file, wnid_of):
    """Write Kaggle's labels: the order is mixed, and a picture may have several boxes."""
    rows = [
        [name.removesuffix(".JPEG"), f"{wnid} 111 108 441 193 {wnid} 1 2 3 4 "]
        for name, wnid in sorted(wnid_of.items(), reverse=True)
    ]
    write_rows(file, [["ImageId", "PredictionString"], *rows])


def write_kaggle(pool, root):
    tree = root / "ILSVRC" / "Data" / "CLS-LOC"
    write_train(pool, tree / "train")
    _copy(pool, tree / "val", VAL)
    _copy(pool, tree / "test", ["ILSVRC2012_val_00000001.JPEG"])
    write_solution(root / "LOC_val_solution.csv", VAL)
    lines = [f"{wnid} crane, the same name\n" for wnid in WNIDS]
    mapping = root / "LOC_synset_mapping.txt"
    mapping.write_text("".join(lines), encoding="utf-8")
    return root


def write_mat(file, wnids):
    """Write MATLAB's table of synsets: the classes, and one above them."""
    fields = ("ILSVRC2012_ID", "WNID", "words", "num_children", "children")
    rows = [(number, wnid, "crane", 0, []) for wnid, number in wnids.items()]
    rows.append((len(rows) + 1, "n00001740", "entity", 2, [1, 2]))
    table = np.zeros(len(rows), dtype=[(name, object) for name in fields])
    table[:] = rows
    file.parent.mkdir(parents=True, exist_ok=True)
    savemat(file, {"synsets": table})


def write_kit_2012(folder, ids=DEVKIT_IDS, val=VAL):
    write_mat(folder / "meta.mat", ids)
    lines = [f"{ids[wnid]}\n" for _, wnid in sorted(val.items())]
    truth = folder / "ILSVRC2012_validation_ground_truth.txt"
    truth.write_text("".join(lines), encoding="ascii")


def write_kit_2015(folder):
    folder.mkdir(parents=True)
    rows = [f"{wnid} {number} some_crane\n" for wnid, number in DEVKIT_IDS.items()]
    (folder / "map_clsloc.txt").write_text("".join(rows), encoding="ascii")
    lines = [f"{DEVKIT_IDS[wnid]}\n" for _, wnid in sorted(VAL.items())]
    truth = folder / "ILSVRC2015_clsloc_validation_ground_truth.txt"
    truth.write_text("".join(lines), encoding="ascii")


def write_devkit_2012(pool, root):
    write_train(pool, root / "train")
    _copy(pool, root / "val", VAL)
    write_kit_2012(root / "ILSVRC2012_devkit_t12" / "data")
    return root


def write_devkit_2015(pool, root):
    tree = root / "ILSVRC" / "Data" / "CLS-LOC"
    write_train(pool, tree / "train")
    _copy(pool, tree / "val", VAL)
    write_kit_2015(root / "ILSVRC" / "devkit" / "data")
    return root


def write_csv(pool, root):
    _copy(pool, root / "images", {**TRAIN, **VAL})
    rows = [[name, wnid, "train"] for name, wnid in TRAIN.items()]
    rows += [[name, wnid, "val"] for name, wnid in VAL.items()]
    write_rows(root / "data.csv", [["filename", "label", "split"], *rows])
    return root / "data.csv"


def write_tsv(pool, root):
    table = write_csv(pool, root)
    rows = list(csv.reader(table.read_text(encoding="utf-8").splitlines()))
    table.unlink()
    write_rows(root / "data.tsv", rows, "\t")
    return root / "data.tsv"


def write_label_csv(pool, root):
    for split, wnid_of in (("train", TRAIN), ("val", VAL)):
        _copy(pool, root / split / "images", wnid_of)
        rows = [["filename", "label"], *wnid_of.items()]
        write_rows(root / split / "label.csv", rows)
    return root


# name -> (what writes it, what auto takes val for)
LAYOUTS = {
    "folder": (write_folder, "folder"),
    "flat_val": (write_flat_val, "flat_val"),
    "kaggle": (write_kaggle, "kaggle"),
    "devkit_2012": (write_devkit_2012, "devkit"),
    "devkit_2015": (write_devkit_2015, "devkit"),
    "csv": (write_csv, "csv"),
    "tsv": (write_tsv, "csv"),
    "label_csv": (write_label_csv, "csv"),
}
