"""A server's address and the certificates to trust; checked without torch."""

from __future__ import annotations

import re
import ssl
from urllib.parse import SplitResult, urlsplit

from orchestrator.errors import ConfigError


def base(url: str) -> str:
    """Return a server's base url as OpenAI clients take it, with `/v1` if it has no path.

    Raises:
        ConfigError: it is not the url of an HTTP server, or has credentials, query or fragment.
    """
    parts = checked(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"url: {url!r} is not the address of an HTTP server")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError("url: scheme, host, port and path alone; a key goes in api_key_env")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def checked(url: str) -> SplitResult:
    """Split a url.

    Raises:
        ConfigError: its host or port is impossible.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"url: {error}") from None
    place = parts.netloc.rpartition("@")[2]
    if port == 0 or not re.fullmatch(r"(?:\[[^\[\]]+\]|[^\s:\[\]]*)(?::[0-9]*)?", place):
        raise ConfigError("url: expected HOST or HOST:PORT, the port a number from 1 to 65535")
    if any(not sign.isprintable() or sign in " \\<>^`{|}" for sign in host or ""):
        raise ConfigError("url: a host has letters, digits, dots and hyphens alone")
    return parts


def trusted(ca: str | None = None) -> ssl.SSLContext:
    """Trust the certificates in the file `ca`, and those of the environment (`SSL_CERT_FILE`,
    `SSL_CERT_DIR`), else the usual ones.

    Raises:
        ConfigError: a file is missing, or holds no certificate.
    """
    import httpx  # here, since most deployment files name no server

    try:
        context = httpx.create_ssl_context(trust_env=True)
    except OSError as error:
        raise ConfigError(
            f"SSL_CERT_FILE or SSL_CERT_DIR: expected certificates (PEM), got {error}"
        ) from None
    try:
        if ca is not None:
            context.load_verify_locations(cafile=ca)
    except OSError as error:  # ssl.SSLError among them
        raise ConfigError(f"ca: expected a file of certificates (PEM), got {ca}: {error}") from None
    return context
