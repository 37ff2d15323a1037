"""Pareto plots of an evaluation, and the curves of a calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def draw(table: Sequence[Row], path: Path, title: str = "") -> None:
    """Draw both panels as PNG: a point with its interval per row, and the Pareto front.

    A colour stands for a policy, a marker for a budget. Names are in the legend, since points may
    be close together.

    Raises:
        ConfigError: matplotlib is missing, or the file cannot be written.
    """
    figure = figure_of(11, 4.8)
    from matplotlib import colormaps

    names = list(dict.fromkeys(row["policy"] for row in table))
    budgets = list(dict.fromkeys(row["budget"] for row in table))
    others = [name for name in names if name != BASELINE]
    palette = colormaps["tab10" if len(others) <= 10 else "tab20"]
    colours = {name: palette(index % 20) for index, name in enumerate(others)}
    colours[BASELINE] = (0.0, 0.0, 0.0, 1.0)
    panels: Any = figure.subplots(1, 2, sharey=True)
    for axes, (key, caption) in zip(panels, PANELS, strict=True):
        for row in table:
            x, y = row[key], 100 * row["accuracy"]
            spread = [
                [max(0.0, y - 100 * row["accuracy_low"])],
                [max(0.0, 100 * row["accuracy_high"] - y)],
            ]
            axes.errorbar(
                [x],
                [y],
                yerr=spread,
                fmt=MARKERS[budgets.index(row["budget"]) % len(MARKERS)],
                color=colours[row["policy"]],
                markersize=7,
                capsize=3,
                elinewidth=1,
                label=label(row),
            )
        best = front([(row[key], 100 * row["accuracy"]) for row in table])
        axes.step(*zip(*best, strict=True), where="post", color="0.6", lw=1, ls="--", zorder=0)
        axes.set_xlabel(caption)
        most = max(row[key] for row in table)
        axes.set_xlim(-0.04 * most or -1, 1.06 * most or 1)  # shows all of a point at 0
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy % (95 % interval)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=9, frameon=False)
    if title:
        figure.suptitle(title, fontsize=11)
    save(figure, path)


def draw_calibration(document: Mapping[str, Any], path: Path) -> None:
    """Draw agreement with the large model alone over its share of tokens: a point per value tried.

    A filled marker is the value that was chosen. The dashed line is a coin that gives each question
    to one of the models: a policy on that line gains nothing by its judge.

    Raises:
        ConfigError: matplotlib is missing, or the file cannot be written.
    """
    figure = figure_of(8, 5)
    axes: Any = figure.subplots()
    ends = [document["small_only"], document["large_only"]]
    axes.plot(
        *([100 * end[key] for end in ends] for key in ("large_share", "agreement")),
        color="0.6",
        ls="--",
        label="a coin",
    )
    rows = {**document["policies"], **document["unmet"]}
    for index, name in enumerate(document["searched"]):
        row = rows[name]
        tried = sorted(row["tried"], key=lambda point: point["large_share"])
        shares, agreements = (
            [100 * point[key] for point in tried] for key in ("large_share", "agreement")
        )
        colour, marker = f"C{index % 10}", MARKERS[index % len(MARKERS)]
        axes.plot(shares, agreements, marker=marker, mfc="none", color=colour, lw=1, label=name)
        if row["met"]:
            axes.plot(
                [100 * row["large_share"]], [100 * row["agreement"]], marker=marker, color=colour,
                markersize=9, ls="none",
            )  # fmt: skip
    axes.set_xlabel("tokens by the large model, % of those it generates alone")
    axes.set_ylabel("answers equal to the large model's alone, %, on the calibration questions")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=9, frameon=False)
    save(figure, path)


def draw_reliability(summary: Mapping[str, Any], path: Path) -> None:
    """Draw as PNG how often a rewrite helped over the probability that a gate's models gave."""
    figure = figure_of(5.5, 4.8)
    axes: Any = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.7", lw=1, ls="--")
    for name, caption in (("draft", "before reading"), ("reading", "after reading")):
        predicted, helped, _ = zip(*summary[name]["reliability"], strict=True)
        axes.plot(predicted, helped, "o-", label=f"{caption}, AUC {summary[name]['auc']:.3f}")
    axes.set_xlabel("probability that the large model's step would change the answer")
    axes.set_ylabel("share of drafts whose answer it changed")
    axes.legend(frameon=False)
    save(figure, path)


def figure_of(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches; raise ConfigError without matplotlib."""
    want("eval", "a plot", "matplotlib")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> None:
    """Write a figure as PNG; raise ConfigError if it cannot be written."""
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
