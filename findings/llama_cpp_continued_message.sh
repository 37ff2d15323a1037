#!/usr/bin/env bash
# llama.cpp's server (xllamacpp 2026.10.11549), `/v1/chat/completions` whose last message is the
# assistant's, to be continued (`continue_final_message`).
# Expected: a whole answer and a stream of one request hold the same content.
# Seen: the whole answer's content is the message that was sent and what was made after it; the
# stream's is what was made alone. `usage` counts the made tokens alone in both.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet xllamacpp==2026.10.11549 gguf==0.19.0 numpy

cat > ask.py <<'PYTHON'
import json
import sys
import urllib.request
from importlib.metadata import version

import gguf
import numpy as np
import xllamacpp

SIZE, WIDTH, LAYERS, INNER, HEADS = 258, 64, 2, 128, 4
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] }}"
    "{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\nassistant: ' }}{% endif %}"
)
shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
letters = {byte: chr(byte) for byte in shown}
letters |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in shown)}
tokens = [letters[byte] for byte in range(256)] + ["<end>", "<pad>"]
kinds = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * 2

noise = np.random.default_rng(1)
writer = gguf.GGUFWriter("tiny.gguf", "llama")
writer.add_context_length(512)
writer.add_embedding_length(WIDTH)
writer.add_block_count(LAYERS)
writer.add_feed_forward_length(INNER)
writer.add_head_count(HEADS)
writer.add_head_count_kv(HEADS)
writer.add_rope_dimension_count(WIDTH // HEADS)
writer.add_layer_norm_rms_eps(1e-6)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("gpt-2")
writer.add_token_list(tokens)
writer.add_token_types(kinds)
writer.add_token_merges(["a b"])
writer.add_eos_token_id(256)
writer.add_add_bos_token(False)
writer.add_chat_template(TEMPLATE)


def add(name, *shape):
    plain = np.ones(shape) if len(shape) == 1 else noise.normal(0, 0.3, shape)
    if name == "output.weight":  # it writes letters alone
        plain[[i for i in range(SIZE) if not (97 <= i < 123)]] = 0
        plain *= 20
    writer.add_tensor(name, plain.astype(np.float32))


add("token_embd.weight", SIZE, WIDTH)
for layer in range(LAYERS):
    add(f"blk.{layer}.attn_norm.weight", WIDTH)
    add(f"blk.{layer}.ffn_norm.weight", WIDTH)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        add(f"blk.{layer}.{name}.weight", WIDTH, WIDTH)
    add(f"blk.{layer}.ffn_gate.weight", INNER, WIDTH)
    add(f"blk.{layer}.ffn_up.weight", INNER, WIDTH)
    add(f"blk.{layer}.ffn_down.weight", WIDTH, INNER)
add("output_norm.weight", WIDTH)
add("output.weight", SIZE, WIDTH)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_ctx, params.n_parallel = "tiny.gguf", 0, 512, 1
params.n_gpu_layers, params.verbosity = 0, 0
server = xllamacpp.Server(params)
SENT = "It has"
body = {
    "messages": [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": SENT}],
    "continue_final_message": True, "add_generation_prompt": False,
    "max_tokens": 5, "temperature": 0,
}


def ask(**fields):
    request = urllib.request.Request(
        f"{server.listening_address}/v1/chat/completions", json.dumps(body | fields).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


whole = json.loads(ask())
lines = [line[6:] for line in ask(stream=True).splitlines() if line.startswith("data: {")]
parts = [choice["delta"].get("content") or "" for line in lines for choice in json.loads(line)["choices"]]
content, streamed = whole["choices"][0]["message"]["content"], "".join(parts)
print("xllamacpp", version("xllamacpp"))
print("sent:    ", repr(SENT))
print("whole:   ", repr(content), whole["usage"]["completion_tokens"], "tokens made")
print("streamed:", repr(streamed))
sys.stdout.flush()
repeats = content == SENT + streamed and not streamed.startswith(SENT)
del server
sys.exit(0 if repeats and whole["usage"]["completion_tokens"] == 5 else 1)
PYTHON
venv/bin/python ask.py 2> log || { tail -5 log; exit 1; }
