"""`baton ask`: one question, step by step."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text as Styled

from deploy.cli.common import AsJson, Config, MaxTokens, Url, format_step, lossy, print_json
from deploy.cli.pair import Pair
from deploy.evaluation.candidates import Candidate
from deploy.evaluation.clients import RequestOptions
from deploy.evaluation.evaluate import EvaluatedAnswer
from orchestrator.errors import InvalidRequest
from orchestrator.loop.events import StepCompleted, TextDelta


def ask(
    question: Annotated[str, typer.Argument(help="What you want to know.")],
    policy: Annotated[
        str, typer.Option(help="NAME, or NAME:KEY=VALUE with parameters of your own.")
    ] = "baton",
    url: Url = None,
    config: Config = None,
    max_tokens: MaxTokens = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes a sampled answer repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask one question and watch who thinks what.

    [bold]Examples[/]

      baton ask "What is 37*6+12?"

      baton ask "What is 37*6+12?" --policy specreason:threshold=9

      baton ask "What is 37*6+12?" --url http://127.0.0.1:8000 --json
    """
    if not question.strip():
        raise InvalidRequest("the question is empty")
    options = RequestOptions(max_tokens, temperature, seed)
    asyncio.run(_ask(question, Candidate.parse(policy), Pair(url, config), options, as_json))


async def _ask(
    question: str,
    candidate: Candidate,
    pair: Pair,
    options: RequestOptions,
    as_json: bool,
) -> None:
    console = Console(highlight=False, quiet=as_json, soft_wrap=True)
    # A service names the authors of steps at the end; until then the text itself is shown.
    draft, shown = Styled(style="dim"), "answer"  # the phase whose steps are shared, so far
    if pair.url is None:
        draft.append("Opening both workers ...")
    with Live(draft, console=console, transient=True) as live:
        async with (
            pair.client(options, [candidate]) as client,
            aclosing(client.stream(question, candidate)) as items,
        ):
            draft.truncate(0)
            async for item in items:
                if isinstance(item, EvaluatedAnswer):
                    answer = item
                    continue
                if isinstance(item, TextDelta) and pair.url is None:
                    continue  # its step follows
                phase = item.step.phase if isinstance(item, StepCompleted) else item.phase
                shown = "thought" if phase == "thought" else shown
                if phase not in (shown, "advice"):
                    continue
                if isinstance(item, StepCompleted):
                    draft.truncate(0)
                    live.console.print(format_step(item.step))
                else:
                    draft.append(item.text)
    if as_json:
        steps = [asdict(step) for step in answer.steps]
        print_json({"answer": answer.text, "steps": steps, "metrics": answer.summary})
    else:
        _conclude(console, answer)


def _conclude(console: Console, answer: EvaluatedAnswer) -> None:
    summary = answer.summary
    console.print()
    console.print(answer.text or "(no answer)", style="bold", markup=False)
    console.print()
    small, large = summary["small_tokens"], summary["large_tokens"]
    parts = [
        f"{summary['ms']['total']:.0f} ms",
        f"{small} small and {large} large tokens",
        f"{summary['discarded_tokens']} of {small + large} discarded",
    ]
    if (rate := summary["acceptance_rate"]) is not None:
        parts.append(f"{rate:.0%} of the drafts accepted")
    if summary["forced"]:
        parts.append("the thought was cut short")
    parts += lossy(summary["speculation"])
    if trace_id := summary.get("trace_id"):
        parts.append(f"trace {trace_id}")
    console.print(", ".join(parts), style="dim")
