"""The connection to one OpenAI-compatible server: requests, streams, errors, retries.

It returns JSON, which a dialect parses, and raises errors of `orchestrator.errors`.
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
from workers.remote.dialects.sglang import PATH
from workers.retry import CircuitBreaker, CountedRetry

END_TIMEOUT_S = 1.0  # for a server to close a stream after `[DONE]`


class Server:
    """One server: kept connections, errors, retries, a circuit breaker.

    Args:
        url: its base (`http://host:8000/v1`); ConfigError if it is not one.
        key: sent as the bearer's token.
        ca: a file of certificates (PEM) that are trusted beside the usual ones, those of
            `SSL_CERT_FILE` or `SSL_CERT_DIR` if set; ConfigError if there is none in it.
        connect_s: seconds for a connection to open.
        silence_s: seconds of silence after which a call counts as lost.
        retries: tries of a call after the first.
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
        # Making it takes a moment, and http has no use for it.
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
        """The tries that one call has."""
        return CountedRetry(self._retries, self.breaker)

    async def get(self, path: str, *, timeout_s: float | None = None) -> Any:
        """A page's JSON, tried once."""
        timeout = self._timeout if timeout_s is None else httpx.Timeout(timeout_s)
        with self._errors():
            async with self._http.stream("GET", self.name + path, timeout=timeout) as response:
                return await self._json(response)

    async def ask(
        self, path: str, body: Mapping[str, Any], session: str = "", *, trying: bool = False
    ) -> dict[str, Any]:
        """The answer to a request that is not streamed; `trying`: what it holds may be more than
        the server knows, so the breaker does not count that the server broke down over it."""
        retries = self.tries()
        while True:
            try:
                with self._errors(trying):
                    return self._answer(await self._sent(self.name + path, body, session))
            except (WorkerUnavailable, Overloaded) as error:
                await retries.backoff(error)

    async def ask_sglang(
        self, body: Mapping[str, Any], session: str = "", *, once: bool = False
    ) -> dict[str, Any]:
        """The answer of SGLang's own path, which is beside `/v1`. `once`: the path may be closed
        on a server that works, so it is tried once, and the breaker does not count a failure.

        Raises:
            Absent: whatever answers there is not SGLang.
        """
        retries, url = self.tries(), self.name.removesuffix("/v1") + PATH
        while True:
            try:
                with self._translated() if once else self._errors():
                    data = await self._sent(url, body, session)
                    if isinstance(data, dict) and isinstance(data.get("meta_info"), dict):
                        return data
                    raise failures.Absent(
                        f"{self.name}: expected SGLang's {PATH}, got something else"
                    )
            except (WorkerUnavailable, Overloaded) as error:
                if once:
                    raise
                await retries.backoff(error)

    async def _sent(self, url: str, body: Mapping[str, Any], session: str) -> Any:
        headers = _session(session)
        async with self._http.stream("POST", url, json=body, headers=headers) as response:
            return await self._json(response, most_bytes(body))

    async def events(
        self, path: str, body: Mapping[str, Any], session: str = "", *, trying: bool = False
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a streamed answer, tried once; closing it hangs up. `trying` as above."""
        with self._errors(trying):
            headers = {"accept": "text/event-stream"} | _session(session)
            source = self._http.stream("POST", self.name + path, json=body, headers=headers)
            async with source as response:
                kind = response.headers.get("content-type", "")
                if response.status_code != 200 or "text/event-stream" not in kind:
                    whole = self._answer(await self._json(response, most_bytes(body)))
                    self.breaker.record_success()
                    yield whole  # of a server that does not stream
                    return
                self.breaker.record_success()  # it answers; errors of the stream come later
                model: str | None = None
                async with aclosing(events(response, most_bytes(body))) as datas:
                    async for data in datas:
                        if data == "[DONE]":  # read on, so that the connection can be reused
                            with suppress(TimeoutError, httpx.HTTPError, BatonError, ValueError):
                                await asyncio.wait_for(anext(datas, None), END_TIMEOUT_S)
                            return
                        answer = self._answer(_parsed(data))
                        model = self._same_model(answer, model)
                        yield answer

    def _same_model(self, answer: Mapping[str, Any], before: str | None) -> str | None:
        """The model that a chunk with text names, which must be that of the chunks `before`."""
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
        """An answer or a chunk of one.

        Raises:
            BatonError: it is an error, or neither.
        """
        if isinstance(data, dict) and data.get("error"):
            raise failures.stream_failure(data, self.name)
        if not isinstance(data, dict) or not isinstance(data.get("choices"), list):
            raise WorkerUnavailable(
                f"{self.name}: expected a completion of OpenAI's API, got JSON without "
                "`choices`; check that the url is that of an OpenAI-compatible server"
            )
        return data

    async def _json(self, response: httpx.Response, most: int = ANSWER_BYTES) -> Any:
        """The body of a response whose status is 200.

        Raises:
            BatonError: the error that its status stands for.
        """
        status = response.status_code
        if status == 200:
            return _parsed(await read(response, most))
        body = None
        with suppress(ValueError, RecursionError, WorkerError):
            body = _parsed(await read(response))
        raise failures.failure(status, response.headers, body, self.name)

    @contextmanager
    def _errors(self, trying: bool = False) -> Iterator[None]:
        """Errors of the connection as `orchestrator.errors`, recorded by the breaker."""
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
        """Errors of the connection as `orchestrator.errors`."""
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
        except (ValueError, RecursionError) as error:  # no JSON, or none that is meant
            raise WorkerUnavailable(
                f"{self.name}: expected JSON, got something else ({type(error).__name__}); "
                "check that the url is that of an OpenAI-compatible server"
            ) from None


def _session(name: str) -> dict[str, str]:
    """Headers: routers before several replicas keep a session on one of them, for its cache."""
    return {"x-session-id": name} if name.isascii() and name.isprintable() else {}


def _parsed(data: str | bytes) -> Any:
    return json.loads(data, parse_constant=_number)


def _number(name: str) -> float:
    """A number that is none of JSON's, as servers in Python write them.

    Raises:
        WorkerError: it is NaN.
    """
    if name == "NaN":
        raise WorkerError(
            "the server's answer has a NaN where a number is expected: check the weights and the "
            "dtype of its model"
        )
    return float(name)
