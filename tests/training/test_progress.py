"""What a person sees."""

import re

from conftest import fit_args

from imnet_pl.cli import main


def test_progress_bar_on_a_terminal(
    root, in_tmp, tiny_network, capsys, monkeypatch
):  # S27
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert (
        main(fit_args(root, "--trainer.max_epochs", "1", "--model.warmup_epochs", "0"))
        == 0
    )
    out = "".join(capsys.readouterr())
    for shown in ("loss=", "lr=", "pictures/s="):
        assert shown in out
    line = r"epoch 1/1  train loss [\d.]+  val loss .*n 9  [\d.]+ s"
    assert any(re.fullmatch(line, text) for text in out.splitlines()), out
