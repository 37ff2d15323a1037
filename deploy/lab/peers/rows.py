"""What each row of `make bench` measures: figures, each `{measure, who, value, unit}`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Final

from deploy.evaluation.intervals import quantile
from deploy.evaluation.problems import load_problems
from deploy.lab.clients import StreamedAnswer, ask_all
from deploy.lab.peers import servers
from deploy.lab.processes import RunningServer, ServerCommand, running

Figure = dict[str, Any]
STREAMS: Final = (1, 4, 16, 64)


@dataclass(frozen=True, slots=True)
class BenchRun:
    """The options that all rows share."""

    real: bool
    quick: bool
    folder: Path

    @property
    def pair(self) -> servers.PeerPair:
        return servers.REAL if self.real else servers.EMBEDDED

    def of(self, quick: int, embedded: int, real: int | None = None) -> int:
        """A size that depends on the options."""
        return quick if self.quick else embedded if real is None or not self.real else real

    @property
    def max_tokens(self) -> int:
        return self.of(32, 128, 48)

    def ask(
        self, server: RunningServer, model: str, clients: int, requests: int
    ) -> tuple[list[StreamedAnswer], float]:
        """Ask a server questions of a school book."""
        questions = [problem.question for problem in load_problems("builtin:dev", 64, 0)]
        bodies = [
            {
                "model": model,
                "messages": [{"role": "user", "content": questions[number % len(questions)]}],
                "max_tokens": self.max_tokens,
            }
            for number in range(requests)
        ]
        return asyncio.run(ask_all(server.url, bodies, clients))


def decode(run: BenchRun) -> Iterator[Figure]:
    """Plain decoding, the best lossless method, transformers' generate, and a pass, in turns."""
    pair, out = run.pair, run.folder / "decode.raw.json"
    chains = ("gamma=4", "gamma=7") if run.real else ("gamma=6", "gamma=16:threshold=0.6")
    methods = [*(f"chain:{chain}" for chain in chains), "hf-generate", "hf-assisted"]
    command = [sys.executable, "-m", "deploy.cli.main", "lab", "bench-decode"]
    command += ["--temperature", "0"]
    command += ["--model", pair.large, "--draft", pair.small, "--dtype", pair.baton_dtype]
    command += ["--threads", str(pair.threads), "--methods", ",".join(methods)]
    command += ["--prompts", str(run.of(2, 16, 4)), "--rounds", str(run.of(1, 3, 1))]
    command += ["--max-new", str(run.max_tokens), "--json", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = json.loads(out.read_text())["rows"]
    for measure, ours, theirs in (
        ("plain decode", "vanilla", "hf-generate"),
        ("best lossless", "chain", "hf-assisted"),
    ):
        for who, method in (("Baton", ours), ("transformers", theirs)):
            best = max(row["tokens_per_s"] for row in rows if row["method"] == method)
            yield _figure(measure, who, best, "tokens/s")
    yield _figure("bare forward pass of a token", "transformers", 1e3 * _bare_pass(run), "ms")


def _bare_pass(run: BenchRun) -> float:
    """Seconds of a pass of transformers' own network over one token behind 64."""
    import torch
    from transformers import AutoModelForCausalLM

    from workers.embedded.checkpoints import resolve

    torch.set_num_threads(run.pair.threads)
    model = AutoModelForCausalLM.from_pretrained(
        resolve(run.pair.large), dtype=getattr(torch, run.pair.dtype)
    )
    times = []
    with torch.inference_mode():
        cache = model(torch.ones(1, 64, dtype=torch.long)).past_key_values
        for _ in range(run.of(5, 60, 15)):
            began = perf_counter()
            model(torch.ones(1, 1, dtype=torch.long), past_key_values=cache)
            times.append(perf_counter() - began)
    return median(times)


def baton(run: BenchRun) -> Iterator[Figure]:
    """Baton's service: streams, first accepted step, start, memory."""
    with _running(run, "baton", servers.baton_over(run.pair, run.folder)) as server:
        yield from _streams(run, "Baton", server)
        answers, _ = run.ask(server, "specreason", 16, run.of(16, 64, 16))
        for name, share in (("p50", 0.5), ("p95", 0.95)):
            measure = f"first accepted step, specreason, 16 streams, {name}"
            yield _figure(measure, "Baton", 1e3 * _first_s(answers, share), "ms")


def chain(run: BenchRun) -> Iterator[Figure]:
    """The same with drafts in the large worker; the embedded pair as it is served."""
    with _running(run, "chain", _baton_with_drafts(run)) as server:
        yield from _streams(run, "Baton, chain", server)


def _baton_with_drafts(run: BenchRun) -> ServerCommand:
    drafts = {"method": "chain", "params": {"draft": run.pair.small, "gamma": 4}}
    return servers.baton_over(run.pair, run.folder, drafts if run.real else None)


PEERS: Final[Mapping[str, tuple[str, Callable[[servers.PeerPair, Path], ServerCommand]]]] = {
    "transformers": ("transformers", servers.transformers),
    "vllm": ("vLLM", servers.vllm),  # its build for CPUs
    "llama_cpp": ("llama.cpp", servers.llama_cpp),
    "llama_cpp_drafts": ("llama.cpp, drafts", partial(servers.llama_cpp, drafts=True)),
}
"""Other servers, by their rows."""


def _peer(row: str, run: BenchRun) -> Iterator[Figure]:
    who, how = PEERS[row]
    # It answers one after the other: on a large model 64 would wait for longer than clients do.
    levels = STREAMS[:3] if run.real and row == "transformers" else STREAMS
    with _running(run, row, how(run.pair, run.folder)) as server:
        yield from _streams(run, who, server, levels)


def turns(run: BenchRun) -> Iterator[Figure]:
    """Baton and llama.cpp, one stream, in turns: a slow spell of the machine slows both."""
    yield from _in_turns(
        run, "1 stream",
        {"Baton": servers.baton_over(run.pair, run.folder),
         "llama.cpp": servers.llama_cpp(run.pair, run.folder)},
    )  # fmt: skip
    if run.real:
        yield from _in_turns(
            run, "1 stream with drafts",
            {"Baton, chain": _baton_with_drafts(run),
             "llama.cpp, drafts": servers.llama_cpp(run.pair, run.folder, drafts=True)},
        )  # fmt: skip


def _in_turns(run: BenchRun, what: str, commands: Mapping[str, ServerCommand]) -> Iterator[Figure]:
    rates: dict[str, list[float]] = {who: [] for who in commands}
    with ExitStack() as stack:
        up = {who: stack.enter_context(_running(run, who, how)) for who, how in commands.items()}
        for server in up.values():
            run.ask(server, server.model, 1, 1)  # the first answer warms up
        for _ in range(run.of(1, 5)):
            for who, server in up.items():
                answers, seconds = run.ask(server, server.model, 1, 3)
                rates[who].append(sum(answer.tokens for answer in answers) / seconds)
    for who, values in rates.items():
        yield _figure(f"in turns, {what}", who, median(values), "tokens/s")


def call(run: BenchRun) -> Iterator[Figure]:
    """A call through Serve beside Serve's own."""
    from deploy.launch.environment import prepare

    prepare()
    from deploy.lab.peers.serve_call import bench_round_trip

    for row in bench_round_trip(run.of(3, 40)):
        who = "Serve" if row["call"] == "bare" else "Baton"
        yield _figure("a call over Ray Serve, median", who, row["ms"], "ms")
        yield _figure("a call over Ray Serve, caller's CPU", who, row["cpu_ms"], "ms")


ROWS: Final[Mapping[str, Callable[[BenchRun], Iterator[Figure]]]] = {
    "decode": decode,
    "baton": baton,
    "chain": chain,
    **{row: partial(_peer, row) for row in PEERS},
    "turns": turns,
    "call": call,
}


def _running(run: BenchRun, name: str, how: ServerCommand) -> Any:
    return running(how, run.folder / f"{name}.log")


def _streams(
    run: BenchRun, who: str, server: RunningServer, levels: Sequence[int] = STREAMS
) -> Iterator[Figure]:
    yield _figure("start", who, server.start_s, "s")
    run.ask(server, server.model, 2, 2)  # the first answers warm up
    for streams in levels[: run.of(2, len(levels))]:
        print(f"{who}, {streams} streams", file=sys.stderr, flush=True)
        requests = run.of(streams, max(8, 3 * streams), streams)
        before = server.cpu_ms() + 1e3 * process_time()
        answers, seconds = run.ask(server, server.model, streams, requests)
        spent = server.cpu_ms() + 1e3 * process_time() - before
        tokens = sum(answer.tokens for answer in answers)
        yield _figure(f"through REST, {streams} streams", who, tokens / seconds, "tokens/s")
        yield _figure(f"CPU of a token, {streams} streams", who, spent / tokens, "ms")
        if streams == 16:
            first = 1e3 * _first_s(answers, 0.5)
            yield _figure("first text, 16 streams, p50", who, first, "ms")
    yield _figure("memory after the load", who, server.memory_mb(), "MB")


def _first_s(answers: Sequence[StreamedAnswer], share: float) -> float:
    return quantile([answer.first_s or 0.0 for answer in answers], share)


def _figure(measure: str, who: str, value: float, unit: str) -> Figure:
    return {"measure": measure, "who": who, "value": value, "unit": unit}
