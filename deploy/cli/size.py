"""`baton size`: what a request takes of a running service, and what so many a minute would need."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from deploy.cli.common import DEFAULT_URL, ServiceUrl, add_row, wide_console, write
from orchestrator.errors import ConfigError

ROWS = (  # what is measured, in which words, and its unit
    ("requests", "requests measured", ""),
    ("seconds", "wall time of a request", "s"),
    ("small_tokens", "small tokens", ""),
    ("large_tokens", "large tokens", ""),
    ("judge_calls", "judge calls", ""),
    ("small_calls", "calls to the small pool", ""),
    ("large_calls", "calls to the large pool", ""),
    ("small_row_s", "a row of the small pool is held", "s"),
    ("large_row_s", "a row of the large pool is held", "s"),
    ("cpu_s", "CPU of the orchestrator", "s"),
    ("redis_calls", "Redis commands", ""),
    ("redis_us", "time of Redis's thread", "µs"),
    ("redis_bytes", "bytes to and from Redis", "B"),
    ("redis_kept", "bytes kept in Redis", "B"),
    ("idle_cpu", "an orchestrator without requests", "cores"),
    ("idle_redis", "its Redis commands meanwhile", "/s"),
    ("http_ms", "an empty HTTP request", "ms"),
    ("call_ms", "an empty Serve call", "ms"),
)


def size(
    url: ServiceUrl = DEFAULT_URL,
    problems: Annotated[
        str, typer.Option(help="FILE.jsonl with question and answer a line, or builtin:dev.")
    ] = "builtin:dev",
    limit: Annotated[int, typer.Option(min=1, help="How many requests.")] = 100,
    policy: Annotated[str, typer.Option(help="As specreason:threshold=5.")] = "baton",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Cap on thought and answer together.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 4,
    redis: Annotated[
        str | None,
        typer.Option(help="The store's Redis; its password may be in $BATON_REDIS_PASSWORD."),
    ] = None,
    per_minute: Annotated[
        float, typer.Option(min=1, help="Requests a minute that are to be answered.")
    ] = 10_000,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write figures and needs to this file.")
    ] = None,
) -> None:
    """Measure what a request costs a service, and compute what a load would need.

    The service should have no other traffic meanwhile.

    [bold]Examples[/]

      baton size

      baton size --problems mine.jsonl --policy specreason --concurrency 32 --per-minute 2000

      baton size --redis redis://127.0.0.1:6379/0 --json size.json
    """
    from redis import Redis

    from deploy.evaluation.candidates import Candidate
    from deploy.evaluation.clients import RequestOptions
    from deploy.evaluation.problems import load_problems
    from deploy.evaluation.sizing import measure, needs

    chosen = load_problems(problems, limit, 0)
    candidate = Candidate.parse(policy)
    try:
        password = os.environ.get("BATON_REDIS_PASSWORD")
        server = None if redis is None else Redis.from_url(redis, password=password)
    except ValueError as error:
        raise ConfigError(f"--redis: {error}") from None
    measured = measure(
        url,
        chosen,
        candidate,
        options=RequestOptions(max_tokens=max_tokens),
        concurrency=concurrency,
        redis=server,
    )
    needed = needs(measured, per_minute)
    if as_json is not None:
        data = {"measured": asdict(measured), "per_minute": per_minute}
        data["needs"] = [asdict(need) for need in needed]
        write(as_json, json.dumps(data, indent=2) + "\n")
    console = wide_console()
    table = Table("each request takes, or the service", "", "")
    for name, words, unit in ROWS:
        value = getattr(measured, name)
        if value is not None:
            add_row(table, words, f"{value:.4g}", unit)
    console.print(table)
    table = Table("full first", "requests/s each", "because", f"for {per_minute:g} a minute")
    for need in needed:
        add_row(table, need.part, f"{need.each:.3g}", need.formula, str(need.count))
    console.print(table)
