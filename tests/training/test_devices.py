"""benchmarks/devices.py measures real runs, and says whether more devices are worth it."""

import json
import subprocess
import sys

import pytest
from conftest import REPO

sys.path.insert(0, str(REPO / "benchmarks"))
from devices import Result, describe_worth

SCRIPT = REPO / "benchmarks" / "devices.py"


def result(devices, step, without_sync=None, wait_frac=0.0, device="GPU"):
    """Return what runs of 100 pictures a device would measure."""
    return Result(
        "ddp",
        devices,
        {
            "step_sec": step,
            "step_without_sync_sec": without_sync or step,
            "pictures_per_step": 100 * devices,
            "data_wait_frac": wait_frac,
            "gradient_bytes": 100_000_000,
            "cores": 2,
            "device": device,
        },
    )


@pytest.mark.parametrize(
    ("several", "sentence"),
    [
        (result(2, 1.1), "2 devices train 1.82 times as fast as 1: worth it."),
        (
            result(4, 1.5, 1.0),
            (
                "4 devices train 2.67 times as fast as 1: worth it in part, because the wait for the all-reduce of "
                "100.0 MB takes 500 ms of a step of 1500 ms."
            ),
        ),
        (
            result(2, 2.5, 2.4, device="CPU"),
            (
                "2 devices are slower than 1 here (0.80 times), because a step takes 2.4 times as long as alone even "
                "without the exchange: the ranks share the same 2 cores."
            ),
        ),
        (
            result(2, 2.0, 2.0, wait_frac=0.5),
            (
                "2 devices are no faster than 1 here (1.00 times), because 50 % of a step waits for data; a step takes "
                "2.0 times as long as alone even without the exchange: the ranks share the machine's cores, memory and "
                "disks."
            ),
        ),
    ],
)
def test_the_verdict_names_what_holds_devices_back(several, sentence):
    assert describe_worth(result(1, 1.0), several) == sentence


@pytest.mark.slow
def test_the_table_of_one_and_two_devices(tmp_path):
    file = tmp_path / "devices.json"
    command = [sys.executable, str(SCRIPT), "--steps", "1", "--json", str(file)]
    small = ["--data.batch_size=2", "--trainer.accelerator=cpu", "--data.num_workers=0"]
    done = subprocess.run(
        [*command, *small], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    one, two, dp = json.loads(file.read_text())
    assert (one["devices"], two["devices"]) == (1, 2)
    assert two["figures"]["pictures_per_step"] == 4
    assert two["figures"]["gradient_bytes"] == one["figures"]["gradient_bytes"] > 4e7
    assert two["figures"]["all_reduce_sec"] > 0
    assert dp["note"] == "not run: dp needs 2 GPUs"
    assert two["verdict"] in done.stdout
