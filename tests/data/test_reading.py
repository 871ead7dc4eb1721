"""Files that are locked for a moment, or for good."""

import errno
from pathlib import Path

import pytest

from imnet_pl.data import reading


def winerror(number):
    error = OSError("held by another program")
    error.winerror = number
    return error


PASSING = [
    PermissionError(13, "denied"),
    winerror(32),
    winerror(33),
    TimeoutError("network"),
    OSError(errno.ETIMEDOUT, "timed out"),
    OSError(errno.EIO, "device"),
]


@pytest.fixture
def waits(monkeypatch):
    """The seconds that would be slept."""
    slept = []
    monkeypatch.setattr("imnet_pl.data.reading.time.sleep", slept.append)
    return slept


@pytest.fixture
def fail(monkeypatch):
    """Let reading fail with an error so many times."""
    read = Path.read_bytes

    def set_failures(error, times):
        left = [times]

        def read_bytes(self):
            if left[0]:
                left[0] -= 1
                raise error
            return read(self)

        monkeypatch.setattr(Path, "read_bytes", read_bytes)

    return set_failures


@pytest.mark.parametrize("error", PASSING, ids=repr)
@pytest.mark.parametrize("times", [1, 3])
def test_a_file_that_is_locked_for_a_moment_is_read(
    tmp_path, fail, waits, error, times
):
    (tmp_path / "a.jpg").write_bytes(b"content")
    fail(error, times)
    assert reading.read_file(str(tmp_path / "a.jpg")) == b"content"
    assert len(waits) == times


def test_a_file_that_stays_locked_is_given_up_after_two_seconds(tmp_path, fail, waits):
    (tmp_path / "a.jpg").write_bytes(b"content")
    fail(PASSING[0], 99)
    with pytest.raises(PermissionError):
        reading.read_file(str(tmp_path / "a.jpg"))
    assert len(waits) == 3
    assert sum(waits) == pytest.approx(2)


def test_an_absent_file_is_not_waited_for(tmp_path, waits):
    with pytest.raises(FileNotFoundError):
        reading.read_file(str(tmp_path / "no.jpg"))
    assert waits == []
