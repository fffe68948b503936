"""The command line: immediate help, one line for a mistake, the right exit status."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from synchronoise import cli
from synchronoise.cli import common, exact
from synchronoise.errors import RunError
from synchronoise.options import OPTIONS

COMMANDS = [name for name in cli.app if not name.startswith("-")]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from synchronoise.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_imports_nothing_heavy(command):
    """What costs time at the start is imports; a wall-clock assertion would only test the machine's load."""
    arguments = [command, "--help"] if command else ["--help"]
    script = (
        "import sys\nfrom synchronoise.cli import status\n"
        f"code = status({arguments!r})\n"
        "heavy = {'jax', 'scipy', 'pydantic', 'xarray', 'matplotlib', 'numpy'}\n"
        "print(code, *sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["0"]
    assert "Usage: synchronoise" in done.stdout


def test_every_option_is_a_flag_and_every_default_is_shown():
    flags = common.RunFlags.__dataclass_fields__
    assert set(flags) == set(OPTIONS)
    done = run("init", "--help")
    text = " ".join(done.stdout.replace("│", " ").split())
    for name, option in OPTIONS.items():
        assert f"--{name.replace('_', '-')} " in text
        assert f"[default: {option.default}]" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["theoy"], 'Did you mean "theory"?'),
        (["theory", "--dmi", "3"], "Did you mean --dim?"),
        (["theory", "--dim", "three"], "got 'three', expected an integer"),
        (["theory", "--dim"], "--dim requires an argument"),
        (["theory", "--dim", "1"], "dim: got 1, expected an integer >= 2; for example dim = 64"),
        (["theory", "--activation", "rellu"], "did you mean 'relu'?"),
        (["show", "no.nc"], "cannot read no.nc: No such file or directory"),
        (["init"], "requires an argument"),
    ],
)
def test_a_mistake_is_one_line_and_exits_with_2(capsys, arguments, message):
    assert cli.status(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("synchronoise: ")
    assert said.err.count("\n") == 1
    assert message in said.err


def test_a_failed_run_exits_with_1_and_an_interrupt_with_130(capsys, monkeypatch):
    for error, code, line in [
        (RunError("the disk is full"), 1, "the disk is full"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "out of memory; use fewer --replicas or --tokens, or a smaller --width"),
    ]:

        def fail(*_, error=error, **__):
            raise error

        monkeypatch.setattr(exact, "report", fail)
        assert cli.status(["theory"]) == code
        assert capsys.readouterr().err == f"synchronoise: {line}\n"


def test_a_fault_of_ours_is_not_hidden(monkeypatch):
    """Only what a user can cause is one line; a defect keeps its traceback."""

    def fail(*_, **__):
        raise ValueError("a defect")

    monkeypatch.setattr(exact, "report", fail)
    with pytest.raises(ValueError, match="a defect"):
        cli.status(["theory"])


def test_a_sick_installation_fails(capsys, monkeypatch):
    monkeypatch.setattr("synchronoise.doctor.examine", lambda: {"healthy": False})
    assert cli.status(["doctor"]) == 1
    assert "computes wrong numbers" in capsys.readouterr().err


def test_warnings_are_one_line_on_stderr():
    script = (
        "import warnings\nfrom synchronoise import cli\n"
        "cli.exact.report = lambda *_, **__: warnings.warn('near the floor')\n"
        "cli.main(['theory'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "synchronoise: warning: near the floor\n")


def test_theory_is_one_json_object():
    done = run("theory", "--activation", "relu", "--dim", "5", "--sigma-u", "0.1")
    assert done.returncode == 0
    assert json.loads(done.stdout)["dim"] == 5
    assert run("theory", "--dim", "x").returncode == 2


def test_init_writes_a_run_that_reads_back_and_never_overwrites(tmp_path, capsys):
    path = tmp_path / "run.toml"
    assert cli.status(["init", str(path), "--dim", "7", "--width", "inf"]) == 0
    assert "synchronoise simulate" in capsys.readouterr().out
    text = path.read_text()
    assert "dim = 7\n" in text
    assert 'width = "inf"\n' in text
    assert cli.status(["init", str(path)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert path.read_text() == text
    assert cli.status(["init", str(path), "--overwrite"]) == 0
    assert path.read_text() != text


def test_output_cut_short_by_its_reader_is_silent():
    done = subprocess.run(
        f"{sys.executable} -c 'from synchronoise.cli import main; main()' theory --help | true",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
