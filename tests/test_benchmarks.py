"""The benchmark compares what it says: the other programs take the same step, and the table names ratios.  No times."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import synchronoise as sn

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in ("bench", "others", "parts", "table", "timing"):
        sys.modules.pop(name, None)


def energies(tokens):
    """E_1 of each replica."""
    x = np.asarray(tokens, float)
    return (np.e - np.exp(x @ x.transpose(0, 2, 1))).mean(axis=(1, 2)) / 2


@pytest.mark.stat
@pytest.mark.parametrize("program", ["numpy", "torch", "torchsde", "diffrax", "diffrax tree"])
def test_other_programs_solve_the_same_equation(program, benchmarks):
    """Mean energy of 256 × 4 tokens, d = 5, at T = 1 in 50 steps, within 5 standard errors of ours and of theirs."""
    package = program.split()[0]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -c constraints.txt 'synchronoise[bench]'")
    import others

    size, layers = (256, 4, 5), 50
    run = {
        "numpy": lambda: others.numpy_run(*size, layers),
        "torch": lambda: others.torch_run(*size, layers),
        "torchsde": lambda: others.torchsde_run(*size, layers),
        "diffrax": lambda: others.diffrax_run(*size, layers, unsafe=True),
        "diffrax tree": lambda: others.diffrax_run(*size, layers, unsafe=False),
    }[program]()
    theirs = np.asarray(run()).reshape(-1, *size)[-1]  # torchsde also gives the start
    theirs = theirs / np.linalg.norm(theirs, axis=2, keepdims=True)
    model = sn.Transformer(sn.SoftmaxAttention(1.0), sn.GaussianField(others.law(5)), layers=layers, horizon=1.0)
    ours = sn.simulate(model, others.start(*size), replicas=256, every=layers, observers=(), save_tokens=True)
    samples = energies(theirs), energies(ours["tokens"].values[:, -1])
    error = np.hypot(*(sample.std(ddof=1) / 16 for sample in samples))
    assert abs(samples[0].mean() - samples[1].mean()) <= 5 * error
    assert abs(energies(others.start(*size)).mean() - samples[1].mean()) > 5 * error  # it moved


def test_the_table_has_ratios_and_the_machine(benchmarks, tmp_path):
    from table import write
    from timing import machine

    rows = [
        {"case": "ensemble", "setting": "s", "method": method, "value": value, "unit": "us per replica-step"}
        for method, value in (("synchronoise", 10.0), ("NumPy", 25.0))
    ]
    write(rows, machine(), tmp_path)
    assert "| ensemble | s | NumPy | 25 us per replica-step | 2.50 |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "results.jsonl").read_text().count("\n") == 3
    assert (tmp_path / "ensemble.png").stat().st_size > 1000
