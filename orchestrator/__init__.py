"""The core: the ports, the step loop, and the service around it; knows no model and no policy.

Modules and packages in reading order:

- `persistent`: an immutable sequence whose longer versions share the shorter ones.
- `types`: the types that the whole system shares: messages, segments, transcripts.
- `efforts`: how hard a model is to think: the levels of a template, or a cap.
- `json_schema`: translates a JSON Schema of any draft into one dialect.
- `rust_patterns`: translates a JSON Schema's regular expressions for the grammars' library.
- `json_rule`: JSON Schemas as rules of the grammars' library.
- `held_schema`: the part of a schema that a grammar can enforce, and the faults of the rest.
- `call_markup`: the markup around calls of tools as patterns.
- `grammar`: an answer's constraint as a grammar.
- `worker`: the port of all models: generate, classify, verify.
- `errors`: everything Baton raises on purpose.
- `background`: stops a task that runs beside a request.
- `validation`: pydantic's errors as Baton's, which name the place.
- `loop`: the step loop: a policy yields actions, workers carry them out.
- `http`: the OpenAI-compatible service.
- `state`: the state that replicas share: the store, published policies, the configuration.
- `answers`: whether two answers are equal.
- `experiments`: comparing policies on live requests.
- `telemetry`: metrics, spans and log fields of requests.
"""
