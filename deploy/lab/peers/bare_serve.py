"""A bare Ray Serve application, as `serve run` starts one: `python -m ... PORT`."""

from __future__ import annotations

import sys
from typing import Any


def main(port: int) -> None:
    """Serve until a signal comes."""
    from ray import serve

    class Bare:
        async def __call__(self, request: Any) -> str:
            return "ready"

    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(serve.deployment(Bare).bind(), route_prefix="/ready", blocking=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
