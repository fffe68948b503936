"""Progress where there is no terminal: lines now and then, and a last one."""

from __future__ import annotations

from contextlib import suppress

from synchronoise.progress import Progress


def test_a_log_ends_with_the_whole(monkeypatch, capsys):
    monkeypatch.setattr(Progress, "seconds_between_lines", 0.0)
    with Progress("simulate", 4, "layer") as bar:
        bar.advance(1)
        monkeypatch.setattr(Progress, "seconds_between_lines", 1e9)
        bar.advance(3)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("|")[0].split()[1] for line in lines] == ["25%", "100%"]


def test_a_short_run_says_nothing_and_a_stopped_one_no_more(monkeypatch, capsys):
    with Progress("simulate", 4, "layer") as bar:
        bar.advance(4)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(Progress, "seconds_between_lines", 0.0)
    with suppress(KeyboardInterrupt), Progress("simulate", 4, "layer") as bar:
        bar.advance(1)
        raise KeyboardInterrupt
    assert len(capsys.readouterr().err.splitlines()) == 1
