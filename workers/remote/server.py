"""The connection to one OpenAI-compatible server: requests, streams, errors, retries.

Answers are JSON, which a dialect parses; errors are those of `orchestrator.errors`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import httpx

from orchestrator.errors import (
    BatonError,
    Contradiction,
    Overloaded,
    WorkerError,
    WorkerUnavailable,
)
from workers.remote import errors as failures
from workers.remote.address import base, trusted
from workers.remote.body import ANSWER_BYTES, HEADERS, events, most_bytes, read
from workers.retry import CircuitBreaker, CountedRetry

END_TIMEOUT_S = 1.0  # for a server to close a stream after `[DONE]`


class Server:
    """One server: kept connections, errors, retries, a circuit breaker.

    Args:
        url: its base (`http://host:8000/v1`); see `address.base`.
        key: sent as the bearer token.
        ca: a file of certificates (PEM); see `address.trusted`.
        connect_s: seconds for a connection to open.
        silence_s: seconds of silence after which a call counts as lost.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        ca: str | None = None,
        connect_s: float = 5.0,
        silence_s: float = 60.0,
        retries: int = 2,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self.name = base(url)
        # Slow to make, and not needed for http.
        self._trusted = trusted(ca) if self.name.startswith("https") else False
        self._retries, self.breaker = retries, breaker or CircuitBreaker(self.name)
        self._headers = HEADERS | ({"authorization": f"Bearer {key}"} if key else {})
        self._timeout = httpx.Timeout(silence_s, connect=connect_s)
        self._home: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    @property
    def _http(self) -> httpx.AsyncClient:
        """The client of the running event loop: connections cannot move between loops."""
        loop = asyncio.get_running_loop()
        if self._home is None or self._home[0] is not loop:
            client = httpx.AsyncClient(
                headers=self._headers,
                timeout=self._timeout,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
                follow_redirects=False,
                trust_env=False,
                verify=self._trusted,
            )
            self._home = loop, client
        return self._home[1]

    async def aclose(self) -> None:
        if self._home is not None and self._home[0] is asyncio.get_running_loop():
            await self._home[1].aclose()
        self._home = None

    def tries(self) -> CountedRetry:
        """Return the retries of one call."""
        return CountedRetry(self._retries, self.breaker)

    async def fetch(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        beside: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Return a page's JSON, by POST if there is a body, without retries.
        The breaker does not count it: a server may list its models and write nothing."""
        method = "GET" if body is None else "POST"
        timeout = self._timeout if timeout_s is None else httpx.Timeout(timeout_s)
        source = self._http.stream(method, self._url(path, beside), json=body, timeout=timeout)
        with self._translated():
            async with source as response:
                return await self._json(response)

    async def ask(
        self,
        path: str,
        body: Mapping[str, Any],
        session: str = "",
        *,
        beside: bool = False,
        trying: bool = False,
    ) -> dict[str, Any]:
        """Send a request that is not streamed, and return its answer. If `trying`, the breaker does
        not count that its fields break the server."""
        retries, headers = self.tries(), _session(session)
        while True:
            source = self._http.stream("POST", self._url(path, beside), json=body, headers=headers)
            try:
                with self._errors(trying):
                    async with source as response:
                        answer = await self._json(response, most_bytes(body))
                    return answer if beside else self._answer(answer)
            except (WorkerUnavailable, Overloaded) as error:
                await retries.backoff(error)

    def _url(self, path: str, beside: bool) -> str:
        return (self.name.removesuffix("/v1") if beside else self.name) + path

    async def events(
        self, path: str, body: Mapping[str, Any], session: str = "", *, trying: bool = False
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of a streamed answer, without retries; closing it hangs up."""
        with self._errors(trying):
            headers = {"accept": "text/event-stream"} | _session(session)
            source = self._http.stream("POST", self.name + path, json=body, headers=headers)
            async with source as response:
                kind = response.headers.get("content-type", "")
                if response.status_code != 200 or "text/event-stream" not in kind:
                    whole = self._answer(await self._json(response, most_bytes(body)))
                    self.breaker.record_success()
                    yield whole  # the server does not stream
                    return
                self.breaker.record_success()  # it answers; the stream may fail later
                model: str | None = None
                async with aclosing(events(response, most_bytes(body))) as datas:
                    async for data in datas:
                        if data == "[DONE]":  # read on, so that the connection can be reused
                            with suppress(TimeoutError, httpx.HTTPError, BatonError, ValueError):
                                async with asyncio.timeout(END_TIMEOUT_S):
                                    await anext(datas, None)
                            return
                        answer = self._answer(_parsed(data))
                        model = self._same_model(answer, model)
                        yield answer

    def _same_model(self, answer: Mapping[str, Any], before: str | None) -> str | None:
        """Return the model that a chunk with text names; it must be that of the chunks `before`."""
        model = answer.get("model")
        if not isinstance(model, str) or not answer["choices"]:
            return before
        if before not in (None, model):
            raise Contradiction(
                f"{self.name}: expected the answer of one model, got text of {before!r} and then "
                f"of {model!r}; check what the server falls back to"
            )
        return model

    def _answer(self, data: Any) -> dict[str, Any]:
        """Check an answer or a chunk; raise BatonError if it is an error, or has no choices."""
        if isinstance(data, dict) and data.get("error"):
            raise failures.stream_failure(data, self.name)
        if not isinstance(data, dict) or not isinstance(data.get("choices"), list):
            raise WorkerUnavailable(
                f"{self.name}: expected a completion of OpenAI's API, got JSON without "
                "`choices`; check that the url is that of an OpenAI-compatible server"
            )
        return data

    async def _json(self, response: httpx.Response, most: int = ANSWER_BYTES) -> Any:
        """Return the body of a response; raise the BatonError for a status that is not 200."""
        status = response.status_code
        if status == 200:
            return _parsed(await read(response, most))
        body = None
        with suppress(ValueError, RecursionError, WorkerError):
            body = _parsed(await read(response))
        raise failures.failure(status, response.headers, body, self.name)

    @contextmanager
    def _errors(self, trying: bool = False) -> Iterator[None]:
        """Translate errors, and record the outcome in the breaker."""
        self.breaker.before_call()
        try:
            with self._translated():
                yield
        except WorkerUnavailable as error:
            if not (trying and isinstance(error, failures.Broke)):
                self.breaker.record_failure()
            raise
        except BatonError:
            self.breaker.record_success()  # it is reachable, and refuses
            raise
        else:
            self.breaker.record_success()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise errors of the connection as those of `orchestrator.errors`."""
        try:
            yield
        except (httpx.HTTPError, httpx.StreamError) as error:
            what = str(error) or type(error).__name__
            hung_up = isinstance(error, httpx.RemoteProtocolError)
            kind = failures.Broke if hung_up else WorkerUnavailable
            raise kind(f"{self.name}: {what}") from None
        except WorkerError as error:
            if str(error).startswith(self.name):
                raise
            raise type(error)(f"{self.name}: {error}") from None
        except (ValueError, RecursionError) as error:  # not JSON, or nested too deep
            raise WorkerUnavailable(
                f"{self.name}: expected JSON, got something else ({type(error).__name__}); "
                "check that the url is that of an OpenAI-compatible server"
            ) from None


def _session(name: str) -> dict[str, str]:
    """Return the header by which routers keep a session on one replica, for its cache."""
    return {"x-session-id": name} if name.isascii() and name.isprintable() else {}


def _parsed(data: str | bytes) -> Any:
    return json.loads(data, parse_constant=_number)


def _number(name: str) -> float:
    """Parse Infinity, which JSON lacks and Python's servers write; raise WorkerError at a NaN."""
    if name == "NaN":
        raise WorkerError(
            "the server's answer has a NaN where a number is expected: check the weights and the "
            "dtype of its model"
        )
    return float(name)
