"""Processes of one run on several nodes, which all are this machine; or hosts of their own, as network namespaces."""

import os
import socket
import subprocess
import sys
import time
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


def start(args, folder, env, before=(), launcher=()):
    """Start the command line in a folder, which is made.

    Args:
        args: Its arguments.
        folder: Where.
        env: Environment.
        before: Command that runs it, such as ``ip netns exec NAME``.
        launcher: Arguments of torchrun, if that starts the rank.
    """
    folder.mkdir(exist_ok=True)
    torchrun = ("-m", "torch.distributed.run", *launcher) if launcher else ()
    return subprocess.Popen(
        [*before, sys.executable, *torchrun, str(PROBE), *args],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_until_held(processes, folders):
    """Wait until all of them stand before the step that PROBE_HOLD names."""
    end = time.monotonic() + LIMIT_SEC
    while not all((folder / "held").exists() for folder in folders):
        if time.monotonic() > end or any(p.poll() is not None for p in processes):
            for process in processes:
                process.kill()
            raise AssertionError([process.communicate() for process in processes])
        time.sleep(0.05)


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


class Hosts:
    """Two hosts on this machine: network namespaces with names of their own and a cable between them."""

    ADDRESSES = ("10.77.0.1", "10.77.0.2")

    def __init__(self):
        self.spaces = [f"imnet-{os.getpid()}-{name}" for name in "ab"]
        self.ends = [f"im{os.getpid()}{name}" for name in "ab"]

    def build(self):
        """Make them.

        Raises:
            OSError, subprocess.CalledProcessError: It is not allowed here, or there is no ``ip``.
        """
        for space in self.spaces:
            _ip("netns", "add", space)
        (a, b), (end_a, end_b) = self.spaces, self.ends
        peer = ("type", "veth", "peer", "name", end_b, "netns", b)
        _ip("link", "add", end_a, "netns", a, *peer)
        for space, end, address in zip(
            self.spaces, self.ends, self.ADDRESSES, strict=True
        ):
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", end)
            _ip("-n", space, "link", "set", end, "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def on(self, node):
        """Return the command that runs another one on a host, whose name is host-a or host-b."""
        name = f'hostname host-{"ab"[node]} && exec "$@"'
        in_space = ("ip", "netns", "exec", self.spaces[node])
        return (*in_space, "unshare", "--uts", "sh", "-c", name, "sh")

    def cut(self):
        """Pull the cable out; what was sent is lost, and nobody is told."""
        _ip("-n", self.spaces[1], "link", "set", self.ends[1], "down")

    def remove(self):
        """Remove what was made."""
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


def _ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True)
