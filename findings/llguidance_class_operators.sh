#!/bin/bash
# llguidance 1.7.6: "pattern" of a JSON Schema is read with Rust's operators of character classes.
#
# One would expect: "pattern" is a regular expression of ECMA-262 (JSON Schema 2020-12, core, 6.4), in
# which ^[a-z&&b]$ matches any letter from a to z, and &. The library jsonschema says so.
# What happens: && is an intersection in Rust's notation, so "b" alone can be written; no error and no
# warning says that the pattern means something else.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet llguidance==1.7.6 jsonschema==4.26.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import json
import sys
from importlib.metadata import version

from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

schema = {"type": "string", "pattern": "^[a-z&&b]$"}
grammar = "start: %json " + json.dumps(schema)
print("llguidance", version("llguidance"), "jsonschema", version("jsonschema"))
print("its grammar:", LLMatcher.validate_grammar(grammar) or "accepted")
tokenizer, found = LLTokenizer("byte"), []
for value in ("a", "b", "&"):
    matcher, tokens = LLMatcher(tokenizer, grammar), tokenizer.tokenize_str(json.dumps(value))
    written = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
    found.append((Draft202012Validator(schema).is_valid(value), written))
    print(f"{value!r}: valid {found[-1][0]}, can be written {found[-1][1]}")
sys.exit(0 if found == [(True, False), (True, True), (True, False)] else 1)
PYTHON
