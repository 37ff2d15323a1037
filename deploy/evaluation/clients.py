"""Two clients with one interface: workers in this process, and a service over HTTP."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Protocol, runtime_checkable

import httpx
from httpx_sse import SSEError, aconnect_sse

from deploy.evaluation.candidates import Candidate, policy_name, policy_of
from deploy.evaluation.evaluate import EvaluatedAnswer
from deploy.evaluation.evaluation_log import from_json
from deploy.evaluation.recording import RecordedRequest, Recording
from deploy.service.config import Args
from orchestrator.errors import (
    BatonError,
    ConfigError,
    InvalidRequest,
    Overloaded,
    WorkerUnavailable,
)
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.budget import spent
from orchestrator.loop.events import (
    ActionCompleted,
    Metrics,
    RequestCompleted,
    StepCompleted,
    TextDelta,
)
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


@dataclass(frozen=True, slots=True)
class CompletedAnswer:
    """The end of a stream: the answer, and the summary that users see."""

    answer: EvaluatedAnswer
    summary: dict[str, Any]


Item = TextDelta | StepCompleted | CompletedAnswer


class Client(Protocol):
    """Answers questions."""

    transport: Literal["in-process", "http"]

    def stream(self, question: str, candidate: Candidate) -> AsyncGenerator[Item, None]:
        """Yield text and steps as they come, and one CompletedAnswer at the end."""
        ...

    def reset_prefix_cache(self) -> None:
        """Empty the workers' prefix caches if they are in this process."""
        ...


@runtime_checkable
class PrefixCacheOwner(Protocol):
    """A worker whose prefix cache can be emptied."""

    def reset_prefix_cache(self) -> None: ...


async def ask(client: Client, question: str, candidate: Candidate) -> EvaluatedAnswer:
    """Return the answer, without its stream."""
    async with aclosing(client.stream(question, candidate)) as items:
        async for item in items:
            if isinstance(item, CompletedAnswer):
                return item.answer
    raise WorkerUnavailable("expected the end of the answer, but the stream broke off; try again")


class LocalClient:
    """Both workers in this process, without a server; `recording`: keep each answer's recording."""

    transport: Literal["in-process", "http"] = "in-process"

    def __init__(
        self,
        args: Args,
        workers: Mapping[WorkerName, Worker],
        options: RequestOptions | None = None,
        *,
        recording: bool = False,
    ) -> None:
        self._args, self._workers = args, workers
        self._options, self._recording = options or RequestOptions(), recording

    async def stream(self, question: str, candidate: Candidate) -> AsyncGenerator[Item, None]:
        options, service = self._options, self._args.limits
        policy = policy_of(self._args, candidate)
        request = RecordedRequest(
            secrets.token_hex(8),
            policy_name(self._args, candidate),
            (Message("user", question),),
            policy.model_dump(mode="json") if self._recording else {},
            Sampling(options.temperature, seed=options.seed),
            Limits(
                options.max_tokens or service.max_tokens,
                deadline_s=None,  # among many at once, an answer may take long
                prices=self._args.prices,
            ),
            self._args.workers.speculation(),
        )
        recorded: list[ActionCompleted | StepCompleted | RequestCompleted] = []
        # A replay of a recording has no remark.
        remarks = {} if self._recording else self._args.workers.remarks()
        asked = Request(
            request.request_id,
            request.messages,
            request.sampling,
            request.limits,
            remarks=remarks,
        )
        events = solve(policy, asked, self._workers)
        async with aclosing(events):
            async for event in events:
                if self._recording and not isinstance(event, TextDelta):
                    recorded.append(event)
                if isinstance(event, TextDelta | StepCompleted):
                    yield event
                elif isinstance(event, RequestCompleted):
                    transcript = event.transcript
                    answer = EvaluatedAnswer(
                        transcript.reply.strip(),
                        spent(transcript),
                        event.metrics,
                        event.steps,
                        Recording(request, tuple(recorded)) if self._recording else None,
                    )
                    summary = {
                        "policy": candidate.label,
                        "forced": transcript.forced,
                        "speculation": request.speculation,
                    }
                    yield CompletedAnswer(answer, {**summary, **asdict(event.metrics)})

    def reset_prefix_cache(self) -> None:
        for worker in self._workers.values():
            if isinstance(worker, PrefixCacheOwner):
                worker.reset_prefix_cache()


def base_address(url: str) -> str:
    """Return a service's address, also from the base URL of OpenAI's clients, which ends in /v1."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


API_KEYS: Final = ("BATON_API_KEY",)
"""Variables of the environment that may hold a client's key; the first that is set counts."""


def authorization(names: Sequence[str]) -> dict[str, str]:
    """Return the header with the key of the first of these variables that is set; else none."""
    key = next(filter(None, map(os.environ.get, names)), None)
    return {"authorization": f"Bearer {key}"} if key else {}


class HttpClient:
    """A running service, over its OpenAI-compatible API; the key is `$BATON_API_KEY`."""

    transport: Literal["in-process", "http"] = "http"

    def __init__(self, url: str, options: RequestOptions | None = None) -> None:
        self._url, self._options = base_address(url), options or RequestOptions()
        # A thought may take long without text, but the service sends pings meanwhile.
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(120.0, connect=10.0),
            headers=authorization(API_KEYS),
            follow_redirects=False,
            trust_env=False,
            verify=trusted(),
        )

    async def stream(self, question: str, candidate: Candidate) -> AsyncGenerator[Item, None]:
        options = self._options
        body: dict[str, Any] = {
            "model": candidate.policy,
            "messages": [{"role": "user", "content": question}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": options.temperature,
            "policy": candidate.params,
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
                if content := delta.get("content"):
                    text += content
                    yield TextDelta("policy", "answer", content)
        if finished is None:
            raise WorkerUnavailable(
                f"{self._url}: expected the end of the answer, but the stream broke off; try again"
            )
        metrics, steps = (
            finished["metrics"],
            [*finished["steps"], *finished.get("answer_steps", ())],
        )
        answer = EvaluatedAnswer(
            text,
            usage.get("completion_tokens", 0),
            from_json(Metrics, metrics),
            tuple(from_json(Step, step) for step in steps),
            trace_id=finished["trace_id"],
        )
        for step in answer.steps:
            yield StepCompleted(step)
        keys = ("policy", "forced", "speculation", "trace_id", "experiment", "arm")
        yield CompletedAnswer(answer, {**{key: finished[key] for key in keys}, **metrics})

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        url = f"{self._url}/v1/chat/completions"
        try:
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
        except (httpx.InvalidURL, httpx.UnsupportedProtocol):
            raise no_address(self._url) from None
        except (SSEError, ValueError):
            raise WorkerUnavailable(
                f"{self._url}: expected events of JSON, got something else; check the address"
            ) from None
        except httpx.HTTPError as error:
            raise WorkerUnavailable(f"{self._url}: {reason(error)}") from None

    async def send_feedback(self, trace_id: str, reward: float) -> None:
        """Send the reward of an answer, from 0 to 1.

        Raises:
            BatonError: the service was not reached, or refused it.
        """
        body = {"trace_id": trace_id, "reward": reward}
        try:
            response = await self._client.post(f"{self._url}/v1/feedback", json=body)
        except httpx.HTTPError as error:
            raise WorkerUnavailable(f"{self._url}: {reason(error)}") from None
        if response.status_code != 200:
            raise error_of(response)

    def reset_prefix_cache(self) -> None:
        """Do nothing: a service decides about its own caches."""

    async def aclose(self) -> None:
        await self._client.aclose()


def error_of(response: httpx.Response, names: Sequence[str] = API_KEYS) -> BatonError:
    """Return an error response as an exception; `names` are variables that may hold the key."""
    try:
        error = response.json()["error"]
        message, param, code = error["message"], error.get("param"), error.get("code")
    except (ValueError, KeyError, TypeError):
        message, param, code = f"HTTP {response.status_code}", None, None
    text = f"{response.url.copy_with(path='/')}: {message}"
    if response.status_code == 401:
        text += f"; this command takes its key from {', '.join(f'${name}' for name in names)}"
    if response.status_code in (429, 503):
        return Overloaded(text)
    if 400 <= response.status_code < 500:
        return InvalidRequest(text, param=param, code=code)
    return WorkerUnavailable(text)


def no_address(url: str) -> ConfigError:
    """Return the error of an invalid url."""
    return ConfigError(f"{url}: expected an address as http://HOST:PORT")


def reason(error: httpx.HTTPError) -> str:
    """Describe an error of httpx, whose text may be empty."""
    if isinstance(error, httpx.ConnectError) and "SSL" not in str(error):
        return f"no connection ({error}); is the service running there (`baton serve`)?"
    return str(error) or type(error).__name__
