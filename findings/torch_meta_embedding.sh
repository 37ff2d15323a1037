#!/usr/bin/env bash
# An `nn.Embedding` that is made on the device `meta`, as one does to learn a model's shapes without its memory.
#
# Expected: nothing is computed there, so nothing is imported; `nn.Linear` on the same device imports nothing.
# What happens (torch 2.13.0): the first one imports torch's compiler, some 800 modules with sympy, torch._inductor and
# torch.distributed.fsdp among them. It takes longer than `import torch` did, and over 50 MB. The weights' initial
# values are drawn by `normal_`, which for this device is written in Python, behind a wrapper that imports the compiler.
# A subclass with an empty `reset_parameters` imports nothing.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$work"
cat > look.py <<'PY'
import sys
from time import process_time

started = process_time()
import torch
from torch import nn

importing = process_time() - started


class Plain(nn.Embedding):
    def reset_parameters(self) -> None: ...


def made(kind: type[nn.Module]) -> tuple[int, float]:
    """Modules that making one imports, and CPU seconds."""
    before, started = len(sys.modules), process_time()
    with torch.device("meta"):
        kind(10, 4)
    return len(sys.modules) - before, process_time() - started


print(f"torch {torch.__version__}: import torch {importing:.1f} CPU s")
found = {}
for kind in (nn.Linear, Plain, nn.Embedding):
    found[kind], seconds = made(kind)
    print(f"{kind.__name__} on meta: {found[kind]} modules imported, {seconds:.1f} CPU s")
print("torch._dynamo imported:", "torch._dynamo" in sys.modules)
assert found[nn.Linear] < 20 and found[Plain] < 20, "other kinds import too"
assert found[nn.Embedding] > 300 and "torch._dynamo" in sys.modules, "an embedding imports little now"
PY
"$work/venv/bin/python" look.py
echo "as described"
