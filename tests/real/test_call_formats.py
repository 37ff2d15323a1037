"""Every public chat template's calls are read as they were made, or it is refused by name.

    pytest -m real tests/real/test_call_formats.py -s

prints how many templates, conversations and calls that were.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jinja2 import TemplateError
from llguidance import LLMatcher, LLTokenizer

from orchestrator.call_markup import ends_of_values
from orchestrator.errors import ConfigError, InvalidRequest
from orchestrator.grammar import LIMITS, lark, tool_rules
from orchestrator.http.tools.call_reader import CallPiece, CallReader
from orchestrator.types import CallFormat, Message, Transcript
from tests.real.templates import public_templates
from tests.workers.conftest import CONTROLS, make_tokenizer
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer_files import load_tokenizer

CONTROL = re.compile(r"<\|[^<>|\s]{2,40}\|>|<｜[^<>｜\s]{2,40}｜>|\[/?[A-Z_]{3,}\]|<SPECIAL_\d+>")
CONVERSATIONS = 60  # of each template
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "number": {"type": "number"},
        "whole": {"type": "integer"},
        "flag": {"type": "boolean"},
        "nothing": {"type": "null"},
        "list": {"type": "array"},
        "object": {"type": "object"},
        "perhaps": {"type": ["integer", "null"]},
    },
    "required": [],
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA}}
    for name in ("look", "look_up", "get.weather-now")
]
NAMES = {tool["function"]["name"] for tool in TOOLS}
QUESTION = {"role": "user", "content": "What now?"}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PromptRenderer | str]:
    """A renderer of each template, over a tiny vocabulary; or why there is none."""
    found: dict[str, PromptRenderer | str] = {}
    for name, source in public_templates().items():
        controls = sorted(set(CONTROL.findall(source)) - set(CONTROLS))
        folder = tmp_path_factory.mktemp("tokenizer")
        made = make_tokenizer(source)
        made.bos_token = CONTROLS[0]
        made.add_special_tokens({"additional_special_tokens": [*CONTROLS[:3], *controls]})
        made.save_pretrained(folder)
        try:
            found[name] = PromptRenderer(load_tokenizer(folder))
        except (ConfigError, InvalidRequest) as error:
            found[name] = str(error)
    return found


def texts(random: random.Random, calls: CallFormat) -> str:
    """One that looks like something else: markup of the format, JSON, Python, white space."""
    each = calls.each
    markup = [calls.before, calls.middle, calls.after, calls.between or ""]
    markup += [each.before, each.middle, each.after, each.other] if each else []
    tags = [part for one in markup for part in re.split(r"(?<=>)|\s", one) if part.strip()]
    words = [
        "a", "Zoë", "3", "-1.5", "true", "None", "null", "['x']", '{"a": 1}', '"', "'", "\\", "<",
        ">", "</", "{", "}}", "\n", "\n\n", "  ", "\t", "A parameter ends with", "here.", "```json",
    ]  # fmt: skip
    return "".join(
        random.choice(words + 2 * tags) for _ in range(random.choice([0, 1, 1, 2, 4, 8]))
    )


def values(random: random.Random, calls: CallFormat) -> dict[str, Any]:
    text = texts(random, calls)
    made: dict[str, Callable[[], Any]] = {
        "text": lambda: text,
        "number": lambda: random.choice([0, -3, 2.5, 1e-7, 10**15]),
        "whole": lambda: random.choice([0, -15, 2**53 - 1]),
        "flag": lambda: random.choice([True, False]),
        "nothing": lambda: None,
        "list": lambda: random.choice([[], ["x"], [1, None, True], [["y's"], {"z": text}]]),
        "object": lambda: random.choice([{}, {"k": "v"}, {"k": [None, False], "t": text}]),
        "perhaps": lambda: random.choice([None, 7]),
    }
    names = random.sample(list(made), random.choice([0, 1, 2, 4, len(made)]))
    return {name: made[name]() for name in names}


def is_ambiguous(arguments: dict[str, Any], calls: CallFormat) -> bool:
    """Whether a value in tags holds what ends one, together with what follows: no reader can tell
    that from its end."""
    if (each := calls.each) is None:
        return False
    ends = re.compile(ends_of_values(calls, "|".join(SCHEMA["properties"]), "|".join(NAMES)))
    for value in arguments.values():
        said = each.middle + (value if isinstance(value, str) else json.dumps(value))
        if each.quotes and each.quotes[1] in said:
            return True
        found = ends.search(said + each.after + each.before)
        if not each.quotes and found and found.start() < len(said):
            return True
    return False


def turn(text: str, made: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    calls = [
        {"id": f"baton000{i}", "type": "function", "function": {"name": n, "arguments": a}}
        for i, (n, a) in enumerate(made)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def written(prompts: PromptRenderer, before: list[Any], after: list[Any]) -> str | None:
    """What the template writes behind some messages for some more; None: it refuses them."""
    try:
        begin = prompts._rendered(before, False, TOOLS, replies=True)
        whole = prompts._rendered([*before, *after], False, TOOLS, replies=False)
    except (TemplateError, TypeError, ValueError):
        return None
    family = prompts.tokenizer.format
    for mark in (family.close, family.open) if family else ():
        begin = begin.rstrip().removesuffix(mark.strip())
    begin = begin.rstrip()
    if not whole.startswith(begin):
        return None
    text = whole[len(begin) :]
    close = family.close.strip() if family else ""
    return text.partition(close)[2] if close and close in text else text


def read(reader: CallReader, pieces: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    text, calls = "", dict[int, list[Any]]()
    for piece in [one for given in pieces for one in reader.feed(given)] + reader.end():
        if isinstance(piece, CallPiece):
            call = calls.setdefault(piece.index, [piece.name, ""])
            call[1] += piece.arguments
        else:
            text += piece
    return text, [(name, json.loads(arguments)) for name, arguments in calls.values()]


def cut(random: random.Random, text: str) -> Iterator[str]:
    while text:
        size = random.choice([1, 2, 5, 17, 200])
        yield text[:size]
        text = text[size:]


def test_calls_of_every_public_template_are_read_as_they_were_made(
    prompts: dict[str, PromptRenderer | str],
) -> None:
    counts, refused, wrong = [0, 0], dict[str, str](), list[Any]()
    for name, one in prompts.items():
        if isinstance(one, str):
            refused[name] = one
            continue
        if one.calls is None:
            asked = Transcript((Message("tools", json.dumps(TOOLS)), Message("user", "What now?")))
            with pytest.raises(InvalidRequest, match="tools: this model's chat template") as caught:
                one.transcript(asked)
            refused[name] = str(caught.value)
            continue
        chance = random.Random(name)
        for _ in range(CONVERSATIONS):
            many = 1 if one.calls.between is None else chance.choice([1, 2, 3])
            made = [(chance.choice(sorted(NAMES)), values(chance, one.calls)) for _ in range(many)]
            if any(is_ambiguous(arguments, one.calls) for _, arguments in made):
                continue
            before = [QUESTION]
            if chance.random() < 0.4:
                before += [
                    turn("", [("look", {"text": "x"})]),
                    {"role": "tool", "content": "5", "tool_call_id": "baton0000", "name": "look"},
                ]
            text = written(one, before, [turn("", made)])
            if text is None:
                continue
            end = written(one, [QUESTION], [{"role": "assistant", "content": "said"}])
            tail = (end or "").rpartition("said")[2].strip()
            text = text[: text.rindex(tail)] if tail and tail in text else text
            for pieces in ([text], list(cut(chance, text))):
                schemas = dict.fromkeys(NAMES, SCHEMA)
                found = read(CallReader(one.calls, NAMES, "call_", schemas=schemas), pieces)
                if found[1] != made or CONTROL.sub("", found[0]).strip():
                    wrong.append((name, len(pieces), text, made, found))
            counts[0] += 1
            counts[1] += many
    print(
        f"{len(prompts)} templates, {len(refused)} refused: {counts[0]} conversations, "
        f"{counts[1]} calls, each read whole and in pieces; refused:"
    )
    for name, why in refused.items():
        print(f"  {name}: {why.partition(';')[0]}")
    assert not wrong, (Counter(one[0] for one in wrong), wrong[0])


LIMITED = {
    **SCHEMA,
    "properties": {**SCHEMA["properties"], "kind": {"enum": ["a", 1, None]}},
    "additionalProperties": False,
}


def test_what_a_grammar_lets_a_model_write_is_read_back(
    prompts: dict[str, PromptRenderer | str],
) -> None:
    """Whatever the grammar of strict tools accepts, over each form of calls that there is."""
    forms = {one.calls: name for name, one in prompts.items() if not isinstance(one, str)}
    del forms[None]
    tokenizer, counts, wrong = LLTokenizer("byte"), [0, 0], list[Any]()
    rules = tool_rules(
        [{"name": name, "parameters": LIMITED, "strict": True, "place": name} for name in NAMES],
        required=True,
        parallel=True,
        answer=None,
    )
    for form, name in forms.items():
        assert form is not None
        chance, grammar = random.Random(name), lark(rules, form)
        for _ in range(CONVERSATIONS):
            many = 1 if form.between is None else chance.choice([1, 2])
            made = [(chance.choice(sorted(NAMES)), in_order(chance, form)) for _ in range(many)]
            answer = as_written(form, made)
            matcher = LLMatcher(tokenizer, grammar, limits=LIMITS, log_level=0)
            held = all(matcher.try_consume_tokens([byte]) == 1 for byte in answer.encode())
            counts[0] += 1
            if not (held and matcher.is_accepting()):
                continue  # a text that holds the end of a value
            if any(is_ambiguous(arguments, form) for _, arguments in made):
                continue
            counts[1] += 1
            reader = CallReader(form, NAMES, "call_", schemas=dict.fromkeys(NAMES, LIMITED))
            found = read(reader, list(cut(chance, answer)))
            if found[1] != made or found[0].strip():
                wrong.append((name, answer, made, found))
    print(f"{len(forms)} forms: {counts[0]} answers, {counts[1]} of them accepted and read back")
    assert not wrong, (Counter(one[0] for one in wrong), wrong[0])
    assert counts[1] > 0.9 * counts[0]


def in_order(random: random.Random, calls: CallFormat) -> dict[str, Any]:
    made = {**values(random, calls), "kind": random.choice(["a", 1, None])}
    if isinstance(number := made.get("number"), float):
        made["number"] = round(number, 1)
    return {name: made[name] for name in LIMITED["properties"] if name in made}


def as_written(calls: CallFormat, made: list[tuple[str, dict[str, Any]]]) -> str:
    """Calls as a model writes them in a form."""
    written = []
    for name, arguments in made:
        text = name + calls.middle
        if (form := calls.each) is None:
            written.append(text + json.dumps(arguments, ensure_ascii=False))
            continue
        for key, value in arguments.items():
            said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if form.quotes and isinstance(value, str) and set("<&\n") & set(value):
                said = form.quotes[0] + value + form.quotes[1]
            middle = form.middle if isinstance(value, str) else form.other or form.middle
            text += form.before + key + middle + said + form.after
        written.append(text)
    whole = calls.before.lstrip() + (calls.between or "").join(written) + calls.after
    return whole.replace(calls.ID, "a1b2c3d4e").replace(calls.COUNT, "7")
