"""`make bench`: what Baton costs beside its peers, as a table, JSON and a picture.

    python -m tests.bench.run [--real] [--quick] [--rows NAME,...] [--fresh] [--out FOLDER]

Each row runs in a process of its own and is kept: a run that was broken off goes on where it
stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deploy.evaluation.plots import figure_of, save
from deploy.evaluation.tables import Column, markdown
from deploy.service.environment import prepare
from tests.bench.rows import ROWS, STREAMS, Figure, Run
from tests.bench.servers import ROOT

ROW_S: Final = 1200.0
WHO: Final = ("Baton", "Baton, chain", "transformers", "vLLM", "llama.cpp", "Serve")


def main() -> None:
    prepare()  # rows inherit it, and import ray
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--real", action="store_true", help="the pair of `make real-pair`")
    parser.add_argument("--quick", action="store_true", help="whether all of it runs, in minutes")
    parser.add_argument("--rows", default=",".join(ROWS), help="names, with commas between")
    parser.add_argument("--fresh", action="store_true", help="measure again what was kept")
    parser.add_argument("--out", type=Path, help="default: build/bench, by pair and length")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    wanted = [name for name in given.rows.split(",") if name]
    if unknown := [name for name in wanted if name not in ROWS]:
        parser.error(f"--rows: expected some of {', '.join(ROWS)}, not {unknown[0]}")
    named = ("real" if given.real else "embedded") + ("-quick" if given.quick else "")
    folder = (given.out or ROOT / "build" / "bench" / named).resolve()
    run = Run(given.real, given.quick, folder)
    if given.one:
        figures = list(ROWS[given.one](run))
        _kept(folder, given.one).write_text(json.dumps(figures, indent=2) + "\n")
        return
    if given.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    failed = {}
    for number, name in enumerate(wanted):
        if _kept(folder, name).exists():
            continue
        print(f"{number + 1} of {len(wanted)}: {name}", file=sys.stderr, flush=True)
        began = time.monotonic()
        if why := _measure(run, name):
            failed[name] = why
        print(f"  {time.monotonic() - began:.0f} s {why}", file=sys.stderr, flush=True)
    _report(folder, failed)
    sys.exit(bool(failed))


def _kept(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _measure(run: Run, name: str) -> str:
    """Measure a row in a process of its own; why it failed, or nothing."""
    command = [sys.executable, "-m", "tests.bench.run", "--one", name, "--out", str(run.folder)]
    command += ["--real"] * run.real + ["--quick"] * run.quick
    with (run.folder / f"{name}.err").open("w+") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stderr=errors)
        try:
            status = process.wait(ROW_S)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            process.terminate()
            process.wait()
        if status == 0:
            return ""
        errors.seek(0)
        lines = [line.strip() for line in errors if line.strip()]
    why = f"took more than {ROW_S:g} s" if status is None else lines[-1] if lines else "no reason"
    return f"{name} failed: {why}"


def _report(folder: Path, failed: Mapping[str, str]) -> None:
    figures: list[Figure] = []
    for name in ROWS:
        if _kept(folder, name).exists():
            figures += json.loads(_kept(folder, name).read_text())
    table = _table(figures)
    about = (
        f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f} at the end"
    )
    document = {"about": about, "figures": figures, "failed": dict(failed)}
    (folder / "bench.json").write_text(json.dumps(document, indent=2) + "\n")
    text = f"{table}\n{about}\n" + "".join(f"{why}\n" for why in failed.values())
    (folder / "bench.md").write_text(text)
    draw(figures, folder / "bench.png")
    print(f"{text}\nWritten to {folder}: bench.md, bench.json, bench.png")


def _table(figures: Sequence[Figure]) -> str:
    """A line for each measure, a column for each who was measured, Baton's ratio to the best of
    the others last."""
    rows: dict[str, dict[str, Any]] = {}
    for figure in figures:
        row = rows.setdefault(figure["measure"], {"measure": figure["measure"]})
        row[figure["who"]] = figure["value"]
        row["unit"] = figure["unit"]
    shown = [who for who in WHO if any(who in row for row in rows.values())]
    columns: list[Column] = [
        ("measure", lambda row: row["measure"]),
        ("unit", lambda row: row["unit"]),
        *((who, lambda row, who=who: _number(row.get(who))) for who in shown),
        ("Baton to the best other", _to_the_best),
    ]
    return markdown(list(rows.values()), columns)


def _to_the_best(row: Mapping[str, Any]) -> str:
    ours = [row[who] for who in WHO[:2] if who in row]
    others = [row[who] for who in WHO[2:] if who in row]
    if not ours or not others:
        return ""
    best = max if row["unit"] == "tokens/s" else min
    return f"{best(ours) / best(others):.2f}x"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def draw(figures: Sequence[Figure], path: Path) -> None:
    """Tokens a second by streams, and what a step costs by the length of its thought.

    Raises:
        ConfigError: matplotlib is missing, or the file cannot be written.
    """
    figure = figure_of(11, 4.2)
    left, right = figure.subplots(1, 2)
    for who in WHO:
        points = {
            streams: one["value"]
            for one in figures
            for streams in STREAMS
            if (one["who"], one["measure"]) == (who, f"through REST, {streams} streams")
        }
        if points:
            left.plot(list(points), list(points.values()), marker="o", label=who)
    left.set_xscale("log", base=2)
    left.set_xlabel("streams through REST")
    left.set_ylabel("tokens a second")
    for policy in ("specreason", "bild"):
        measured = [
            one
            for one in figures
            if one["measure"].startswith("a step's CPU at") and one["measure"].endswith(policy)
        ]
        steps = [int(one["measure"].split()[4]) for one in measured]
        if steps:
            right.plot(steps, [one["value"] for one in measured], marker="o", label=policy)
    right.set_xlabel("steps of the thought")
    right.set_ylabel("CPU of a step (ms)")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=8, frameon=False)
    save(figure, path)


if __name__ == "__main__":
    main()
