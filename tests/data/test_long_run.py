"""Five epochs under a Trainer leave as many files, threads and shared segments as three."""

import sys

import pytest
from conftest import REPO

sys.path.insert(0, str(REPO / "benchmarks"))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore::UserWarning")  # Lightning's about few workers
def test_nothing_piles_up_over_epochs(root, workers):
    import long_run

    rows = long_run.measure_epochs(
        root, 5, batch_size=8, image_size=16, num_workers=workers, num_threads=2
    )
    counted = [
        {name: value for name, value in row.items() if not name.endswith("_mib")}
        for row in rows
    ]
    assert counted[2] == counted[3] == counted[4]
    assert rows[0]["processes"] == 2 * workers  # of train and of val


def test_growth_is_found():
    import long_run

    flat = {"main_mib": 100.0, "main_files": 7}
    assert long_run.find_growth([flat] * 5) == []
    grown = [*[flat] * 4, {"main_mib": 103.0, "main_files": 8}]
    assert long_run.find_growth(grown) == [
        "main_mib: 100.0 to 103.0",
        "main_files: 7.0 to 8.0",
    ]
    early = [{"main_mib": 50.0, "main_files": 2}, {"main_mib": 60.0, "main_files": 3}]
    assert long_run.find_growth([*early, flat, {**flat, "main_mib": 101.9}]) == []
