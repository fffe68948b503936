"""What is built is what is used: a wheel that installs, types included, and completion for the shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from synchronoise import cli

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_a_wheel_installs_and_runs(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("synchronoise-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "synchronoise/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "tests" in name]

    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(installed)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(installed)}

    def run(*words: str) -> str:
        return subprocess.run(
            [sys.executable, *words], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
        ).stdout

    assert Path(run("-c", "import synchronoise; print(synchronoise.__file__)").strip()).is_relative_to(installed)
    command = str(installed / "bin" / "synchronoise")
    assert run(command, "--version").strip() == "0.1.0"
    assert '"verdict"' in run(command, "theory", "--dim", "5")
    run(command, "simulate", "--layers", "2", "--replicas", "2", "--tokens", "4", "--dim", "3", "--width", "4")
    assert (tmp_path / "run.nc").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_and_flags(shell):
    script = cli.app.generate_completion(shell=shell)
    for word in ("simulate", "rerun", "sigma-u"):
        assert word in script


def test_versions_are_pinned_for_every_dependency():
    """`make` installs exact versions: nothing that is depended on is left to the day's newest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"] + project["dependency-groups"]["dev"]
    wanted += project["build-system"]["requires"]
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}

    def plain(name: str) -> str:
        return re.split(r"[<>=;\s]", name)[0].replace("-", "_").lower()

    assert {plain(name) for name in wanted} <= {plain(name) for name in pinned}
