"""What a run of the benchmark leaves: JSON lines, a table in Markdown, and a figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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

    rows = [row for row in rows if row["case"] == "ensemble"]
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    _, axes = plt.subplots(1, len(settings), figsize=(4.2 * len(settings), 3.6), layout="constrained", squeeze=False)
    for axis, setting in zip(axes[0], settings, strict=True):
        here = [row for row in rows if row["setting"] == setting][::-1]
        colours = ["C3" if row["method"] == "synchronoise" else "0.6" for row in here]
        bars = axis.barh([row["method"] for row in here], [row["value"] for row in here], color=colours)
        axis.bar_label(bars, [f"{row['value']:.3g}" for row in here], padding=3, fontsize=8)
        axis.set(title=setting, xlabel="µs per replica and step (log scale)", xscale="log")
        axis.margins(x=0.25)
        axis.tick_params(labelsize=8)
    plt.savefig(path, dpi=130)
    plt.close()
