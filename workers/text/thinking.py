"""How families of models mark their thought: `<think>`, `[THINK]`, channels, none.

The table is `thinking.yaml`, under the names of vLLM's reasoning parsers, where it has one. A
family is found from what the chat template writes and mentions and from the vocabulary; where
neither shows it (a template that never speaks of a thought the model was trained to write), the
deployment file names it.

What a later turn keeps of an earlier thought is decided by the template, whether a client sends it
back beside the answer or in it.
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
"""Variables by which templates switch a thought on or off, and their two values."""


@dataclass(frozen=True, slots=True)
class ThinkingFormat:
    """One family: the markup around a thought.

    names: vLLM's, the first one is shown. open, close: what begins and ends the thought. answer:
    markup between `close` and the answer. end: text by which the model ends its answer, where that
    is no control token. direct: what begins a reply without a thought where the template does not
    see to it. mark: what a template must hold besides for it to be this family. switch: variables
    by which the template switches a thought on or off, beside those that most templates know.
    """

    names: tuple[str, ...]
    open: str
    close: str
    answer: str = ""
    end: str = ""
    direct: str = ""
    mark: str = ""
    switch: Mapping[str, tuple[Any, Any]] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def on(self) -> Variables:
        """The template's variables where the model is to think."""
        return {name: on for name, (on, _) in (_SWITCH | dict(self.switch)).items()}

    @property
    def off(self) -> Variables:
        """The template's variables where it is not."""
        return {name: off for name, (_, off) in (_SWITCH | dict(self.switch)).items()}

    @property
    def closing(self) -> str:
        """All markup between the thought and the answer."""
        return self.close + self.answer

    @property
    def without(self) -> str:
        """All markup before an answer without a thought, where the template writes none of it."""
        return self.direct or self.open + self.closing

    def opens(self, text: str) -> bool:
        """Whether a generation prompt that ends like this leaves a thought open."""
        return text.rfind(self.open.strip()) > text.rfind(self.close.strip())

    def closes(self, text: str) -> bool:
        """Whether a generation prompt that ends like this has a thought ended already."""
        opened = self.open.strip() in text or not self.direct  # else it ends any turn
        return opened and self.close.strip() in text and not self.opens(text)


def _read(row: dict[str, Any]) -> ThinkingFormat:
    names, switch = tuple(row.pop("names")), row.pop("switch", {})
    pairs = {variable: tuple(values) for variable, values in switch.items()}
    return ThinkingFormat(names, **row, switch=pairs)


_ROWS = Path(__file__).with_name("thinking.yaml").read_text(encoding="utf-8")
FORMATS = tuple(map(_read, yaml.safe_load(_ROWS)))
BY_NAME = {name: one for one in FORMATS for name in one.names}
_KEYS = ("open", "close", "answer", "end")
_SUFFIXED = re.compile(r"<think(:[^\s>]+)>")
"""As Hunyuan 4 (vLLM's hy_v4) names its tokens, by a suffix of each checkpoint's own: it is found
from the vocabulary, and has no name that a deployment file could give."""


def parse_thinking(setting: str | Mapping[str, Any]) -> ThinkingFormat | str:
    """A deployment file's `thinking`: a format by its name or by its markup, or `AUTO` or `NONE`.

    Raises:
        ConfigError: it is none of these.
    """
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
    """The family of a checkpoint; None where nothing shows one.

    A family shows in what the template says and writes, or, where the template only ends thoughts
    or is missing, in markers that the vocabulary (whose added tokens are `added`) has as tokens.
    """
    prompt_of = cache(_prompt)  # most formats share their variables
    for one in FORMATS:
        opening, closing = one.open.strip(), one.close.strip()
        as_tokens = {opening, closing} <= set(added)
        if template is None:
            if as_tokens and not one.mark:
                return one
            continue
        prompt = prompt_of(template, tuple(one.on.items()))
        said = template.source + prompt + prompt_of(template, tuple(one.off.items()))
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
    """What a template writes for a question; nothing where it refuses."""
    try:
        return template.render([{"role": "user", "content": "?"}], dict(variables))
    except (TemplateError, TypeError, ValueError):
        return ""
