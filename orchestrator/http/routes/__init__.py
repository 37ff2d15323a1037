"""The routes beside those for a text.

- `traces`: what is on record about requests.
- `feedback`: rewards for answers.
- `policies`: published policies.
- `experiments`: A/B tests.
- `console`: the page for people, whose files are in `console/`.
- `openapi`: what `/openapi.json` has beyond FastAPI's own description.
"""
