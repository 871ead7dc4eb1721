"""What a long scan says while it runs: one line that is rewritten, or a log line now and then."""

import io
import logging
import sys

import pytest

from imnet_pl.data.catalog import Catalog
from imnet_pl.data.sources import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def no_waiting(monkeypatch):
    for name in ("_QUIET_SECS", "_TERMINAL_SECS", "_LOG_SECS"):
        monkeypatch.setattr(progress, name, 0)


def test_a_line_on_a_terminal_is_rewritten_and_goes(
    root, monkeypatch, caplog, no_waiting
):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    with caplog.at_level(logging.INFO):
        Catalog(str(root)).index("train")
    lines = terminal.getvalue().split("\r")
    counts = [line.split(": ")[-1].split(" in ")[0] for line in lines if line.strip()]
    assert counts == ["8 pictures", "16 pictures", "24 pictures"]
    assert max(map(len, lines)) <= 59
    assert lines[-1] == ""  # it is blank, and the cursor stands at its start
    assert set(lines[-2]) == {" "}
    assert "\n" not in terminal.getvalue()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert said[0].startswith(f"indexed train in {str(root)!r}: 24 pictures in ")


def test_without_a_terminal_there_are_log_lines(root, caplog, capsys, no_waiting):
    with caplog.at_level(logging.INFO):
        Catalog(str(root)).index("train")
    said = [record.getMessage() for record in caplog.records]
    assert [text.split()[0] for text in said] == ["indexing"] * 3 + ["indexed"]
    assert capsys.readouterr().err == ""


def test_a_short_scan_and_a_rank_that_is_not_to_speak_say_nothing(
    root, caplog, monkeypatch, no_waiting
):
    with caplog.at_level(logging.ERROR):
        Catalog(str(root)).index("val")
    monkeypatch.setattr(progress, "_QUIET_SECS", 1000)
    with caplog.at_level(logging.INFO):
        Catalog(str(root)).index("train")
    assert caplog.records == []
