"""What a run of the benchmark leaves: JSON lines, a table in Markdown, and a figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]


def write(rows: list[Row], machine: dict[str, Any], out: Path) -> None:
    """`results.jsonl` (the machine first), `table.md` and `ensemble.png` in the folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"case": "machine", **machine}), *(json.dumps(row) for row in rows)]
    (out / "results.jsonl").write_text("\n".join(lines) + "\n")
    (out / "table.md").write_text(table(rows, machine))
    if any(row["case"] == "ensemble" for row in rows):
        figure(rows, out / "ensemble.png")


def table(rows: list[Row], machine: dict[str, Any]) -> str:
    """One line for each measurement; the last column is its ratio to the first of its setting."""
    versions = ", ".join(f"{name} {value}" for name, value in machine.items())
    text = [f"Medians of 5 after a first call; {versions}.", "", "| what | setting | method | value | ratio |"]
    text.append("|---|---|---|---:|---:|")
    for row in rows:
        same = [other for other in rows if all(other[key] == row[key] for key in ("case", "setting", "unit"))]
        ratio = f"{row['value'] / same[0]['value']:.2f}" if len(same) > 1 else ""
        value = f"{row['value']:.3g} {row['unit']}"
        text.append(f"| {row['case']} | {row['setting']} | {row['method']} | {value} | {ratio} |")
    return "\n".join(text) + "\n"


def figure(rows: list[Row], path: Path) -> None:
    """Times of a step of the limit, a panel for each ensemble."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogFormatterSciNotation, NullFormatter

    rows = [row for row in rows if row["case"] == "ensemble"]
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    columns = min(2, len(settings))
    grid = (-(-len(settings) // columns), columns)
    _, axes = plt.subplots(*grid, figsize=(6 * columns, 3.2 * grid[0]), layout="constrained", squeeze=False)
    for axis, setting in zip(axes.flat, settings, strict=False):
        here = [row for row in rows if row["setting"] == setting][::-1]
        names = [row["method"].replace(", in our batches", ",\nin our batches") for row in here]
        values = [row["value"] for row in here]
        colours = ["C3" if row["method"] == "synchronoise" else "0.4" for row in here]
        axis.scatter(values, names, c=colours, s=45, zorder=3)
        for value, name in zip(values, names, strict=True):
            axis.annotate(f"{value:.3g}" if value < 1000 else f"{value:.0f}", (value, name), (8, -3),
                          textcoords="offset points", fontsize=8)  # fmt: skip
        axis.set(title=setting, xlabel="µs per replica and step (log scale)", xscale="log")
        axis.set(xlim=(10 ** np.floor(np.log10(min(values))), 10 ** (np.ceil(np.log10(max(values))) + 0.2)))
        axis.xaxis.set_major_formatter(LogFormatterSciNotation())
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(axis="x", which="both", alpha=0.25)
        axis.tick_params(labelsize=8)
    for axis in axes.flat[len(settings) :]:
        axis.remove()
    plt.savefig(path, dpi=110)
    plt.close()
