#!/usr/bin/env bash
# pydantic-core 2.50.4, `from_json(..., allow_inf_nan=False)`.
# Expected: with that flag no value that is infinite is returned, however it is written, as a field
# of a model with `allow_inf_nan=False` refuses them all.
# Seen: the words NaN, Infinity and -Infinity are refused (as invalid JSON); the number 1e999 is read as
# infinity. A model with the same setting (pydantic 2.14.3) refuses the number as well.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet pydantic==2.14.3 pydantic-core==2.50.4

venv/bin/python - <<'PYTHON'
from importlib.metadata import version

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json


class Number(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)
    n: float


def read(text):
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return "refused"


def validated(text):
    try:
        return Number.model_validate_json('{"n": %s}' % text).n
    except ValidationError:
        return "refused"


for name in ("pydantic", "pydantic-core"):
    print(name, version(name))
texts = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999")
seen = {text: (read(text), validated(text)) for text in texts}
for text, (loose, strict) in seen.items():
    print(f"{text}: from_json {loose}, model {strict}")
wrong = {text: both[0] for text, both in seen.items() if both[0] != "refused"}
as_stated = wrong == {"1e999": float("inf"), "-1e999": float("-inf")}
as_stated &= all(both[1] == "refused" for both in seen.values())
raise SystemExit(0 if as_stated else 1)
PYTHON
