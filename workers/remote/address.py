"""Where a server is. (Apart from the rest, so that a deployment file is checked without torch.)"""

from __future__ import annotations

from urllib.parse import urlsplit

from orchestrator.errors import ConfigError


def base(url: str) -> str:
    """A server's base as OpenAI clients take it, `/v1` where no path is given.

    Raises:
        ConfigError: it is no address of an HTTP server, or holds more than that.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"url: {url!r} is not the address of an HTTP server")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError("url: scheme, host, port and path alone; a key goes in api_key_env")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"
