"""The picture of `baton lab bench-decode`: how many times plain decoding each method is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deploy.evaluation.plots import figure_of, save
from deploy.lab.bench.rounds import Row


def draw(rows: Sequence[Row], path: Path) -> None:
    """A line for each method, a point with its interval for each temperature.

    Of several numbers of streams the least is shown.

    Raises:
        ConfigError: matplotlib is missing, or the file cannot be written.
    """
    fewest = min(row["streams"] for row in rows)
    shown = [row for row in rows if row["streams"] == fewest]
    best: dict[str, float] = {}
    for row in shown:
        best[row["label"]] = max(best.get(row["label"], 0.0), row["ratio"])
    lines = sorted(best, key=lambda label: best[label])
    temperatures = list(dict.fromkeys(row["temperature"] for row in shown))
    figure = figure_of(8.5, 1.2 + 0.24 * len(lines))
    axes = figure.subplots()
    for index, temperature in enumerate(temperatures):
        mine = [row for row in shown if row["temperature"] == temperature]
        ratios = [row["ratio"] for row in mine]
        spread = [
            [max(0.0, row["ratio"] - row["over_vanilla_low"]) for row in mine],
            [max(0.0, row["over_vanilla_high"] - row["ratio"]) for row in mine],
        ]
        apart = 0.16 * (index - (len(temperatures) - 1) / 2)
        axes.errorbar(
            ratios, [lines.index(row["label"]) + apart for row in mine], xerr=spread,
            fmt="os^D"[index % 4], markersize=4, elinewidth=1, capsize=2,
            label=f"temperature {temperature:g}",
        )  # fmt: skip
    lossy = {row["label"] for row in shown if not row["lossless"]}
    names = [line + (" (lossy)" if line in lossy else "") for line in lines]
    axes.set_yticks(range(len(lines)), names, fontsize=8)
    axes.axvline(1, color="0.5", lw=1, ls="--")
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens a second, times plain decoding (95 % interval)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower right", fontsize=8, frameon=False)
    save(figure, path)
