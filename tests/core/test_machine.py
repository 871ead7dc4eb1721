"""Cores and memory that control groups, the kernel and Windows leave to this process."""

import os
from types import SimpleNamespace

import psutil
import pytest

from imnet_pl.core import machine
from imnet_pl.core.cgroup import Cgroups

GIB = 2**30


@pytest.fixture
def groups(tmp_path):
    """Return a function that writes a process's groups (name -> text) and opens them."""

    def make(membership, files):
        (tmp_path / "self").write_text(membership)
        for name, text in files.items():
            file = tmp_path / "mount" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return Cgroups(tmp_path / "self", tmp_path / "mount")

    return make


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000", None),
        ("150000 100000", 1),
        ("400000 100000", 4),
        ("5000 100000", 1),
        ("", None),
    ],
)
def test_quota_of_version_2(groups, text, cores):
    assert groups("0::/", {"cpu.max": text}).cores() == cores


def test_the_tightest_quota_around_a_nested_group_counts(groups):
    files = {
        "job/cpu.max": "300000 100000",
        "job/step/cpu.max": "max 100000",
        "other/cpu.max": "100000 100000",
    }
    assert groups("0::/job/step/task", files).cores() == 3


def test_quota_of_version_1(groups):
    files = {
        "cpu,cpuacct/job/cpu.cfs_quota_us": "250000",
        "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    membership = "5:cpu,cpuacct:/job\n4:memory:/elsewhere\n0::/\n"
    assert groups(membership, files).cores() == 2


def test_a_path_of_the_host_is_looked_for_at_the_mount_of_a_container(groups):
    assert groups("0::/docker/abc", {"cpu.max": "200000 100000"}).cores() == 2


def test_memory_that_is_left_counts_cached_files_as_free(groups):
    files = {
        "memory.max": str(4 * GIB),
        "memory.current": str(3 * GIB),
        "memory.stat": f"anon 5\ninactive_file {GIB}\n",
        "job/memory.max": "max",
        "job/memory.current": str(GIB),
    }
    assert groups("0::/job", files).free_memory() == 2 * GIB


@pytest.mark.parametrize(("limit", "left"), [(2 * GIB, GIB), (2**63 - 4096, None)])
def test_memory_of_version_1(groups, limit, left):
    files = {
        "memory/memory.limit_in_bytes": str(limit),
        "memory/memory.usage_in_bytes": str(GIB),
    }
    assert groups("4:memory:/", files).free_memory() == left


def test_kills_for_want_of_memory_are_counted(groups):
    assert (
        groups("0::/", {"memory.events": "low 0\noom 1\noom_kill 3\n"}).oom_kills() == 3
    )
    assert groups("9:cpu:/", {}).oom_kills() is None


def test_nothing_is_known_without_control_groups(tmp_path):
    none = Cgroups(tmp_path / "absent", tmp_path / "absent")
    assert (none.cores(), none.free_memory(), none.oom_kills()) == (None, None, None)


def test_cores_without_affinity_are_those_of_the_machine(monkeypatch):
    """As under Windows with more than 64 cores, and on a Mac."""
    monkeypatch.setattr(os, "cpu_count", lambda: 96)
    monkeypatch.setattr(Cgroups, "cores", lambda self: None)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: [], raising=False)
    assert machine.usable_cores() == 96


def test_the_tightest_bound_is_the_free_memory(monkeypatch):
    available = psutil.virtual_memory().available
    monkeypatch.setattr(Cgroups, "free_memory", lambda self: 5)
    assert machine.free_memory() == 5
    monkeypatch.setattr(machine, "_free_commit", lambda: 3)
    assert machine.free_memory() == 3
    monkeypatch.undo()
    assert 0 < machine.free_memory() <= 2 * available


def test_commit_limit_of_windows(monkeypatch):
    def fill(reference):
        reference._obj.ullAvailPageFile = 7 * GIB
        assert reference._obj.dwLength == 64
        return 1

    kernel = SimpleNamespace(GlobalMemoryStatusEx=fill)
    monkeypatch.setattr(machine.sys, "platform", "win32")
    windll = SimpleNamespace(kernel32=kernel)
    monkeypatch.setattr(machine.ctypes, "windll", windll, raising=False)
    assert machine._free_commit() == 7 * GIB


def test_shared_memory_that_is_free(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_SHARED_MEMORY", tmp_path)
    if hasattr(os, "statvfs"):
        assert machine.free_shared_memory() > 0
    monkeypatch.setattr(machine, "_SHARED_MEMORY", tmp_path / "absent")
    assert machine.free_shared_memory() is None


def test_open_files():
    assert machine.num_open_files() > 0
    assert machine.num_open_files(2**22 + 1) is None
