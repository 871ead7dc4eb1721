"""Thousands of damaged pictures through the data check's processes: each is a picture or a finding with its path."""

import random
from functools import partial

import pytest
from inspection_probe import inspect_and_note
from mutations import generate, mutate

from imnet_pl.data.findings import find_all
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.inspection import inspect_index

pytestmark = pytest.mark.filterwarnings("ignore:::PIL")

LIMIT_CPU_SEC = 5
LIMIT_BYTES = 2**30


def write_damaged(folder, count, seed, sources):
    """Write damaged copies in turn of all pictures; returns their names."""
    names = []
    for number in range(count):
        rng = random.Random(seed * 1_000_003 + number)
        name = sorted(sources)[number % len(sources)]
        names.append(f"{number:05d}_{name}")
        data = mutate(sources[name], list(sources.values()), rng)
        (folder / names[-1]).write_bytes(data)
    return names


def inspect_damaged(tmp_path, count, seed, sources):
    folder, notes = tmp_path / "pictures", tmp_path / "notes"
    folder.mkdir()
    notes.mkdir()
    names = write_damaged(folder, count, seed, sources)
    index = ImageIndex.from_rows(folder, names, [0] * count, ["any"])
    inspect = partial(inspect_and_note, notes=str(notes))
    *_, seen = inspect_index(index, 2, inspect)
    crashed = {
        row: names[row] for row, text in seen.errors.items() if "crashed" in text
    }
    assert crashed == {}
    is_read = seen.heights > 0
    assert (is_read == (seen.widths > 0)).all()
    assert set(seen.errors) == set((~is_read).nonzero()[0].tolist())
    findings = [f for f in find_all({"train": seen}, None, True) if f.severity == "fix"]
    unreadable = {f.path: f.text for f in findings if f.kind == "unreadable"}
    assert set(unreadable) == {names[row] for row in seen.errors}
    assert all(unreadable.values())
    assert not any("MemoryError" in text for text in unreadable.values())
    assert min(len(unreadable), is_read.sum()) > count / 10
    require_bounds([note.read_text().splitlines() for note in notes.iterdir()], count)


def require_bounds(lines, count):
    """Check what each process noted of its files: none took long, and no process much memory."""
    rows = [line.split() for process in lines for line in process]
    assert len(rows) == count
    longest = max(rows, key=lambda row: float(row[0]))
    largest = max(rows, key=lambda row: int(row[1]))
    assert float(longest[0]) < LIMIT_CPU_SEC, longest
    assert int(largest[1]) < LIMIT_BYTES, largest


@pytest.fixture
def odd(assets):
    """Return the odd pictures by name, without the largest ones."""
    files = (assets / "odd-images").iterdir()
    return {
        file.name: file.read_bytes()
        for file in files
        if file.suffix != ".tsv" and 0 < file.stat().st_size <= 500_000
    }


def test_500_damaged_pictures(tmp_path):
    inspect_damaged(tmp_path, 500, 11, generate())


@pytest.mark.slow
def test_5000_damaged_odd_pictures(tmp_path, odd):
    inspect_damaged(tmp_path, 5000, 12, {**generate(), **odd})
