"""llama.cpp's server: `python -m deploy.lab.peers.llama_server MODEL PORT SLOTS THREADS`.

MODEL is a folder with a checkpoint, or a GGUF file.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from deploy.lab.peers.llama_cpp import serving_gguf, write_gguf


def main() -> None:
    model, port, slots, threads = Path(sys.argv[1]), *map(int, sys.argv[2:])
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(model, Path(folder) / "model.gguf") if model.is_dir() else model
        with serving_gguf(path, context=1024, slots=slots, port=port, threads=threads):
            signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
