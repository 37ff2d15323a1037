"""What Baton can do over a running server: `python -m tests.real.server_table --url URL`.

The server is asked as a worker asks it: the probe, a draft, judges, a verification. A line says
what came, or why it was refused; the last line is a row for the table in docs/models.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from deploy.evaluation.builtin.problems import draw
from orchestrator.errors import BatonError, Unsupported
from orchestrator.types import (
    GREEDY,
    Constraint,
    Generation,
    LabelQuery,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Call
from workers.embedded.checkpoints import resolve
from workers.remote.backend import RemoteBackend
from workers.remote.request_builder import prompt_fields
from workers.remote.server import Server
from workers.text.tokenizer_files import load_tokenizer
from workers.worker import ModelWorker

QUESTION = draw("dev", 7, 1)[0].question
JUDGE = (Message("user", "Score?"),)
DIGITS = tuple("0123456789")
LONG = 120  # tokens of a text that is asked for in both ways
STEP = StopCriteria(60, until=("\n\n",))
YES_OR_NO = Constraint("json_schema", '{"enum": ["yes", "no"]}')


class ServerTrial:
    """Tries over one server; each returns what came, in words.

    Raises:
        BatonError: by each try that the worker refuses, or that fails.
    """

    def __init__(self, worker: ModelWorker) -> None:
        self._worker = worker
        self._transcript = Transcript((Message("user", QUESTION),))
        self._draft = Segment("small", "So we add 5 and 7.\n\n")

    async def probe(self) -> str:
        found = await self._worker.backend.capabilities()
        return f"{found}, context {self._worker.context}"

    async def draft(self) -> str:
        """A step, and whether a longer text is the same streamed and not."""
        worker = self._worker
        step = await self._write(self._transcript, STEP)
        if step.segment.text.strip():
            self._draft = step.segment
        made = await self._write(self._transcript, StopCriteria(LONG))
        capabilities = await worker.backend.capabilities()
        ids = worker.prompts.transcript(self._transcript)
        body = prompt_fields(worker.prompts, capabilities.prompt, ids, self._transcript)
        body |= capabilities.request_fields(worker.backend.model, GREEDY, LONG)
        answer = await worker.backend.server.ask(capabilities.path, body)
        chunk = capabilities.dialect.chunk(answer, worker.backend.vocabulary)
        whole = "" if chunk is None else chunk.text
        same = bool(made.segment.text) and whole.startswith(made.segment.text)
        differ = f"OTHERWISE where it is not streamed: {whole!r}, not {made.segment.text!r}"
        return f"{_shown(step)}; {'the same where it is not streamed' if same else differ}"

    async def digits(self) -> str:
        return await self._judge(LabelQuery(JUDGE, "", DIGITS))

    async def greedy(self) -> str:
        return await self._judge(LabelQuery(JUDGE, "", DIGITS, likeliest=True))

    async def likelihood(self) -> str:
        return await self._judge(LabelQuery(JUDGE, "", DIGITS, nll=True))

    async def confidence(self) -> str:
        return _shown(await self._write(self._transcript, replace(STEP, min_confidence=0.05)))

    async def verification(self) -> str:
        made = await self._worker.verify(self._call(self._transcript), self._draft, GREEDY)
        return f"{len(made.nll)} tokens, {sum(made.nll) / len(made.nll):.3f} nats each"

    async def seeds(self) -> str:
        """Four texts at a high temperature, two of them of one seed."""
        whole = StopCriteria(24)
        one, again, *others = [
            (await self._write(self._transcript, whole, Sampling(1.5, seed=seed))).segment.text
            for seed in (1, 1, 2, 3)
        ]
        if {one, again} == set(others):
            raise Unsupported("it does not sample: texts of several seeds are equal")
        return "one text a seed" if one == again else "ignored: a text differs from its repetition"

    async def stop(self) -> str:
        word = self._draft.text.split()[-1]
        made = await self._write(self._transcript, StopCriteria(60, stop=(word,)))
        cut = made.segment.finish == "stop" and word not in made.segment.text
        return f"{'cut at' if cut else 'NOT cut at'} {word!r}: {_shown(made)}"

    async def constraint(self) -> str:
        closed = replace(self._transcript.extend(self._draft), closed=True)
        call = replace(self._call(closed), constraint=YES_OR_NO)
        return _shown(await _last(self._worker, call, StopCriteria(20), GREEDY))

    async def _judge(self, query: LabelQuery) -> str:
        judged = await self._worker.classify(
            self._call(self._transcript.extend(self._draft)), query
        )
        best = max(range(len(DIGITS)), key=lambda i: judged.probabilities[i])
        shown = (
            f"{DIGITS[best]} with {judged.probabilities[best]:.3f}, outside {judged.outside:.3f}"
        )
        return f"{shown}, {len(judged.nll)} log-probabilities" if judged.nll else shown

    def _call(self, transcript: Transcript) -> Call:
        return Call("server table", transcript, "large")

    async def _write(
        self, transcript: Transcript, criteria: StopCriteria, sampling: Sampling = GREEDY
    ) -> Generation:
        return await _last(self._worker, self._call(transcript), criteria, sampling)


async def _last(
    worker: ModelWorker, call: Call, criteria: StopCriteria, sampling: Sampling
) -> Generation:
    """The whole of a streamed text."""
    async with aclosing(worker.generate(call, criteria, sampling)) as items:
        async for item in items:
            last = item
    assert isinstance(last, Generation)
    return last


def _shown(made: Generation) -> str:
    segment, usage = made.segment, made.usage
    counts = f"{usage.prompt}+{usage.generated} tokens, {len(segment.logprobs)} log-probabilities"
    return f"{segment.text!r} ({segment.finish}; {counts})"


async def table(worker: ModelWorker, name: str) -> list[str]:
    """Lines of what came, the row last."""
    trial = ServerTrial(worker)
    tries: dict[str, Callable[[], Awaitable[str]]] = {
        "probe": trial.probe,
        "draft": trial.draft,
        "judge by digits": trial.digits,
        "judge by its likeliest digit": trial.greedy,
        "judge by likelihood": trial.likelihood,
        "confidence of a draft": trial.confidence,
        "verification": trial.verification,
        "seeds": trial.seeds,
        "stop string": trial.stop,
        "form": trial.constraint,
    }
    lines, cells = [], []
    for what, attempt in tries.items():
        try:
            lines.append(f"{what}: {await attempt()}")
            cells.append("yes")
        except BatonError as error:
            lines.append(f"{what}: {type(error).__name__}: {error}")
            cells.append("refused" if isinstance(error, Unsupported) else "fails")
            if what == "probe":
                break
    return [*lines, f"| {' | '.join([name, *cells])} |"]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="its base, http://127.0.0.1:8001/v1")
    parser.add_argument("--model", default="embedded:large", help="the model's name there")
    parser.add_argument("--tokenizer", help="folder, id or GGUF file; the model's if left out")
    parser.add_argument("--key-env", default="", help="the variable that holds its key")
    parser.add_argument("--name", default="server", help="what the row is called")
    options = parser.parse_args()
    model = str(resolve(options.model))
    server = Server(options.url, key=os.environ.get(options.key_env))
    tokenizer = load_tokenizer(resolve(options.tokenizer or options.model))
    worker = ModelWorker(RemoteBackend(server, model, tokenizer))
    try:
        print("\n".join(await table(worker, options.name)))
    finally:
        await worker.backend.aclose()


if __name__ == "__main__":
    asyncio.run(main())
