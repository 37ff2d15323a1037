"""Connections whose requests begin in time and with headers of bounded size.

uvicorn's parser takes headers and trailers of any size, for as long as a client sends them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deploy.service.proxy import MAX_HEAD_BYTES
from orchestrator.http.errors import HttpError

HEAD_S: Final = 20.0  # for a request's headers, from the first byte or from the connection


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which refuses headers that are too large (431), too slow (408) or not
    HTTP (400).

    Trailers are ignored, as a server may (RFC 9110, 6.5.1): uvicorn would add them to the headers
    that were checked before. If they are larger than headers may be, the connection is closed.
    """

    _head_bytes = 0  # received for the headers that we wait for, or since the last piece of a body
    _deadline: asyncio.TimerHandle | None = None  # set while headers are awaited or arriving

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes <= MAX_HEAD_BYTES:
            return
        if self._deadline is None:
            self.transport.close()
        else:
            text = f"the headers have more than {MAX_HEAD_BYTES} bytes"
            self._refuse(431, text, "headers_too_large")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "expected an HTTP/1.1 request", "invalid_http")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:  # not the first request of the connection
            self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._deadline is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_arrived()
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._deadline = self.loop.call_later(HEAD_S, self._too_late)

    def _head_arrived(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        if self._head_bytes:
            text = f"the headers did not arrive within {HEAD_S:g} s"
            self._refuse(408, text, "request_timeout")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str, code: str) -> None:
        self._head_arrived()
        body = HttpError(status, message, code=code).response().body
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 %d Refused\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (status, len(body), body)
            )
            self.transport.close()
