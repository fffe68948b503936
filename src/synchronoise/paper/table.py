"""The paper's table: κ(1), κ'(1), λ_1 and λ̄ beside what it prints (THEORY §8)."""

from __future__ import annotations

import csv
import io
from importlib.resources import files
from typing import Any

from synchronoise.kernel import Kernel
from synchronoise.theory import lambda_1, lambda_bar

COLUMNS = ("kappa_1", "dkappa_1", "lambda_1", "lambda_bar")
HEADINGS = {"kappa_1": "κ(1)", "dkappa_1": "κ'(1)", "lambda_1": "λ_1", "lambda_bar": "λ̄"}


def printed_table() -> list[dict[str, str]]:
    """The table as the paper prints it, three digits, as text.

    >>> printed_table()[1]["lambda_1"]
    '-1.30e-01'
    """
    text = files("synchronoise").joinpath("data/paper_table.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def within_rounding(value: float, printed: str) -> bool:
    """|value - printed| <= half a unit of the last printed digit (and not a rounding error more).

    >>> within_rounding(-0.13049, "-1.30e-01"), within_rounding(-0.1306, "-1.30e-01")
    (True, False)
    """
    mantissa, exponent = printed.split("e")
    half_unit = 0.5 * 10.0 ** (int(exponent) - len(mantissa.partition(".")[2]))
    return abs(value - float(printed)) <= half_unit * (1 + 1e-9)


def table() -> list[dict[str, Any]]:
    """Every row of the printed table with the computed values: {"activation", "d", "sigma", COLUMN: {...}}.

    Each column holds {"computed", "printed", "within_rounding"}.

    >>> table()[1]["lambda_1"]["within_rounding"]
    True
    """
    rows = []
    for printed in printed_table():
        sigma = float(printed["sigma"])
        kernel = Kernel(printed["activation"], int(printed["d"]), sigma, sigma)
        values = (kernel.kappa_1, kernel.dkappa_1, lambda_1(kernel), lambda_bar(kernel))
        row: dict[str, Any] = {"activation": printed["activation"], "d": kernel.dim, "sigma": sigma}
        for column, value in zip(COLUMNS, values, strict=True):
            row[column] = {
                "computed": value,
                "printed": printed[column],
                "within_rounding": within_rounding(value, printed[column]),
            }
        rows.append(row)
    return rows


def as_csv(rows: list[dict[str, Any]]) -> str:
    """The table with three columns for each quantity: computed, printed, within rounding."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    parts = ("computed", "printed", "within_rounding")
    writer.writerow(["activation", "d", "sigma", *(f"{c}_{p}" for c in COLUMNS for p in parts)])
    for row in rows:
        cells = [str(row[c][p]).lower() if p == parts[2] else row[c][p] for c in COLUMNS for p in parts]
        writer.writerow([row["activation"], row["d"], row["sigma"], *cells])
    return text.getvalue()


def as_text(rows: list[dict[str, Any]]) -> str:
    """The table to read: computed value, the printed one, and = or ≠ between them (within its rounding or not)."""
    head = f"{'activation':<11}{'d':>4}{'σ':>6}  " + "".join(f"{HEADINGS[c]:^27}" for c in COLUMNS)
    lines = [head.rstrip(), f"{'':<23}" + f"{'computed':>13}   {'printed':<11}" * len(COLUMNS)]
    for row in rows:
        cells = (row[c] for c in COLUMNS)
        shown = "".join(
            f"{cell['computed']:>13.5e} {'=' if cell['within_rounding'] else '≠'} {float(cell['printed']):<+11.2e}"
            for cell in cells
        )
        lines.append(f"{row['activation']:<11}{row['d']:>4}{row['sigma']:>6.1f}  {shown}".rstrip())
    lines.append("σ = σ_U = σ_W; = : within the rounding of the printed value")
    return "\n".join(lines) + "\n"
