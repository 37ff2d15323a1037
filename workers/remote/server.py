"""The connection to one OpenAI-compatible server: requests, streams, errors, retries.

It returns JSON, which `workers.remote.protocol` parses, and raises errors of `orchestrator.errors`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import httpx
from httpx_sse import SSEError, aconnect_sse

from orchestrator.errors import (
    BatonError,
    Overloaded,
    WorkerError,
    WorkerUnavailable,
)
from workers.remote import errors as failures
from workers.remote import protocol, sglang
from workers.remote.address import base
from workers.retry import CircuitBreaker, CountedRetry

END_TIMEOUT_S = 1.0  # for a server to close a stream after `[DONE]`


class Server:
    """One server: kept connections, errors, retries, a circuit breaker.

    Args:
        url: its base (`http://host:8000/v1`); ConfigError if it is not one.
        key: sent as the bearer's token.
        connect_s: seconds for a connection to open.
        silence_s: seconds of silence after which a call counts as lost.
        retries: tries of a call after the first.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        connect_s: float = 5.0,
        silence_s: float = 60.0,
        retries: int = 2,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self.name = base(url)
        self._retries, self.breaker = retries, breaker or CircuitBreaker(self.name)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
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
            response = await self._http.get(self.name + path, timeout=timeout)
            return self._json(response)

    async def ask(
        self, path: str, body: Mapping[str, Any], session: str = "", *, trying: bool = False
    ) -> dict[str, Any]:
        """The answer to a request that is not streamed; `trying`: what it holds may be more than
        the server knows, so that the breaker does not count that the server broke down over it."""
        return await self._post(
            self.name + path,
            body,
            session,
            lambda response: self._answer(self._json(response)),
            trying,
        )

    async def ask_sglang(self, body: Mapping[str, Any], session: str = "") -> dict[str, Any]:
        """The answer of SGLang's own path, which stands beside `/v1`.

        Raises:
            Absent: whatever answers there is not SGLang.
        """
        return await self._post(self._sglang_url, body, session, self._sglang_answer)

    async def try_sglang(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The same, tried once: the path may be closed on a server that works, so a failure there
        says nothing of `/v1`, and the breaker does not count it."""
        with self._translated():
            return self._sglang_answer(await self._http.post(self._sglang_url, json=body))

    @property
    def _sglang_url(self) -> str:
        return self.name.removesuffix("/v1") + sglang.PATH

    async def _post(
        self,
        url: str,
        body: Mapping[str, Any],
        session: str,
        read: Callable[[httpx.Response], dict[str, Any]],
        trying: bool = False,
    ) -> dict[str, Any]:
        retries = self.tries()
        while True:
            try:
                with self._errors(trying):
                    response = await self._http.post(
                        url, json=body, headers=protocol.session(session)
                    )
                    return read(response)
            except (WorkerUnavailable, Overloaded) as error:
                await retries.backoff(error)

    async def events(
        self, path: str, body: Mapping[str, Any], session: str = ""
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a streamed answer, tried once; closing it hangs up."""
        with self._errors():
            source = aconnect_sse(
                self._http, "POST", self.name + path, json=body, headers=protocol.session(session)
            )
            async with source as stream:
                if stream.response.status_code != 200:
                    await stream.response.aread()
                    self._json(stream.response)
                self.breaker.record_success()  # it answers; errors of the stream come later
                lines = stream.aiter_sse()
                async for event in lines:
                    if not event.data:  # a retry time, an id or a ping of the server's
                        continue
                    if event.data == "[DONE]":  # read on, so that the connection can be reused
                        with suppress(TimeoutError, httpx.HTTPError):
                            await asyncio.wait_for(anext(lines, None), END_TIMEOUT_S)
                        return
                    yield self._answer(json.loads(event.data, parse_constant=_number))

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

    def _sglang_answer(self, response: httpx.Response) -> dict[str, Any]:
        with suppress(ValueError):
            data = self._json(response)
            if isinstance(data, dict) and isinstance(data.get("meta_info"), dict):
                return data
        raise failures.Absent(f"{self.name}: expected SGLang's {sglang.PATH}, got something else")

    def _json(self, response: httpx.Response) -> Any:
        """The body of a response whose status is 200.

        Raises:
            BatonError: the error that its status stands for.
        """
        if response.status_code == 200:
            return response.json(parse_constant=_number)
        try:
            body = response.json()
        except ValueError:
            body = None
        raise failures.failure(response.status_code, response.headers, body, self.name)

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
        except (httpx.HTTPError, httpx.StreamError, SSEError) as error:
            what = str(error) or type(error).__name__
            hung_up = isinstance(error, httpx.RemoteProtocolError)
            kind = failures.Broke if hung_up else WorkerUnavailable
            raise kind(f"{self.name}: {what}") from None
        except ValueError as error:  # no JSON
            raise WorkerUnavailable(
                f"{self.name}: expected JSON, got something else ({type(error).__name__}); "
                "check that the url is that of an OpenAI-compatible server"
            ) from None


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
