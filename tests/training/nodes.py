"""Processes of one run on several nodes, which all are this machine; or hosts of their own, as network namespaces."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from conftest import REPO

PROBE = Path(__file__).with_name("node_probe.py")
LIMIT_SEC = 180


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def node_env(node, port, address="127.0.0.1", **more):
    """Return the environment by which Lightning knows a node, as on Windows or by hand."""
    place = {"MASTER_ADDR": address, "MASTER_PORT": str(port), "NODE_RANK": str(node)}
    paths = [str(REPO), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    own = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return own | place | more


def start(args, folder, env, before=()):
    """Start the command line in a folder, which is made; ``before`` is what the command is given to."""
    folder.mkdir(exist_ok=True)
    command = args if before[-1:] == ("torchrun",) else [str(PROBE), *args]
    if before[-1:] == ("torchrun",):
        before = (*before[:-1], sys.executable, "-m", "torch.distributed.run")
    else:
        before = (*before, sys.executable)
    return subprocess.Popen(
        [*before, *command],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes):
    """Wait for processes and return (exit status, what it said) of each."""
    try:
        shown = [process.communicate(timeout=LIMIT_SEC)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        (process.returncode, text)
        for process, text in zip(processes, shown, strict=True)
    ]
