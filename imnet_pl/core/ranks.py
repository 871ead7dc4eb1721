"""Which of a run's processes this one is, known before there are process groups."""

import os


def is_first_rank() -> bool:
    """Tell whether this process speaks for all: by the variables of torchrun, of srun, or of Lightning."""
    known = os.environ
    if "RANK" in known:  # torchrun
        return known["RANK"] == "0"
    if known.get("NODE_RANK", "0") != "0":
        return False
    if (
        "LOCAL_RANK" in known
    ):  # started by Lightning, which may itself run in a job of SLURM
        return known["LOCAL_RANK"] == "0"
    return known.get("SLURM_PROCID", "0") == "0"
