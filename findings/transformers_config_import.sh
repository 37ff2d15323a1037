#!/usr/bin/env bash
# Reading a checkpoint's config with transformers: `AutoConfig.from_pretrained` of a folder that has a config.json and
# nothing else. A config is data: numbers and names.
#
# Expected: beside torch itself little is imported.
# What happens (transformers 5.23.0, torch 2.13.0): the first config of a Llama imports some 1,500 modules, among them
# torch._dynamo, torch.distributed.tensor, torch.distributed.fsdp, sympy and transformers' own continuous batching. It
# takes longer than `import torch`. The way leads over a validator of field types, which imports activations, which
# import kernels from the hub, which import attention, which imports generation.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6
cd "$work"
mkdir model
cat > model/config.json <<'JSON'
{"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1,
 "intermediate_size": 64, "vocab_size": 100}
JSON
cat > look.py <<'PY'
import sys
from time import process_time

started = process_time()
import torch

print(f"import torch: {process_time() - started:.1f} CPU s, {len(sys.modules)} modules")
started, before = process_time(), len(sys.modules)
import transformers

config = transformers.AutoConfig.from_pretrained("model")
added = len(sys.modules) - before
print(f"transformers {transformers.__version__}: {config.hidden_size} wide; {process_time() - started:.1f} CPU s")
heavy = (
    "torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp", "sympy",
    "transformers.generation.continuous_batching",
)  # fmt: skip
print(f"{added} modules imported for it, among them:", *(name for name in heavy if name in sys.modules))
assert all(name in sys.modules for name in heavy) and added > 800, "a config imports less now"
PY
"$work/venv/bin/python" look.py
echo "as described"
