"""Where a server is, and who may vouch for it.

Apart from the rest, so that a deployment file is checked without torch.
"""

from __future__ import annotations

import ssl
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


def trusted(ca: str | None = None) -> ssl.SSLContext:
    """What connections to servers by https trust: `ca`, a file of certificates, beside the usual
    ones, which are those of the environment (`SSL_CERT_FILE`, `SSL_CERT_DIR`) if it names some.

    Raises:
        ConfigError: a file is missing, or holds no certificate.
    """
    import httpx  # not above: most deployment files name no server

    try:
        context = httpx.create_ssl_context(trust_env=True)
    except OSError as error:
        raise ConfigError(
            f"SSL_CERT_FILE or SSL_CERT_DIR: expected certificates (PEM), got {error}"
        ) from None
    if ca is not None:
        try:
            context.load_verify_locations(cafile=ca)
        except OSError as error:  # ssl.SSLError among them
            raise ConfigError(
                f"ca: expected a file of certificates (PEM), got {ca}: {error}"
            ) from None
    return context
