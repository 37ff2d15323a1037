"""Two clients with one interface: workers in this process, and a service over HTTP."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import httpx
from httpx_sse import aconnect_sse
from pydantic import TypeAdapter

from deploy.evaluation.candidates import Candidate, policy_name, policy_of
from deploy.evaluation.evaluate import EvaluatedAnswer
from deploy.evaluation.recording import RecordedWorker, Recording
from deploy.evaluation.service_client import (
    API_KEYS,
    authorization,
    base_address,
    error_of,
    translated_errors,
)
from deploy.service.config import Args
from orchestrator.errors import WorkerUnavailable
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.budget import spent
from orchestrator.loop.events import Metrics, RequestCompleted, StepCompleted, TextDelta
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import Limits, Message, Sampling, Step
from orchestrator.worker import Worker
from workers.remote.address import trusted


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Parameters of a request; None: the service's default."""

    max_tokens: int | None = None
    temperature: float = 0.0
    seed: int | None = None


Item = TextDelta | StepCompleted | EvaluatedAnswer
METRICS, STEPS = TypeAdapter(Metrics), TypeAdapter(tuple[Step, ...])


@runtime_checkable
class RunsBetweenCalls(Protocol):
    """A worker that may run ahead of the next call."""

    async def end_ahead(self) -> None: ...


class LocalClient:
    """Both workers in this process, without a server.

    `recording`: keep each answer's recording, unless a worker failed. `fresh`: no answer finds
    another's prefix cached, nor shares the machine with what runs ahead of another.
    """

    def __init__(
        self,
        args: Args,
        workers: Mapping[WorkerName, Worker],
        options: RequestOptions | None = None,
        *,
        recording: bool = False,
        fresh: bool = False,
    ) -> None:
        self._args, self._workers, self._fresh = args, workers, fresh
        self._options, self._recording = options or RequestOptions(), recording

    async def stream(self, question: str, candidate: Candidate) -> AsyncGenerator[Item, None]:
        """Yield text and steps as they come, and the answer at the end."""
        for worker in self._workers.values() if self._fresh else ():
            if isinstance(worker, RunsBetweenCalls):
                await worker.end_ahead()
        options, args, record = self._options, self._args, self._recording
        policy = policy_of(args, candidate)
        limits = Limits(options.max_tokens or args.limits.max_tokens, prices=args.prices)
        name = secrets.token_hex(8)
        request = Request(
            name,
            (Message("user", question),),
            Sampling(options.temperature, seed=options.seed),
            limits,
            owner=name if self._fresh else "",
            # A replay of a recording has no remark.
            remarks={} if record else args.workers.remarks(),
        )
        workers: Mapping[WorkerName, Worker] = self._workers
        recorded = {name: RecordedWorker(name, worker) for name, worker in workers.items()}
        async with aclosing(solve(policy, request, recorded if record else workers)) as events:
            async for event in events:
                if isinstance(event, TextDelta | StepCompleted):
                    yield event
                elif isinstance(event, RequestCompleted):
                    ended, speculation = event, args.workers.speculation()
        transcript = ended.transcript
        recording = partial(
            Recording.of,
            request,
            policy_name(args, candidate),
            policy,
            ended,
            recorded.values(),
            speculation,
        )
        whole = record and not any(worker.failed for worker in recorded.values())
        yield EvaluatedAnswer(
            transcript.reply.strip(),
            spent(transcript),
            ended.metrics,
            ended.steps,
            recording=recording if whole else None,
            summary={
                "policy": candidate.label,
                "forced": transcript.forced,
                "speculation": speculation,
                **asdict(ended.metrics),
            },
        )


class HttpClient:
    """A running service, over its OpenAI-compatible API; the key is `$BATON_API_KEY`."""

    def __init__(self, url: str, options: RequestOptions | None = None) -> None:
        self._url, self._options = base_address(url), options or RequestOptions()
        # A thought may take long without text, but the service sends pings meanwhile.
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(120.0, connect=10.0),
            limits=httpx.Limits(max_connections=None),  # the caller decides how many run at once
            headers=authorization(API_KEYS),
            follow_redirects=False,
            trust_env=False,
            verify=trusted(),
        )

    async def stream(self, question: str, candidate: Candidate) -> AsyncGenerator[Item, None]:
        body: dict[str, Any] = {
            "model": candidate.policy,
            "messages": [{"role": "user", "content": question}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "policy": candidate.params,
            **asdict(self._options),
        }
        text, finished = "", None
        usage: dict[str, Any] = {}
        async for data in self._events(body):
            usage = data.get("usage") or usage
            finished = data.get("baton", finished)
            for choice in data["choices"]:
                delta = choice["delta"]
                if thought := delta.get("reasoning_content"):
                    yield TextDelta("policy", "thought", thought)
                if content := delta.get("content"):
                    text += content
                    yield TextDelta("policy", "answer", content)
        if finished is None:
            raise WorkerUnavailable(
                f"{self._url}: expected the end of the answer, but the stream broke off; try again"
            )
        steps = (*finished["steps"], *finished.get("answer_steps", ()))
        keys = ("policy", "forced", "speculation", "trace_id", "experiment", "arm")
        answer = EvaluatedAnswer(
            text,
            usage.get("completion_tokens", 0),
            METRICS.validate_python(finished["metrics"]),
            STEPS.validate_python(steps),
            trace_id=finished["trace_id"],
            summary={key: finished[key] for key in keys} | finished["metrics"],
        )
        for step in answer.steps:
            yield StepCompleted(step)
        yield answer

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        url = f"{self._url}/v1/chat/completions"
        with translated_errors(self._url):
            async with aconnect_sse(self._client, "POST", url, json=body) as stream:
                if stream.response.status_code != 200:
                    await stream.response.aread()
                    raise error_of(stream.response)
                async for event in stream.aiter_sse():
                    if event.data in ("", "[DONE]"):
                        continue
                    data = json.loads(event.data)
                    if "error" in data:
                        raise WorkerUnavailable(f"{self._url}: {data['error']['message']}")
                    yield data

    async def send_feedback(self, trace_id: str, reward: float) -> None:
        """Send the reward of an answer, from 0 to 1.

        Raises:
            BatonError: the service was not reached, or refused it.
        """
        body = {"trace_id": trace_id, "reward": reward}
        with translated_errors(self._url):
            response = await self._client.post(f"{self._url}/v1/feedback", json=body)
        if response.status_code != 200:
            raise error_of(response)

    async def aclose(self) -> None:
        await self._client.aclose()


Client = LocalClient | HttpClient


async def ask(client: Client, question: str, candidate: Candidate) -> EvaluatedAnswer:
    """Return the answer, without its stream."""
    async with aclosing(client.stream(question, candidate)) as items:
        async for item in items:
            if isinstance(item, EvaluatedAnswer):
                return item
    raise WorkerUnavailable("expected the end of the answer, but the stream broke off; try again")
