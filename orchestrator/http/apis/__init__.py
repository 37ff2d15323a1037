"""The APIs that make texts, one file each: the request, its parsing into an `Ask`, its answer.

- `chat`: `POST /v1/chat/completions`.
- `completions`: `POST /v1/completions`.
- `responses`: `POST /v1/responses`.
- `messages`: `POST /v1/messages`.
- `conversation`: the turns of `POST /v1/messages`.
- `chunks`: the answers of chat and text completions.
- `blocks`: the answers of responses and messages.
- `parameters`: the parameters that requests share.
- `answer_form`: the parameters for what an answer must match.
- `scores`: log-probabilities of an answer's tokens.
"""
