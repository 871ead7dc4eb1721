"""Files that are locked for a moment, or for good."""

import errno
import os

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
    opens = os.open

    def set_failures(error, times):
        left = [times]

        def fail_or_open(path, flags):
            if left[0]:
                left[0] -= 1
                raise error
            return opens(path, flags)

        monkeypatch.setattr("imnet_pl.data.reading.os.open", fail_or_open)

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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_refused_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(OSError, match="no regular file"):
        reading.read_file(str(tmp_path / "pipe.jpg"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no /dev/zero")
def test_a_device_is_refused():
    with pytest.raises(OSError, match="no regular file"):
        reading.read_file("/dev/zero")


def test_every_byte_is_kept(tmp_path):
    content = bytes(range(256)) + b"\r\n\x1a\n"
    (tmp_path / "a.jpg").write_bytes(content)
    assert reading.read_file(str(tmp_path / "a.jpg")) == content
