"""Models that an OpenAI-compatible server runs (vLLM, SGLang and the like), without torch.

- `backend`: calls as requests to a server.
- `server`: the connection: requests, streams, retries, errors.
- `address`: the address of a server, checked.
- `body`: what a server sends, of bounded size.
- `probe`: what a server can do, by trying it.
- `request_builder`: a transcript as a prompt: ids, text, or messages.
- `protocol`: fields of requests and answers.
- `sglang`: SGLang's own path, for log-probabilities of a step.
- `stops`: the fields by which a server stops where a text ends.
- `response_parser`: a stream's chunks as tokens of a text.
- `agreement`: whether a server's text is that of its ids.
- `gaps`: what its streams lack of what the probe saw.
- `errors`: a server's error responses as errors of `orchestrator.errors`.
"""
