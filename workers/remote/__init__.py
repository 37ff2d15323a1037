"""Models that an OpenAI-compatible server runs (vLLM, SGLang and the like), without torch.

- `backend`: calls as requests to a server.
- `dialects`: what servers are sent and how their answers are read, one file each.
- `probe`: what a server can do, by trying it.
- `capabilities`: what the probe found, and what streams lack of it.
- `request_builder`: a transcript as a prompt: ids, text, or messages.
- `forms`: answers that a server holds to a form.
- `stops`: the fields by which a server stops where a text ends.
- `protocol`: answers as every dialect has them.
- `response_parser`: a stream's chunks as tokens of a text.
- `agreement`: whether a server's text is that of its ids.
- `server`: the connection: requests, streams, retries, errors.
- `body`: what a server sends, of bounded size.
- `errors`: a server's error responses as errors of `orchestrator.errors`.
- `address`: the address of a server, checked.
"""
