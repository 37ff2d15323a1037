#!/usr/bin/env bash
# torch 2.13.0 (CPU) and the GNU OpenMP library that its wheel holds: GOMP_SPINCOUNT does not count in a process that
# computes in two threads.
# Expected: with OMP_WAIT_POLICY=PASSIVE and GOMP_SPINCOUNT=1000 the threads of torch wait some microseconds before
# they sleep, as the variable says, in whatever thread of the program an operation runs.
# Seen: each thread of a program that computes gets OpenMP threads of its own, which stay until it ends. As soon as a
# process has more of them than cores, PASSIVE makes all of them sleep at once. So a program that loads in its main
# thread and computes in another one takes 3 to 7 times as long for an addition of 143,000 numbers (two cores), though
# the main thread only waits. If the thread that loaded has ended, or the setting is left out, it takes the usual time.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 numpy

cat > threads.py <<'PYTHON'
import os
import subprocess
import sys
import threading
import time
from importlib.metadata import version

import torch

CORES = len(os.sched_getaffinity(0))
SPINS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}


def taken():
    """Microseconds of an addition that torch spreads over all cores: the least of five medians."""
    torch.set_num_threads(CORES)
    x, y = torch.randn(8, 17920), torch.ones(8, 17920)
    medians = []
    for _ in range(5):
        times = []
        for _ in range(400):
            began = time.perf_counter()
            x.add_(y)
            times.append(time.perf_counter() - began)
        medians.append(sorted(times)[200])
    return 1e6 * min(medians)


def in_thread(found):
    thread = threading.Thread(target=lambda: found.append(taken()))
    thread.start()
    thread.join()


if len(sys.argv) > 1:
    found = []
    if sys.argv[1] == "main":
        taken()
    elif sys.argv[1] == "ended":
        in_thread([])
    in_thread(found)
    print(found[0])
else:
    print("torch", version("torch"), "cores", CORES)
    seen = {}
    for first, extra in (("none", SPINS), ("ended", SPINS), ("main", SPINS), ("main", {})):
        given = {name: value for name, value in os.environ.items() if name not in SPINS} | extra
        run = subprocess.run(
            [sys.executable, __file__, first], env=given, capture_output=True, text=True, check=True
        )
        name = f"{first}{'' if extra else ', no setting'}"
        seen[name] = float(run.stdout)
        print(f"computed before: {name}; an addition takes {seen[name]:.1f} us")
    usual = seen["none"]
    slow = seen["main"] > 2 * usual
    sys.exit(0 if slow and all(seen[name] < 2 * usual for name in ("ended", "main, no setting")) else 1)
PYTHON
venv/bin/python threads.py
