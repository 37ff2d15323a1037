"""The core: the ports, the step loop, and the service around it; knows no model and no policy.

Rooms and modules in reading order:

- `persistent`: a sequence that grows by sharing, for what a request accumulates.
- `types`: the types the whole system shares: messages, segments, transcripts.
- `json_schema`: what a JSON Schema says, in one dialect.
- `rust_patterns`: regular expressions of JSON Schema in the notation of the grammars' library.
- `schema_overlap`: whether two branches of a schema exclude each other.
- `mended_schema`: a schema without what the grammars' library refuses.
- `held_schema`: the part of a schema that a grammar can hold an answer to, and what it cannot.
- `call_markup`: the markup around calls of tools as patterns.
- `grammar`: what an answer must match, as a grammar.
- `worker`: the port of all models: generate, classify, verify.
- `errors`: everything Baton raises on purpose.
- `background`: how a task beside a request is stopped.
- `validation`: what pydantic finds wrong, as errors of ours that name the place.
- `loop`: the step loop: a policy yields actions, workers carry them out.
- `http`: the OpenAI-compatible service.
- `state`: what replicas share: the store, published policies, the configuration.
- `experiments`: comparing policies on live requests.
- `telemetry`: metrics, spans and log fields of requests.
"""
