"""What each row of `make bench` measures: figures, each `{measure, who, value, unit}`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from deploy.evaluation.problems import load_problems
from deploy.lab.peers import servers
from deploy.lab.peers.load import load

Figure = dict[str, Any]
STREAMS: Final = (1, 4, 16, 64)
IDLE_S: Final = 15.0
REPLICAS: Final = 4  # of deploy/local.yaml
CONTROLS: Final = 16  # ids of the embedded vocabulary that are no text


@dataclass(frozen=True, slots=True)
class Run:
    """The options that all rows share."""

    real: bool
    quick: bool
    folder: Path

    @property
    def pair(self) -> servers.Pair:
        return servers.REAL if self.real else servers.EMBEDDED

    def of(self, quick: int, embedded: int, real: int | None = None) -> int:
        """A size that depends on the options."""
        return quick if self.quick else embedded if real is None or not self.real else real


def decode(run: Run) -> Iterator[Figure]:
    """Plain decoding, the best lossless method, transformers' generate, and a pass, in turns."""
    pair, out = run.pair, run.folder / "decode.raw.json"
    chains = ("gamma=4", "gamma=7") if run.real else ("gamma=6", "gamma=16:threshold=0.6")
    methods = [*(f"chain:{chain}" for chain in chains), "hf-generate", "hf-assisted"]
    command = [sys.executable, "-m", "deploy.cli.main", "lab", "bench-decode"]
    command += ["--temperature", "0"]
    command += ["--model", pair.large, "--draft", pair.small, "--dtype", pair.baton_dtype]
    command += ["--threads", str(pair.threads), "--methods", ",".join(methods)]
    command += ["--prompts", str(run.of(2, 16, 4)), "--rounds", str(run.of(1, 3, 1))]
    command += ["--max-new", str(run.of(32, 128, 48)), "--json", str(out)]
    command += ["--rows", str(run.folder / "decode.turns.jsonl")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = json.loads(out.read_text())["rows"]

    def best(*wanted: str) -> float:
        found = [row["tokens_per_s"] for row in rows if row["method"] in wanted]
        return float(max(found))

    for measure, ours, theirs in (
        ("plain decode", ("vanilla",), ("hf-generate",)),
        ("best lossless", ("chain",), ("hf-assisted",)),
    ):
        yield _figure(measure, "Baton", best(*ours), "tokens/s")
        yield _figure(measure, "transformers", best(*theirs), "tokens/s")
    yield _figure("bare forward pass of a token", "transformers", 1e3 * _bare_pass(run), "ms")


def _bare_pass(run: Run) -> float:
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


def baton(run: Run) -> Iterator[Figure]:
    """Baton's service: streams, first accepted step, start, memory, idle CPU."""
    with _running(run, "baton", servers.baton_over(run.pair, run.folder)) as server:
        yield from _streams(run, "Baton", server)
        questions = _questions()
        found = asyncio.run(
            load(
                server.url, "specreason", questions, streams=16, requests=run.of(16, 64, 16),
                max_tokens=_max_tokens(run),
            )
        )  # fmt: skip
        for name, value in (("p50", found.first_p50_s), ("p95", found.first_p95_s)):
            measure = f"first accepted step, specreason, 16 streams, {name}"
            yield _figure(measure, "Baton", 1e3 * value, "ms")
        yield from _idle(
            "Baton", lambda: servers.cpu_s(server.processes, "ray::ServeReplica:baton")
        )


def idle(run: Run) -> Iterator[Figure]:
    """Ray Serve's own replicas that nobody calls, as many as the row `baton` has."""
    from deploy.launch.environment import prepare

    prepare()
    from ray import serve

    from deploy.lab.bench.round_trip import SHARE, Bare
    from deploy.launch.cluster import descendants, own_ray

    with own_ray() as before:
        bare = serve.deployment(Bare, num_replicas=REPLICAS, ray_actor_options=SHARE)
        serve.run(bare.bind(), route_prefix=None)
        yield from _idle(
            "Serve", lambda: servers.cpu_s(descendants(os.getpid()) - before, "ray::ServeReplica")
        )


def _idle(who: str, replicas: Callable[[], Mapping[int, float]]) -> Iterator[Figure]:
    """What replicas take that nobody calls; `replicas` gives the CPU time of each so far."""
    time.sleep(2.0)
    before = replicas()
    time.sleep(IDLE_S)
    spent = [now - before[pid] for pid, now in replicas().items()]
    share = 100 * sum(spent) / IDLE_S
    yield _figure("idle, CPU of a core in a replica", who, share / len(spent), "%")
    yield _figure(f"idle, CPU of a core in {len(spent)} replicas", who, share, "%")


def chain(run: Run) -> Iterator[Figure]:
    """The same with drafts in the large worker."""
    gamma = 4 if run.real else 6
    chain = {"method": "chain", "params": {"draft": run.pair.small, "gamma": gamma}}
    how = servers.baton_over(run.pair, run.folder, chain)
    with _running(run, "chain", how) as server:
        yield from _streams(run, "Baton, chain", server)


def transformers(run: Run) -> Iterator[Figure]:
    """`transformers serve`."""
    with _running(run, "transformers", servers.transformers(run.pair)) as server:
        # It answers one after the other: on a large model 64 would wait for longer than clients do.
        yield from _streams(run, "transformers", server, STREAMS[:3] if run.real else STREAMS)


def vllm(run: Run) -> Iterator[Figure]:
    """vLLM's server, its build for CPUs."""
    with _running(run, "vllm", servers.vllm(run.pair)) as server:
        yield from _streams(run, "vLLM", server)


def llama_cpp(run: Run) -> Iterator[Figure]:
    """llama.cpp's server."""
    with _running(run, "llama_cpp", servers.llama_cpp(run.pair)) as server:
        yield from _streams(run, "llama.cpp", server)


def call(run: Run) -> Iterator[Figure]:
    """A call through Serve beside Serve's own."""
    from deploy.launch.environment import prepare

    prepare()
    from deploy.lab.bench.round_trip import bench_round_trip

    for row in bench_round_trip(run.of(3, 40)):
        who = "Serve" if row["call"] == "bare" else "Baton"
        yield _figure("a call over Ray Serve, median", who, row["ms"], "ms")
        yield _figure("a call over Ray Serve, caller's CPU", who, row["cpu_ms"], "ms")


def step(run: Run) -> Iterator[Figure]:
    """CPU of a step as a thought grows, each call pickled to a replica and back."""
    from deploy.lab.bench.length import bench_steps

    sizes = (30, 60) if run.quick else (50, 100, 400, 1000, 1600)
    for row in bench_steps(
        ("specreason", "bild"), sizes, repeats=run.of(1, 5), ways=("replica",), tell=_tell
    ):
        for size in sizes:
            measure = f"a step's CPU at {size} steps, {row['policy']}"
            yield _figure(measure, "Baton", row["ms"][str(size)], "ms")
        exponent = log(row["growth"]) / log(sizes[-1] / sizes[0])
        yield _figure(f"a step's CPU grows as n to the, {row['policy']}", "Baton", exponent, "")


def deltas(run: Run) -> Iterator[Figure]:
    """CPU of one `large-only` answer over a remote server that sends token by token."""
    from deploy.lab.bench.length import bench_deltas
    from workers.embedded.checkpoints import resolve
    from workers.engine.loading import load_tokenizer

    tokenizer = load_tokenizer(str(resolve("embedded:large")))
    size = run.of(500, 16_000)
    seconds = median(bench_deltas(tokenizer, [size])[0]["cpu_s"] for _ in range(run.of(1, 3)))
    yield _figure(f"{size:,} remote deltas, CPU in all", "Baton", seconds, "s")


def memory(run: Run) -> Iterator[Figure]:
    """What a long request over workers that answer at once holds."""
    from deploy.lab.bench.memory import request_bytes

    tokens = run.of(600, 8000)
    held = request_bytes(tokens) * tokens / 1e6
    yield _figure(f"memory of a live request of {tokens:,} tokens", "Baton", held, "MB")


def long(run: Run) -> Iterator[Figure]:
    """Long thoughts of a random pair through the service, shared and the small model's alone.

    The pair has the embedded one's sizes and vocabulary, and a context of 65,536 tokens.
    """
    short, most = (300, 1200) if run.quick else (4000, 32_000)
    folder = _random_pair(run.folder / "random")
    pair = servers.Pair(str(folder / "small"), str(folder / "large"), "float32", 1, "float32")
    growth = {}
    how = servers.baton_over(pair, run.folder, max_len=40_000)
    with _running(run, "long", how) as server:
        for policy in ("small-only", "specreason"):
            seconds = {size: _answer_s(server.url, policy, size) for size in (short, most)}
            for size, value in seconds.items():
                yield _figure(f"a thought of {size:,} tokens, {policy}", "Baton", value, "s")
            growth[policy] = seconds[most] / seconds[short]
    measure = f"growth from {short:,} tokens to {most:,}: specreason to small-only"
    yield _figure(measure, "Baton", growth["specreason"] / growth["small-only"], "x")


def _random_pair(folder: Path) -> Path:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from workers.embedded.checkpoints import resolve

    for seed, name in enumerate(("small", "large")):
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(resolve(f"embedded:{name}"))
        config.update({"max_position_embeddings": 65_536, "tie_word_embeddings": False})
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            model.lm_head.weight[:CONTROLS] = 0  # the likeliest token never ends the thought
        model.save_pretrained(folder / name)
        AutoTokenizer.from_pretrained(resolve(f"embedded:{name}")).save_pretrained(folder / name)
    return folder


def _answer_s(url: str, policy: str, tokens: int) -> float:
    """Seconds of an answer of so many tokens; drafts of 30 tokens that are all kept.

    The judge's question is the short one: the full one, of 90 tokens in a real vocabulary, has 160
    in this one, five for each that it judges.
    """
    import httpx

    body: dict[str, Any] = {"model": policy, "max_tokens": tokens, "temperature": 0}
    body["messages"] = [{"role": "user", "content": "How many?"}]
    if policy == "specreason":
        body["policy"] = {"threshold": 0, "step_tokens": 30, "judge": "short"}
    began = perf_counter()
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600.0, trust_env=False)
    seconds = perf_counter() - began
    made = answer.raise_for_status().json()["usage"]["completion_tokens"]
    if made < 0.9 * tokens:
        raise RuntimeError(f"expected a thought of {tokens} tokens of {policy}, got {made}")
    return seconds


ROWS: Final[Mapping[str, Callable[[Run], Iterator[Figure]]]] = {
    "decode": decode,
    "baton": baton,
    "idle": idle,
    "chain": chain,
    "transformers": transformers,
    "vllm": vllm,
    "llama_cpp": llama_cpp,
    "call": call,
    "step": step,
    "deltas": deltas,
    "memory": memory,
    "long": long,
}


def _running(run: Run, name: str, how: Mapping[str, Any]) -> Any:
    return servers.running(**how, log=run.folder / f"{name}.log")


def _streams(
    run: Run, who: str, server: servers.Server, levels: Sequence[int] = STREAMS
) -> Iterator[Figure]:
    yield _figure("start", who, server.start_s, "s")
    questions, most = _questions(), _max_tokens(run)
    for streams in levels[: run.of(2, len(levels))]:
        requests = run.of(streams, max(8, 3 * streams), streams)
        _tell(f"{who}, {streams} streams")
        if streams == STREAMS[0]:  # the first answers warm up
            asyncio.run(
                load(server.url, server.model, questions, streams=2, requests=2, max_tokens=most)
            )
        found = asyncio.run(
            load(
                server.url, server.model, questions, streams=streams, requests=requests,
                max_tokens=most,
            )
        )  # fmt: skip
        yield _figure(f"through REST, {streams} streams", who, found.tokens_per_s, "tokens/s")
        if streams == 16:
            yield _figure("first text, 16 streams, p50", who, 1e3 * found.first_p50_s, "ms")
    yield _figure("memory after the load", who, server.memory_mb(), "MB")


def _questions() -> list[str]:
    return [problem.question for problem in load_problems("builtin:dev", 64, 0)]


def _max_tokens(run: Run) -> int:
    return run.of(32, 128, 48)


def _figure(measure: str, who: str, value: float, unit: str) -> Figure:
    return {"measure": measure, "who": who, "value": value, "unit": unit}


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
