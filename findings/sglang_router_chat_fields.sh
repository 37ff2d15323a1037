#!/usr/bin/env bash
# sglang-router 0.3.2 before a server with OpenAI's API (SGLang, or vLLM beside it).
# Expected: a field that the router does not know reaches the server, or is refused.
# Seen: `/v1/completions` passes every field on; `/v1/chat/completions` drops those that it does not
# know, with status 200: vLLM's `structured_outputs` (so an answer is held to no schema),
# `cache_salt`, `allowed_token_ids`. It also drops `add_generation_prompt: false`, which a server
# may need beside `continue_final_message: true`. And a prompt of token ids, which is OpenAI's own
# form, is refused with 422.
set -euo pipefail
work=$(mktemp -d)
pids=()
trap '[ ${#pids[@]} = 0 ] || kill "${pids[@]}"; rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet sglang-router==0.3.2

cat > server.py <<'PYTHON'
"""A server that keeps the last request's body, and gives it back at /last."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

last = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def reply(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        listed = {"object": "list", "data": [{"id": "m", "object": "model"}]}
        self.reply(last if self.path == "/last" else listed if "models" in self.path else {})

    def do_POST(self):
        last.clear()
        last.update(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        choice = {"index": 0, "finish_reason": "stop", "text": "yes"}
        choice["message"] = {"role": "assistant", "content": "yes"}
        self.reply({"id": "1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
PYTHON

read -r port router metrics < <(python3 -c '
import socket
found = [socket.socket() for _ in range(3)]
[one.bind(("127.0.0.1", 0)) for one in found]
print(*(one.getsockname()[1] for one in found))')
python3 server.py "$port" & pids+=($!)
venv/bin/sglang-router launch --worker-urls "http://127.0.0.1:$port" --host 127.0.0.1 \
    --port "$router" --prometheus-host 127.0.0.1 --prometheus-port "$metrics" > log 2>&1 & pids+=($!)

cat > ask.py <<'PYTHON'
import json
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import version

server, router = (f"http://127.0.0.1:{port}" for port in sys.argv[1:])
FIELDS = {
    "model": "m", "max_tokens": 1, "temperature": 0, "seed": 1, "stop": ["x"],
    "structured_outputs": {"json": {"type": "object"}}, "cache_salt": "mine",
    "allowed_token_ids": [1, 2],
}
CHAT = {
    "messages": [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "It"}],
    "continue_final_message": True, "add_generation_prompt": False,
}


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def dropped(path, body):
    """Fields that did not reach the server, or the status of a refusal."""
    kind = {"content-type": "application/json"}
    try:
        urllib.request.urlopen(
            urllib.request.Request(router + path, json.dumps(body).encode(), kind), timeout=60
        ).close()
    except urllib.error.HTTPError as error:
        return error.code
    return sorted(body.keys() - json.loads(get(f"{server}/last")).keys())


for _ in range(120):  # until the router knows its server
    try:
        if dropped("/v1/completions", {"model": "m", "prompt": "1"}) == []:
            break
    except (urllib.error.URLError, ConnectionError):
        pass
    time.sleep(0.5)
text = dropped("/v1/completions", FIELDS | {"prompt": "Is it?"})
chat = dropped("/v1/chat/completions", FIELDS | CHAT)
ids = dropped("/v1/completions", FIELDS | {"prompt": [1, 2, 3]})
print("sglang-router", version("sglang-router"))
print("dropped in a completion:", text)
print("dropped in a chat:      ", chat)
print("a prompt of ids:        ", ids)
lost = {"structured_outputs", "cache_salt", "allowed_token_ids", "add_generation_prompt"}
sys.exit(0 if text == [] and lost <= set(chat) and ids == 422 else 1)
PYTHON
venv/bin/python ask.py "$port" "$router"
