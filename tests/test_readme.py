"""The README's ten lines run as they stand, and its commands exist."""

import re
from importlib.metadata import version
from pathlib import Path

import matplotlib
import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_ten_lines_run(tmp_path, monkeypatch):
    matplotlib.use("Agg")
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "energy.png").stat().st_size > 10_000
    mean = names["run"].energy.mean("replica").values
    error = names["run"].energy.std("replica").values / 8
    theory = (1 - 1 / 16) * names["exact"].mean
    assert (abs(mean - theory) < 5 * error + 0.01).all()  # 0.01: 100 layers of width 256 are not the limit
    matplotlib.pyplot.close("all")


def test_pictures_and_pages_exist():
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (Path(__file__).parent.parent / target).exists(), target


@pytest.mark.parametrize("command", sorted(set(re.findall(r"synchronoise ([a-z]+) --?[a-z]", README))))
def test_commands_exist(command):
    from synchronoise.cli import app

    assert command in app


def test_the_example_of_a_noise_of_your_own_runs():
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(compile(block, "architecture.md", "exec"), names)
    assert names["run"]["energy"].shape == (4, 51)


def test_the_version_is_that_of_the_installation():
    import synchronoise

    assert synchronoise.__version__ == version("synchronoise")
