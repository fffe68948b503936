"""The example of docs/probe.md runs as it stands."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="probe needs PyTorch")

PAGE = (Path(__file__).parents[2] / "docs" / "probe.md").read_text()


def test_the_example_runs(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(compile(block, "probe.md", "exec"), names)
    assert names["seen"].sizes["layer"] == 2
    assert "nan" not in capsys.readouterr().out


def test_every_known_name_is_on_the_page():
    from synchronoise.probe.architectures import CONFIGURATIONS

    assert all(f"`{name}`" in PAGE for name in CONFIGURATIONS)
