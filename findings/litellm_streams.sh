#!/usr/bin/env bash
# LiteLLM 1.108.7, its proxy before a server with OpenAI's API, `/v1/completions`.
# Expected: a streamed answer holds what the same answer holds whole.
# Seen: whole answers pass with `logprobs`, and with a field that OpenAI does not have (vLLM's
# `token_ids`); of a streamed answer's choices only text, index and finish_reason
# are left, so log-probabilities vanish without a word. In streamed chats all of them pass.
set -euo pipefail
work=$(mktemp -d)
pids=()
trap '[ ${#pids[@]} = 0 ] || kill "${pids[@]}"; rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet "litellm[proxy]==1.108.7"

cat > server.py <<'PYTHON'
"""A server that always gives one answer of one token, with log-probabilities."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OWN = {"token_ids": [7]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        choice = {"index": 0, "finish_reason": "length", **OWN}
        if "chat" in self.path:
            choice["delta" if asked.get("stream") else "message"] = {"role": "assistant", "content": "yes"}
            shown = {"token": "yes", "logprob": -0.25, "bytes": None}
            choice["logprobs"] = {"content": [{**shown, "top_logprobs": [shown]}]}
        else:
            choice["text"] = "yes"
            choice["logprobs"] = {
                "tokens": ["yes"], "token_logprobs": [-0.25], "top_logprobs": [{"yes": -0.25}],
                "text_offset": [0],
            }
        kind = "chat.completion" if "chat" in self.path else "text_completion"
        if asked.get("stream") and "chat" in self.path:
            kind += ".chunk"
        answer = {"id": "1", "object": kind, "created": 1, "model": "m", "choices": [choice]}
        if asked.get("stream"):
            data, content = f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n", "text/event-stream"
        else:
            answer["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            data, content = json.dumps(answer), "application/json"
        self.send_response(200)
        self.send_header("content-type", content)
        self.send_header("content-length", str(len(data.encode())))
        self.end_headers()
        self.wfile.write(data.encode())


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
PYTHON

read -r port proxy < <(python3 -c '
import socket
found = [socket.socket() for _ in range(2)]
[one.bind(("127.0.0.1", 0)) for one in found]
print(*(one.getsockname()[1] for one in found))')
cat > config.yaml <<YAML
model_list:
  - model_name: text
    litellm_params: {model: text-completion-openai/m, api_base: "http://127.0.0.1:$port/v1", api_key: none}
  - model_name: chat
    litellm_params: {model: openai/m, api_base: "http://127.0.0.1:$port/v1", api_key: none}
YAML
python3 server.py "$port" & pids+=($!)
export LITELLM_MASTER_KEY=sk-only-for-this-script LITELLM_LOCAL_MODEL_COST_MAP=True
venv/bin/litellm --config config.yaml --host 127.0.0.1 --port "$proxy" > log 2>&1 & pids+=($!)

cat > ask.py <<'PYTHON'
import json
import os
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import version

url = f"http://127.0.0.1:{sys.argv[1]}"
head = {"content-type": "application/json", "authorization": f"Bearer {os.environ['LITELLM_MASTER_KEY']}"}


def choices(path, **body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    if not body.get("stream"):
        return json.loads(text)["choices"]
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    return [choice for line in lines for choice in json.loads(line)["choices"]]


for _ in range(240):
    try:
        urllib.request.urlopen(f"{url}/health/liveliness", timeout=5)
        break
    except (urllib.error.URLError, ConnectionError):
        time.sleep(0.5)
text = {"model": "text", "prompt": "Is it?", "max_tokens": 1, "logprobs": 1}
chat = {"model": "chat", "messages": [{"role": "user", "content": "Is it?"}], "max_tokens": 1}
chat |= {"logprobs": True, "top_logprobs": 1}
print("litellm", version("litellm"))
found = {}
for name, path, body in (("completions", "/v1/completions", text), ("chat", "/v1/chat/completions", chat)):
    for stream in (False, True):
        fields = {k for choice in choices(path, **body, stream=stream) for k, v in choice.items() if v}
        fields |= {"token_ids"} if "token_ids" in str(choices(path, **body, stream=stream)) else set()
        found[name, stream] = fields
        print(f"{name}, {'streamed' if stream else 'whole'}:", *sorted(fields))
lost = {"logprobs", "token_ids"}
kept = all(lost <= found[key] for key in found if key != ("completions", True))
sys.exit(0 if kept and not lost & found["completions", True] else 1)
PYTHON
venv/bin/python ask.py "$proxy"
