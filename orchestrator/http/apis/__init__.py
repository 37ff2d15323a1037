"""The APIs for a text, one file each: the request, its parsing into an `Ask`, its answer.

- `chat`: `POST /v1/chat/completions`.
- `completions`: `POST /v1/completions`.
- `responses`: `POST /v1/responses`.
- `chunks`: what chat and text completions share.
- `parameters`: what their requests share.
- `scores`: log-probabilities of an answer's tokens.
"""
