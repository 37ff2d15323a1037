"""What vLLM's engine process writes if it does not start.

vLLM's error says only that the cause is above: in the output that both processes share, which
under Ray is a file of the replica's.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_STREAMS = (1, 2)
_ERROR = re.compile(r"(?:^|\s)([\w.]*(?:Error|Exception): \S.*)")
_HINT = "look at gpu, max_len and rows, which say how much memory it has and wants"


class EngineOutput:
    """The output of this process from now on, if it goes to files."""

    def __init__(self) -> None:
        self._files = {path: path.stat().st_size for path in map(_file, _STREAMS) if path}

    def explain(self) -> str:
        """Return the engine's last error, or where to read of it, and what to do."""
        for path, before in self._files.items():
            with suppress(OSError), path.open("rb") as file:
                file.seek(before)
                lines = file.read().decode(errors="replace").splitlines()
                errors = [found[1].strip() for line in lines if (found := _ERROR.search(line))]
                if causes := [error for error in errors if " above" not in error]:
                    return f"{causes[-1]} (more in {path}); {_HINT}"
        where = ", ".join(map(str, self._files)) or "the output above"
        return f"its engine did not start, and says why in {where}; {_HINT}"


def _file(stream: int) -> Path | None:
    """Return the file that a stream of this process goes to, if it is one."""
    with suppress(OSError):
        path = Path(f"/proc/self/fd/{stream}").resolve()
        return path if path.is_file() else None
    return None
