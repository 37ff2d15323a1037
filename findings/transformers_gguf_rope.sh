#!/usr/bin/env bash
# A Llama in llama.cpp's format (GGUF) whose file says that positions are scaled, opened by transformers with
# `gguf_file=`.
#
# Expected: positions are scaled as the file says, or the file is refused.
# What happens (transformers 5.23.0, gguf 0.19.0, torch 2.13.0): neither of the format's two ways is read.
# - `llama.rope.scaling.type: linear` with a factor of 4: the config says `rope_type: default`.
# - the tensor `rope_freqs.weight`, in which Llama 3.1's scaling is stored: it is left out.
# Both files give the same logits as one without scaling, with no warning and no error. (llama.cpp reads both.)
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet transformers==5.23.0 gguf==0.19.0 torch==2.13.0 numpy==2.4.6 accelerate==1.15.0
cd "$work"
cat > look.py <<'PY'
import sys

import gguf
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

transformers.utils.logging.disable_progress_bar()


def write(kind: str) -> None:
    file = gguf.GGUFWriter(f"{kind}.gguf", "llama")
    file.add_context_length(256)
    file.add_embedding_length(32)
    file.add_block_count(1)
    file.add_feed_forward_length(64)
    file.add_head_count(4)
    file.add_head_count_kv(4)
    file.add_rope_dimension_count(8)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_freq_base(10000.0)
    if kind == "linear":
        file.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        file.add_rope_scaling_factor(4.0)
    if kind == "factors":
        file.add_tensor("rope_freqs.weight", np.array([1, 2, 4, 8], np.float32))
    file.add_tokenizer_model("llama")
    file.add_token_list(["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(29))])
    file.add_token_scores([0.0] * 32)
    file.add_token_types([2, 3, 3] + [1] * 29)
    file.add_vocab_size(32)
    numbers = np.random.default_rng(0)
    shapes = {"token_embd": (32, 32), "output_norm": (32,), "output": (32, 32)}
    shapes |= {f"blk.0.{name}": (32, 32) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    shapes |= {f"blk.0.{name}": (32,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {"blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64)}
    for name, shape in shapes.items():
        file.add_tensor(f"{name}.weight", numbers.normal(size=shape).astype(np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


print(f"{transformers.__version__=} {torch.__version__=}")
logits, ids = {}, torch.arange(3, 32)[None]
for kind in ("plain", "linear", "factors"):
    write(kind)
    model = AutoModelForCausalLM.from_pretrained(".", gguf_file=f"{kind}.gguf", dtype=torch.float32)
    logits[kind] = model(ids).logits
    print(kind, model.config.rope_parameters, "as plain:", torch.equal(logits[kind], logits["plain"]))
sys.exit(not all(torch.equal(one, logits["plain"]) for one in logits.values()))
PY
"$work/venv/bin/python" look.py
