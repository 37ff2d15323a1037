"""What the scripts beside this one share: the question, and the checks of what a client got.

A script runs in its client's environment, so nothing but the standard library is used here. Each of
its functions is one capability, named as in `CHECKS`; instead of a function there may be the reason
why the client has no such thing. For every capability one line of JSON is printed.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

URL = os.environ["BATON_URL"] + "/v1"
MODEL = os.environ["BATON_MODEL"]
KEY = "none"
QUESTION = "What is 37*46+12?"
THOUGHT, ANSWER = "1702", "1714"
EARLIER, REPLY, LATER, SUM = "What is 12+30?", "The answer is \\boxed{42}.", "What is 37+12?", "49"
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}
TOOL_NAME, TOOL_ABOUT = "multiply", "Multiply two whole numbers."
TOOL_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": TOOL_NAME, "description": TOOL_ABOUT, "parameters": TOOL_SCHEMA},
}
FORM = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
}
TOOL_QUESTION = "Multiply 37 by 46 with the tool."
TIMEOUT_S = int(os.environ.get("BATON_TIMEOUT_S", "60"))
_SAID = re.compile(
    r"""Error code: 400 - ([^{\n]+?)(?:['"]\)|$)"""  # how openai-python quotes an answer
    r"""|['"]message['"]: (['"])(.+?)\2, ['"]type['"]""",
    re.MULTILINE,
)

warnings.simplefilter("ignore")


def said(text: object, wanted: str = ANSWER) -> None:
    assert isinstance(text, str), f"expected a text, not {text!r}"
    assert wanted in text, f"expected {wanted} in {text!r}"


def streamed(pieces: object) -> None:
    assert isinstance(pieces, list), f"expected a list of pieces, not {pieces!r}"
    said("".join(pieces))


def fits(value: object) -> None:
    assert isinstance(value, dict), f"not of the schema: {value!r}"
    assert value.keys() == {"answer"}, f"not of the schema: {value!r}"
    assert type(value["answer"]) is int, f"not of the schema: {value!r}"


def called(call: object) -> None:
    """A call is its name and its arguments, the latter as an object or as JSON."""
    assert isinstance(call, tuple), f"expected a call, not {call!r}"
    name, arguments = call
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    assert name == TOOL_NAME, f"called {name!r}"
    kinds = {name: type(value) for name, value in arguments.items()}
    assert kinds == {"a": int, "b": int}, f"called with {arguments!r}"


CHECKS: dict[str, Callable[[Any], None]] = {
    "chat": said,
    "stream": streamed,
    "reasoning": lambda text: said(text, THOUGHT),
    "structured": fits,
    "tools": called,
    "history": lambda text: said(text, SUM),
}


def run(script: Mapping[str, Any]) -> None:
    """Try each capability that a script defines, by its globals, and print how it went."""
    signal.signal(signal.SIGALRM, _too_long)
    wanted = os.environ.get("BATON_CHECKS", ",".join(CHECKS)).split(",")
    for name in [name for name in CHECKS if name in wanted]:
        attempt: Callable[[], Any] | str = script[name]
        if isinstance(attempt, str):
            _print(name, False, attempt)
            continue
        signal.alarm(TIMEOUT_S)
        try:
            CHECKS[name](_result(attempt))
        except BaseException as error:
            _print(name, False, _reason(error))
        else:
            _print(name, True, "")
        finally:
            signal.alarm(0)


def _result(attempt: Callable[[], Any]) -> Any:
    made = attempt()
    return asyncio.run(made) if inspect.iscoroutine(made) else made


def _too_long(*_: object) -> None:
    raise TimeoutError(f"nothing after {TIMEOUT_S} s")


def _reason(error: BaseException) -> str:
    """What the service said, where an error of the chain quotes it; else the error, in one line."""
    one: BaseException | None = error
    while one is not None:
        if quoted := _SAID.search(str(one)):
            return f"the service: {(quoted[1] or quoted[3]).strip()}"
        one = one.__cause__ or one.__context__
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _print(name: str, works: bool, why: str) -> None:
    print(json.dumps({"capability": name, "works": works, "why": why}), flush=True)
    sys.stdout.flush()
