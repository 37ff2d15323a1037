"""Models that an OpenAI-compatible server runs (vLLM, SGLang and the like), without torch.

- `backend`: calls as requests to a server.
- `dialects`: what servers are sent and how their answers are read, one file each.
- `probe`: finds what a server can do, by trying it.
- `capabilities`: what the probe found.
- `request_builder`: a transcript as a prompt: ids, text, or messages.
- `running`: a stream while it runs, for one call after the other.
- `response_parser`: a stream's chunks to tokens of a text.
- `agreement`: checks that a server's text is that of its ids.
- `protocol`: parts of answers that all dialects share.
- `server`: the connection: requests, streams, retries, errors.
- `body`: reads responses of bounded size.
- `errors`: a server's error responses as errors of `orchestrator.errors`.
- `listing`: a server's models, and where their tokenizers lie.
- `address`: the address of a server, checked.
"""
