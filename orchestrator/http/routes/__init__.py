"""The routes that make no text.

- `count_tokens`: the tokens of a prompt of `POST /v1/messages`.
- `traces`: the records of requests.
- `feedback`: rewards for answers.
- `policies`: published policies.
- `experiments`: A/B tests.
- `console`: the page for people, whose files are in `console/`.
- `openapi`: additions to FastAPI's `/openapi.json`.
"""
