"""How families of models mark their thought: `<think>`, `[THINK]`, channels, none.

The table is `thinking.yaml`, with the names of vLLM's reasoning parsers if there is one. A family
is found from what the chat template writes and mentions, and from the vocabulary; if neither shows
it, the deployment file names it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from jinja2 import TemplateError

from orchestrator.errors import ConfigError
from workers.text.chat_template import ChatTemplate

Variables = Mapping[str, Any]
"""Variables of a chat template."""

AUTO, NONE = "auto", "none"
_SWITCH = MappingProxyType({"enable_thinking": (True, False), "thinking": (True, False)})
"""Variables that switch a thought in most templates, and their values for on and off."""


@dataclass(frozen=True, slots=True)
class ThinkingFormat:
    """The markup of one family around a thought."""

    names: tuple[str, ...]  # vLLM's; users see the first one
    open: str
    close: str
    answer: str = ""  # markup between `close` and the answer
    end: str = ""  # text that ends an answer, if no control token does
    direct: str = ""  # what begins a reply without a thought, if the template does not write it
    words: str = ""  # the last words of a thought that a budget ends, as its developers have them
    mark: str = ""  # further text that a template of this family holds
    switch: Mapping[str, tuple[Any, Any]] = field(default_factory=dict, hash=False)
    """Variables that switch the thought, beside `_SWITCH`, and their values for on and off."""

    @property
    def name(self) -> str:
        return self.names[0]

    def variables(self, thinking: bool) -> Variables:
        """Return the template's variables that switch the thought on or off."""
        switch = _SWITCH | dict(self.switch)
        return {name: on if thinking else off for name, (on, off) in switch.items()}

    @property
    def closing(self) -> str:
        """All markup between the thought and the answer."""
        return self.close + self.answer

    @property
    def without(self) -> str:
        """All markup before an answer without a thought, if the template writes none of it."""
        return self.direct or self.open + self.closing

    def opens(self, text: str) -> bool:
        """Whether a generation prompt that ends with `text` leaves a thought open."""
        return text.rfind(self.open.strip()) > text.rfind(self.close.strip())

    def closes(self, text: str) -> bool:
        """Whether a generation prompt that ends with `text` has ended a thought."""
        opened = self.open.strip() in text or not self.direct  # else `close` may end any turn
        return opened and self.close.strip() in text and not self.opens(text)


def _read(row: dict[str, Any]) -> ThinkingFormat:
    names, switch = tuple(row.pop("names")), row.pop("switch", {})
    pairs = {variable: tuple(values) for variable, values in switch.items()}
    return ThinkingFormat(names, **row, switch=pairs)


_ROWS = Path(__file__).with_name("thinking.yaml").read_text(encoding="utf-8")
FORMATS = tuple(map(_read, yaml.load(_ROWS, yaml.CSafeLoader)))
BY_NAME = {name: one for one in FORMATS for name in one.names}
_KEYS = ("open", "close", "answer", "end")
_SUFFIXED = re.compile(r"<think(:[^\s>]+)>")
"""A token of Hunyuan 4 (vLLM's hy_v4), whose suffix differs by checkpoint: this family is found
from the vocabulary, and a deployment file cannot name it."""


def parse_thinking(setting: str | Mapping[str, Any]) -> ThinkingFormat | str:
    """Parse a deployment file's `thinking`, or raise ConfigError."""
    if isinstance(setting, str):
        if setting in (AUTO, NONE):
            return setting
        if (known := BY_NAME.get(setting)) is not None:
            return known
        raise ConfigError(
            f"thinking: {setting!r} is not known; give auto, none, how a thought opens and closes "
            f"({{open: ..., close: ...}}), or one of {', '.join(sorted(BY_NAME))}"
        )
    texts = {key: value for key, value in setting.items() if isinstance(value, str)}
    if not {"open", "close"} <= texts.keys() <= set(_KEYS) or len(texts) < len(setting):
        raise ConfigError(
            f"thinking: expected the texts open and close, and perhaps answer and end, "
            f"not {', '.join(map(str, setting)) or 'nothing'}"
        )
    if not texts["close"].strip():
        raise ConfigError("thinking: close is empty; give the text that ends a thought")
    return ThinkingFormat(
        ("custom",), texts["open"], texts["close"], texts.get("answer", ""), texts.get("end", "")
    )


def find_format(template: ChatTemplate | None, added: Collection[str]) -> ThinkingFormat | None:
    """Find the family of a checkpoint by its template's source or output; if that holds only the
    closing marker or is missing, by the `added` tokens. None if nothing shows one."""
    prompt_of = cache(_prompt)  # most formats share their variables
    for one in FORMATS:
        opening, closing = one.open.strip(), one.close.strip()
        as_tokens = {opening, closing} <= set(added)
        if template is None:
            if as_tokens and not one.mark:
                return one
            continue
        prompt = prompt_of(template, tuple(one.variables(True).items()))
        without = prompt_of(template, tuple(one.variables(False).items()))
        said = template.source + prompt + without
        if one.mark not in said:
            continue
        if closing in said and (opening in said or as_tokens or one.mark):
            return one
        if opening in said and one.opens(prompt):
            return one
    for token in added:
        named = _SUFFIXED.fullmatch(token)
        if named is not None and (closing := f"</think{named[1]}>") in added:
            switch = {"reasoning_effort": ("high", "no_think")}
            return ThinkingFormat(("hy_v4",), token, closing, switch=switch)
    return None


def _prompt(template: ChatTemplate, variables: tuple[tuple[str, Any], ...]) -> str:
    """Return what a template writes for a question, or nothing if it refuses."""
    try:
        return template.render([{"role": "user", "content": "?"}], dict(variables))
    except (TemplateError, TypeError, ValueError):
        return ""
