"""Answers held to a JSON schema, over every policy and token-level method: how many are valid.

`python -m tests.lab.constrained --pair embedded --answers 1000` asks a service of its own by the
official client, greedy and at temperature 1 in turns, and prints a table: valid answers of those
asked, by method and policy. An answer is valid where it ended by itself and `jsonschema` finds
nothing wrong with it. `--out FILE` writes the table too; each answer that is not valid is printed.
The exit status is 1 where there is one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from openai import OpenAI, OpenAIError

from deploy.lab.fetch import LINKS
from deploy.launch.deployment_file import DEFAULT_FILE
from deploy.launch.deployment_file import load as load_file
from orchestrator.http.settings import ServiceLimits
from policies import POLICIES
from tests.orchestrator.serving import client, service, serving
from workers.engine.loading import load

QUESTIONS = (
    "What is {a}*{b}+{c}?",
    "Tom has {a} pens and buys {b} packs of {c} pens. How many pens does he have?",
    "What is {a}-{b}+{c}?",
)


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: tuple[dict[str, Any], ...] = (
    _object(answer={"type": "integer"}),
    _object(answer={"type": "integer", "minimum": 10, "maximum": 99}, sure={"type": "boolean"}),
    _object(parity={"enum": ["even", "odd"]}, answer={"type": ["integer", "null"]}),
    _object(digits={"type": "array", "items": {"enum": list(range(10))}, "maxItems": 5}),
    _object(answer={"type": "string", "pattern": "^[0-9]{1,6}$"}),
    _object(unit={"const": "pens"}, value=_object(number={"type": "integer"})),
    {"anyOf": [_object(answer={"type": "integer"}), _object(error={"enum": ["none", "no idea"]})]},
    _object(text={"type": "string", "minLength": 1, "maxLength": 12}),
    {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1, "maxItems": 3}
    | {"$defs": {"n": {"type": "integer", "minimum": 0}}},
    {"enum": ["less than 100", "100 or more"]},
)
"""None of them asks for more than some fifty tokens."""

SMALL_DRAFTS: tuple[dict[str, Any], ...] = tuple(
    {"method": method, "draft": "SMALL"}
    for method in ("chain", "spectr", "recursive-c", "recursive-s", "auto")
)
METHODS: dict[str, tuple[dict[str, Any], ...]] = {
    "embedded": (
        {"method": "vanilla"},
        {"method": "lookup"},
        *SMALL_DRAFTS,
        {"method": "kangaroo"},
        {"method": "fspad"},
        {"method": "reflective", "draft": "SMALL"},
    ),
    "real": ({"method": "vanilla"}, {"method": "lookup"}, *SMALL_DRAFTS),
}


@contextmanager
def served(pair: str) -> Iterator[OpenAI]:
    """The official client on a service over a pair, whose large worker offers every method."""
    embedded = pair == "embedded"
    folders = {
        name: f"embedded:{name}" if embedded else str(LINKS / name) for name in ("small", "large")
    }
    methods = [
        {key: folders["small"] if value == "SMALL" else value for key, value in one.items()}
        for one in METHODS[pair]
    ]
    options: dict[str, Any] = (
        {"rows": 2} if embedded else {"rows": 2, "dtype": "int8", "max_len": 2048}
    )
    small = load(folders["small"], **options)
    large = load(folders["large"], speculation=methods[0], also=methods[1:], **options)
    params = load_file(DEFAULT_FILE).args.policy.params if embedded else {}
    names = {one["method"]: one["method"] for one in methods}
    try:
        made = service(
            small,
            large,
            defaults=params,
            methods=names,
            limits=ServiceLimits(deadline_s=inf),
        )
        with serving(made) as url, client(url, timeout=600) as api:
            yield api
    finally:
        small.close()
        large.close()


def fault(api: OpenAI, number: int, policy: str, method: str, max_tokens: int) -> str | None:
    """What is wrong with an answer; None: it is valid."""
    schema = SCHEMAS[number % len(SCHEMAS)]
    question = QUESTIONS[number % len(QUESTIONS)].format(
        a=7 + number % 83, b=2 + number % 19, c=1 + number % 47
    )
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    try:
        reply = api.chat.completions.create(
            model=policy,
            messages=[{"role": "user", "content": question}],
            response_format=form,  # type: ignore[arg-type]
            temperature=number // 2 % 2,
            seed=number,
            max_tokens=max_tokens,
            extra_body={"speculation": method},
        )
    except OpenAIError as error:
        return str(error)
    choice = reply.choices[0]
    text = choice.message.content or ""
    if choice.finish_reason != "stop":
        return f"{choice.finish_reason}: {text!r}"
    try:
        wrong = next(Draft202012Validator(schema).iter_errors(json.loads(text)), None)
    except ValueError as error:
        return f"{error}: {text!r}"
    return None if wrong is None else f"{wrong.message}: {text!r}"


def table(policies: list[str], methods: list[str], asked: Counter[Any], valid: Counter[Any]) -> str:
    """Valid answers of those asked: a line for each policy, a column for each method."""

    def cell(*cases: tuple[str, str]) -> str:
        return f"{sum(valid[case] for case in cases)}/{sum(asked[case] for case in cases)}"

    lines = [f"| policy | {' | '.join(methods)} | all |", "| --- |" + " --- |" * (len(methods) + 1)]
    for policy in policies:
        cases = [(policy, method) for method in methods]
        lines.append(f"| `{policy}` | {' | '.join(map(cell, cases))} | {cell(*cases)} |")
    columns = [[(policy, method) for policy in policies] for method in methods]
    sums = [cell(*column) for column in columns]
    total = cell(*(case for column in columns for case in column))
    return "\n".join([*lines, f"| all | {' | '.join(sums)} | {total} |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", choices=sorted(METHODS), default="embedded")
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--out", type=Path, help="a file that the table is written to")
    options = parser.parse_args()
    policies, methods = options.policies, [one["method"] for one in METHODS[options.pair]]
    asked, valid = Counter[Any](), Counter[Any]()
    with served(options.pair) as api, suppress(KeyboardInterrupt):  # what there is counts
        for number in range(options.answers):
            policy, method = policies[number % len(policies)], methods[number % len(methods)]
            found = fault(api, number, policy, method, options.max_tokens)
            asked[policy, method] += 1
            valid[policy, method] += found is None
            if found is not None:
                print(f"{number}: {policy}, {method}: {found}", flush=True)
            if number % 50 == 49:
                print(f"{number + 1}: {valid.total()} valid", file=sys.stderr, flush=True)
    text = table(policies, methods, asked, valid)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    sys.exit(valid != asked)


if __name__ == "__main__":
    main()
