"""One process speaks, whoever started the others."""

import pytest

from imnet_pl.core.ranks import is_first_rank

NAMES = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")


@pytest.mark.parametrize(
    ("variables", "is_first"),
    [
        ({}, True),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0"}, False),
        ({"NODE_RANK": "1"}, False),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "2", "LOCAL_RANK": "0"}, False),  # torchrun sets no NODE_RANK
        ({"SLURM_PROCID": "0"}, True),
        ({"SLURM_PROCID": "3"}, False),
        # A batch job without srun, in which Lightning starts the other ranks
        ({"SLURM_PROCID": "0", "LOCAL_RANK": "1"}, False),
    ],
)
def test_the_first_rank_is_known_by_variables(monkeypatch, variables, is_first):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_first_rank() == is_first
