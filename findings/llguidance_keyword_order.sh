#!/bin/bash
# llguidance 1.7.6: the order of keywords changes what a JSON Schema means.
#
# One would expect: the members of a JSON object have no order, so a schema means the same in any.
# What happens: with "anyOf" between "patternProperties" and "additionalProperties": false, the latter
# no longer sees the patterns. The schema is refused as unsatisfiable. With "anyOf" at the end the
# same schema is accepted, and so is {"xa": 1}.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet llguidance==1.7.6
"$folder/venv/bin/python" - <<'PYTHON'
import json
import sys
from importlib.metadata import version

from llguidance import LLMatcher, LLTokenizer

named = {"patternProperties": {"^x": {"type": "integer"}}}
choice = {"anyOf": [{"required": ["xa"]}]}
closed = {"additionalProperties": False}
print("llguidance", version("llguidance"))
found = []
for schema in (named | choice | closed, named | closed | choice):
    grammar = "start: %json " + json.dumps({"type": "object", **schema})
    fault = LLMatcher.validate_grammar(grammar)
    print(list(schema), "->", fault.split("\n")[0] or "accepted")
    found.append(fault)
tokenizer = LLTokenizer("byte")
matcher = LLMatcher(tokenizer, grammar)
tokens = tokenizer.tokenize_str('{"xa":1}')
written = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
print('{"xa":1} in the second:', written)
sys.exit(0 if "Unsatisfiable" in found[0] and found[1] == "" and written else 1)
PYTHON
