#!/usr/bin/env bash
# joblib 1.6.0 (its loky backend) and CPython's multiprocessing: a caller's blocked signals are unblocked.
# Expected: a program that blocks SIGTERM, so that a supervisor's signal does not cut its work, finds it still
# blocked after it has started workers, and so do the workers, which inherit the mask.
# Seen: the first `Parallel` call unblocks SIGTERM and SIGINT in the calling thread, because the start of its
# resource tracker ends by unblocking both, whatever the mask was before. SIGUSR1, blocked with them, stays
# blocked. `multiprocessing.shared_memory` does the same by the standard library's tracker. Without either
# the mask stays.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet joblib==1.6.0

cat > mask.py <<'PYTHON'
import platform
import signal
import subprocess
import sys
from importlib.metadata import version
from multiprocessing.shared_memory import SharedMemory

from joblib import Parallel, delayed

BLOCKED = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}


def left():
    return sorted(one.name for one in signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def parallel():
    Parallel(n_jobs=2)(delayed(abs)(number) for number in range(4))


def shared():
    memory = SharedMemory(create=True, size=16)
    memory.close()
    memory.unlink()


WAYS = {"joblib": parallel, "shared_memory": shared, "subprocess": lambda: subprocess.run(["true"])}

if __name__ == "__main__" and len(sys.argv) > 1:
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    WAYS[sys.argv[1]]()
    print(*left())
elif __name__ == "__main__":
    print("Python", platform.python_version(), "joblib", version("joblib"))
    seen = {}
    for way in WAYS:
        run = subprocess.run([sys.executable, __file__, way], capture_output=True, text=True, check=True)
        seen[way] = run.stdout.split()
        print("blocked after", way + ":", *seen[way])
    whole = ["SIGINT", "SIGTERM", "SIGUSR1"]
    stated = {"joblib": ["SIGUSR1"], "shared_memory": ["SIGUSR1"], "subprocess": whole}
    sys.exit(0 if seen == stated else 1)
PYTHON
venv/bin/python mask.py
