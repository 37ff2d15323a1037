"""Workers whose model an OpenAI-compatible server runs (vLLM, SGLang and the like), without torch.

- `worker`: the `Worker` port over a server.
- `server`: the connection: requests, streams, retries, errors.
- `address`: the address of a server, checked.
- `body`: what a server sends, of bounded size.
- `probe`: what a server can do, by trying it.
- `request_builder`: a transcript as a prompt: ids, text, or messages.
- `protocol`: fields of requests and answers.
- `sglang`: SGLang's own path, for log-probabilities of a step.
- `response_parser`: a stream's chunks as text, tokens, and why they end.
- `agreement`: whether a server's text is that of its ids.
- `gaps`: what its streams lack of what the probe saw.
- `errors`: a server's error responses as errors of `orchestrator.errors`.
"""
