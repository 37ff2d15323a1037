"""Asking one question: in this process, or over HTTP; the answer looks the same."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import httpx
from pydantic import ValidationError

from deploy.evaluation.evaluate import Answered, Contender
from deploy.evaluation.journal import made
from deploy.evaluation.recording import RecordedRequest, Recording
from deploy.service.config import Args, explain
from orchestrator.errors import (
    BatonError,
    ConfigError,
    InvalidRequest,
    Overloaded,
    UnknownPolicy,
    WorkerUnavailable,
)
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.events import (
    ActionCompleted,
    Metrics,
    RequestCompleted,
    StepCompleted,
    TextDelta,
)
from orchestrator.loop.policy import Policy
from orchestrator.loop.solve import solve
from orchestrator.state.versions import build
from orchestrator.types import Limits, Message, Sampling, Step
from orchestrator.worker import Worker
from policies import POLICIES


@dataclass(frozen=True, slots=True)
class Options:
    """What a question may be asked with; None leaves it to the service."""

    max_tokens: int | None = None
    temperature: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """The end of an answer: what `Answered` says, and the summary that users see."""

    answered: Answered
    summary: dict[str, Any]


Item = TextDelta | StepCompleted | Told


class Asker(Protocol):
    """One way to have questions answered."""

    transport: Literal["in-process", "http"]

    def stream(self, question: str, contender: Contender) -> AsyncGenerator[Item, None]:
        """TextDelta and steps as they come, and one Told at the end."""
        ...

    def reset_prefix_cache(self) -> None:
        """Let nobody profit from what others have asked, as far as this side can see to it."""
        ...


@runtime_checkable
class Forgetful(Protocol):
    """A worker whose prefix cache can be emptied."""

    def reset_prefix_cache(self) -> None: ...


async def ask(asker: Asker, question: str, contender: Contender) -> Answered:
    """The answer alone."""
    async with aclosing(asker.stream(question, contender)) as items:
        async for item in items:
            if isinstance(item, Told):
                return item.answered
    raise WorkerUnavailable("the answer broke off")


def policy_of(args: Args, contender: Contender) -> Policy:
    """The policy with the file's parameters and the contender's own on top.

    Raises:
        UnknownPolicy, InvalidRequest: names what is wrong.
    """
    name = _name(args, contender)
    return build_policy(name, {**args.policy.params.get(name, {}), **contender.params})


def _name(args: Args, contender: Contender) -> str:
    return args.policy.default if contender.policy == "baton" else contender.policy


def build_policy(name: str, params: Mapping[str, Any]) -> Policy:
    """A policy by its name and parameters.

    Raises:
        UnknownPolicy, InvalidRequest: names what is wrong.
    """
    if name not in POLICIES:
        raise UnknownPolicy(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    try:
        return build(POLICIES, name, params)
    except ValidationError as error:
        raise InvalidRequest(f"{name}: {explain(error)}", param="policy") from None


class LocalAsker:
    """Both workers in this process, no server; with `recording` every answer brings its own."""

    transport: Literal["in-process", "http"] = "in-process"

    def __init__(
        self,
        args: Args,
        workers: Mapping[WorkerName, Worker],
        options: Options | None = None,
        *,
        recording: bool = False,
    ) -> None:
        self._args, self._workers = args, workers
        self._options, self._recording = options or Options(), recording

    async def stream(self, question: str, contender: Contender) -> AsyncGenerator[Item, None]:
        options, service = self._options, self._args.limits
        policy = policy_of(self._args, contender)
        asked = RecordedRequest(
            secrets.token_hex(8),
            _name(self._args, contender),
            (Message("user", question),),
            policy.model_dump(mode="json") if self._recording else {},
            Sampling(options.temperature, seed=options.seed),
            Limits(options.max_tokens or service.max_tokens, service.deadline_s),
            self._args.workers.speculation(),
        )
        heard: list[ActionCompleted | StepCompleted | RequestCompleted] = []
        events = solve(
            policy,
            asked.messages,
            self._workers,
            request=asked.request_id,
            sampling=asked.sampling,
            limits=asked.limits,
        )
        async with aclosing(events):
            async for event in events:
                if self._recording and not isinstance(event, TextDelta):
                    heard.append(event)
                if isinstance(event, TextDelta | StepCompleted):
                    yield event
                elif isinstance(event, RequestCompleted):
                    transcript = event.transcript
                    answered = Answered(
                        "".join(segment.text for segment in transcript.answer).strip(),
                        transcript.thought_tokens + transcript.answer_tokens,
                        event.metrics,
                        event.steps,
                        Recording(asked, tuple(heard)) if self._recording else None,
                    )
                    summary = {
                        "policy": contender.label,
                        "forced": transcript.forced,
                        "speculation": asked.speculation,
                    }
                    yield Told(answered, {**summary, **asdict(event.metrics)})

    def reset_prefix_cache(self) -> None:
        for worker in self._workers.values():
            if isinstance(worker, Forgetful):
                worker.reset_prefix_cache()


def home(url: str) -> str:
    """A service's address, also from the base URL that OpenAI's clients are given."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


class HttpAsker:
    """A running service, over its OpenAI-compatible API; the key is `$BATON_API_KEY`."""

    transport: Literal["in-process", "http"] = "http"

    def __init__(self, url: str, options: Options | None = None) -> None:
        self._url, self._options = home(url), options or Options()
        key = os.environ.get("BATON_API_KEY")
        self.headers = {"authorization": f"Bearer {key}"} if key else {}
        # A thought may be silent for long, but the service pings; a connection is quick or dead.
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(120.0, connect=10.0),
            headers=self.headers,
            follow_redirects=False,
            trust_env=False,
        )

    async def stream(self, question: str, contender: Contender) -> AsyncGenerator[Item, None]:
        options = self._options
        body: dict[str, Any] = {
            "model": contender.policy,
            "messages": [{"role": "user", "content": question}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": options.temperature,
            "policy": contender.params,
            "max_tokens": options.max_tokens,
            "seed": options.seed,
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
                if answer := delta.get("content"):
                    text += answer
                    yield TextDelta("policy", "answer", answer)
        if finished is None:
            raise WorkerUnavailable(f"{self._url}: the answer broke off")
        told, steps = finished["metrics"], [*finished["steps"], *finished.get("answer_steps", ())]
        answered = Answered(
            text,
            usage.get("completion_tokens", 0),
            made(Metrics, told),
            tuple(made(Step, step) for step in steps),
            trace_id=finished["trace_id"],
        )
        for step in answered.steps:
            yield StepCompleted(step)
        told_too = ("policy", "forced", "speculation", "trace_id", "experiment", "arm")
        summary = {key: finished[key] for key in told_too}
        yield Told(answered, {**summary, **told})

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        url = f"{self._url}/v1/chat/completions"
        try:
            async with self._client.stream("POST", url, json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise failure(response)
                async for line in response.aiter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    data = json.loads(line.removeprefix("data: "))
                    if "error" in data:
                        raise WorkerUnavailable(f"{self._url}: {data['error']['message']}")
                    yield data
        except httpx.InvalidURL as error:
            raise ConfigError(f"{self._url}: {error}") from None
        except httpx.HTTPError as error:
            raise WorkerUnavailable(f"{self._url}: {reason(error)}") from None

    async def judge(self, trace_id: str, reward: float) -> None:
        """Tell the service what an answer was worth, from 0 to 1.

        Raises:
            BatonError: it could not be told, or did not take it.
        """
        body = {"trace_id": trace_id, "reward": reward}
        try:
            response = await self._client.post(f"{self._url}/v1/feedback", json=body)
        except httpx.HTTPError as error:
            raise WorkerUnavailable(f"{self._url}: {reason(error)}") from None
        if response.status_code != 200:
            raise failure(response)

    def reset_prefix_cache(self) -> None:
        """A service's cache is its own affair."""

    async def aclose(self) -> None:
        await self._client.aclose()


def failure(response: httpx.Response) -> BatonError:
    """An error response as the error it stands for."""
    try:
        told = response.json()["error"]
        message, param, code = told["message"], told.get("param"), told.get("code")
    except (ValueError, KeyError, TypeError):
        message, param, code = f"HTTP {response.status_code}", None, None
    text = f"{response.url.copy_with(path='/')}: {message}"
    if response.status_code in (429, 503):
        return Overloaded(text)
    if 400 <= response.status_code < 500:
        return InvalidRequest(text, param=param, code=code)
    return WorkerUnavailable(text)


def reason(error: httpx.HTTPError) -> str:
    """What went wrong on the way, in words: httpx leaves many of its errors without any."""
    return str(error) or type(error).__name__
