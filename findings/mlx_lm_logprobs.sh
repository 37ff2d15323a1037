#!/usr/bin/env bash
# mlx-lm 0.32.2, its HTTP server, `"logprobs": true, "top_logprobs": 5`.
# Expected: each entry of `logprobs.content` is the token that was generated, as OpenAI's API says.
# Seen: the entry is some token out of the five likeliest (they come unsorted, and the first is
# taken); without `top_logprobs` the same request names the generated tokens. So log-probabilities
# are told of tokens that are not in the text. Streams hold no log-probabilities at all.
set -euo pipefail
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet "mlx[cpu]==0.32.4" mlx-lm==0.32.2 transformers==5.24.0

cat > make_model.py <<'PYTHON'
import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SIZE = 512
folder = Path("model")
folder.mkdir()
config = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "rms_norm_eps": 1e-6,
    "vocab_size": SIZE, "max_position_embeddings": 512, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "eos_token_id": 1,
}
(folder / "config.json").write_text(json.dumps(config))
mx.random.seed(1)
model = llama.Model(llama.ModelArgs.from_dict(config))
mx.save_safetensors(
    str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"}
)
words = {"<unk>": 0, "<end>": 1} | {f"w{i}": i for i in range(2, SIZE)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>"
).save_pretrained(folder)
PYTHON
venv/bin/python make_model.py

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
HF_HUB_OFFLINE=1 venv/bin/mlx_lm.server --model model --host 127.0.0.1 --port "$port" > log 2>&1 &
server=$!

cat > ask.py <<'PYTHON'
import json
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import version

url = f"http://127.0.0.1:{sys.argv[1]}"
body = {"prompt": "w2 w3 w5 w7", "max_tokens": 30, "temperature": 0, "logprobs": True}


def ask(**fields):
    data = json.dumps(body | fields).encode()
    kind = {"content-type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/completions", data, kind), timeout=60
    ) as answer:
        return answer.read().decode()


for _ in range(120):
    try:
        urllib.request.urlopen(f"{url}/health", timeout=5)
        break
    except (urllib.error.URLError, ConnectionError):
        time.sleep(0.5)
plain = json.loads(ask())["choices"][0]
shown = json.loads(ask(top_logprobs=5))["choices"][0]
stream = ask(top_logprobs=5, stream=True)
made = [item["id"] for item in plain["logprobs"]["content"]]
told = [item["id"] for item in shown["logprobs"]["content"]]
tops = [[top["logprob"] for top in item["top_logprobs"]] for item in shown["logprobs"]["content"]]
wrong = sum(one != other for one, other in zip(made, told, strict=True))
print("mlx", version("mlx"), "mlx-lm", version("mlx-lm"))
print("the same text:", plain["text"] == shown["text"])
print("generated, by logprobs alone:  ", made)
print("generated, by top_logprobs too:", told)
print(f"{wrong} of {len(made)} tokens are others; a stream has logprobs: {'logprobs' in stream}")
print("sorted lists of the likeliest:", sum(top == sorted(top, reverse=True) for top in tops))
as_stated = plain["text"] == shown["text"] and wrong > 0 and "logprobs" not in stream
sys.exit(0 if as_stated else 1)
PYTHON
venv/bin/python ask.py "$port"
