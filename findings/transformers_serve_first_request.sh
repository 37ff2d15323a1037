#!/usr/bin/env bash
# transformers 5.23.0, `transformers serve --continuous-batching`, torch 2.13.0 on a CPU.
# Expected: `temperature` and `stop` of each request count for that request.
# Seen: the process samples as its first request asked, for good. After a greedy first request all
# seeds give the greedy text; after a sampled one even `temperature: 0` gives texts that differ from
# call to call. And `stop` is ignored: the text goes on beyond it (without --continuous-batching
# it ends there). All of it with status 200.
set -euo pipefail
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 "transformers[serving]==5.23.0" accelerate

cat > make_model.py <<'PYTHON'
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
torch.manual_seed(1)
config = LlamaConfig(
    vocab_size=len(LETTERS) + 1, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512,
    eos_token_id=len(LETTERS), bos_token_id=None, initializer_range=0.3,
)
model = LlamaForCausalLM(config)
readable = [i for i, letter in enumerate(LETTERS) if letter.isascii() and letter.isalpha()]
with torch.no_grad():  # it writes letters alone
    model.lm_head.weight[[i for i in range(config.vocab_size) if i not in readable]] = 0
    model.lm_head.weight *= 20
model.save_pretrained("model")
tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(LETTERS)}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
tokenizer.decoder = decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained("model")
PYTHON
venv/bin/python make_model.py

cat > ask.py <<'PYTHON'
import json
import sys
import time
import urllib.error
import urllib.request

port, first, *options = sys.argv[1:]
url = f"http://127.0.0.1:{port}"
SAMPLED = json.dumps({"do_sample": True, "temperature": 50.0, "max_new_tokens": 12})
ASKS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 50.0, "generation_config": SAMPLED},
}


def text(**fields):
    body = {"model": sys.argv[3], "prompt": "two three", "max_tokens": 12, **fields}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())["choices"][0]["text"]


for _ in range(240):
    try:
        urllib.request.urlopen(f"{url}/health", timeout=5)
        break
    except (urllib.error.URLError, ConnectionError):
        time.sleep(0.5)
once = text(**ASKS[first], seed=1)
greedy = [text(**ASKS["greedy"]) for _ in range(3)]
sampled = [text(**ASKS["sampled"], seed=seed) for seed in range(3)]
word = greedy[0][2:4]
stopped = text(**ASKS["greedy"], stop=[word])
print(json.dumps({
    "greedy": len(set(greedy)), "sampled": len({*sampled, greedy[0]}), "stopped": len(stopped) < len(greedy[0])
}))
PYTHON

asked() {  # asked FIRST OPTIONS...: what a fresh server gives, whose first request is greedy or sampled
    local port first=$1
    shift
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    HF_HUB_OFFLINE=1 venv/bin/transformers serve "$work/model" --host 127.0.0.1 --port "$port" \
        --device cpu --dtype float32 "$@" > log 2>&1 &
    server=$!
    venv/bin/python ask.py "$port" "$first" "$work/model"
    kill "$server"
    wait "$server" || true
    server=
}

plain=$(asked sampled)
# Blocks and tokens are named since the cache would take most of this machine's memory.
batching=(--continuous-batching --cb-block-size 32 --cb-num-blocks 64 --cb-max-batch-tokens 256)
greedy=$(asked greedy "${batching[@]}")
sampled=$(asked sampled "${batching[@]}")
venv/bin/pip list 2>/dev/null | grep -E '^(torch|transformers) '
echo "texts of 3 greedy requests; of 3 seeds and a greedy one; whether \`stop\` counts"
echo "plain, first request sampled:               $plain"
echo "continuous batching, first request greedy:  $greedy"
echo "continuous batching, first request sampled: $sampled"
[ "$plain" = '{"greedy": 1, "sampled": 4, "stopped": true}' ]
[ "$greedy" = '{"greedy": 1, "sampled": 1, "stopped": false}' ]
[[ "$sampled" == '{"greedy": 3, "sampled": 4, '* ]]
