"""Golden values from second methods; the last column of reference/golden_theory.csv says which."""

import csv
from pathlib import Path

import pytest

from synchronoise.kernel import Kernel
from synchronoise.theory import kernel_law, pair_expectation, sharp_rate

REFERENCE = Path(__file__).parents[1] / "reference" / "golden_theory.csv"
ROWS = list(csv.DictReader(REFERENCE.read_text().splitlines()))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['quantity']} {row['parameters']}".replace(" ", "_"))
def test_golden_value(row):
    name, *words = row["parameters"].split()
    value = {key: float(number) for key, number in (word.split("=") for word in words)}
    kernel = Kernel(name, int(value["d"]), value["sigma_u"], value["sigma_w"])
    exact, tolerance = float(row["value"]), float(row["relative_tolerance"])

    def compute(shift):
        if row["quantity"] == "kernel":
            return kernel(value["u"] + shift)
        if row["quantity"] == "isolated_rate":
            return sharp_rate(kernel_law(kernel)).isolated * (1 + shift)
        times = [value["t"] * (1 + shift)]
        return pair_expectation(kernel, "energy", times, value["rho0"], beta=value["beta"]).mean[0]

    assert abs(compute(0.0) / exact - 1) < tolerance
    assert abs(compute(1e-3) / exact - 1) > tolerance
