"""Pareto plots of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.evaluation.candidates import BASELINE
from deploy.evaluation.summary import Row
from deploy.evaluation.tables import label
from deploy.service.extras import want
from orchestrator.errors import ConfigError

PANELS = (
    ("mean_ms", "mean wall time per problem (ms)"),
    ("large_tokens", "large-model tokens per problem"),
)
MARKERS = "osD^vP*X<>"


def draw(table: Sequence[Row], path: Path) -> None:
    """Draw both panels as PNG: a point with its interval per row, and the Pareto front.

    A colour stands for a policy, a marker for a budget. Names are in the legend, since points may
    be close together.

    Raises:
        ConfigError: matplotlib is missing, or the file cannot be written.
    """
    want("eval", "a plot", "matplotlib")
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    names = list(dict.fromkeys(row["policy"] for row in table))
    budgets = list(dict.fromkeys(row["budget"] for row in table))
    others = [name for name in names if name != BASELINE]
    palette = colormaps["tab10" if len(others) <= 10 else "tab20"]
    colours: dict[str, Any] = {name: palette(index % 20) for index, name in enumerate(others)}
    colours[BASELINE] = "black"
    panels: Any = figure.subplots(1, 2, sharey=True)
    for axes, (key, caption) in zip(panels, PANELS, strict=True):
        for row in table:
            low, y, high = (100 * row[f"accuracy{end}"] for end in ("_low", "", "_high"))
            marker = MARKERS[budgets.index(row["budget"]) % len(MARKERS)]
            axes.errorbar(
                [row[key]], [y], yerr=[[max(0.0, y - low)], [max(0.0, high - y)]], fmt=marker,
                color=colours[row["policy"]], markersize=7, capsize=3, elinewidth=1,
                label=label(row),
            )  # fmt: skip
        best = front([(row[key], 100 * row["accuracy"]) for row in table])
        axes.step(*zip(*best, strict=True), where="post", color="0.6", lw=1, ls="--", zorder=0)
        axes.set_xlabel(caption)
        most = max(row[key] for row in table)
        axes.set_xlim(-0.04 * most or -1, 1.06 * most or 1)  # shows all of a point at 0
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy % (95 % interval)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=9, frameon=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, format="png")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats in both, from the cheapest to the most accurate."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or y > best[-1][1]:
            best.append((x, y))
    return best
