"""WHAT in `baton serve --small WHAT --large WHAT`: a model of this machine, or one on a server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from deploy.service.worker_spec import WorkerSpec
from orchestrator.errors import ConfigError
from orchestrator.validation import unknown

FORMS = "a Hugging Face id, a folder, a GGUF file, or MODEL@http://HOST:PORT/v1"


@dataclass(frozen=True, slots=True)
class Source:
    """A model, and settings of its worker that the user named."""

    model: str | None  # None: the server's only one
    url: str | None  # None: it runs here
    settings: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> Source:
        """Parse `WHAT[,KEY=VALUE...]`, with `[MODEL@]http://...` for a server.

        Raises:
            ConfigError: it names no model, or a field that a worker does not have.
        """
        what, *given = re.split(r",(?=\w+=)", text)
        known = WorkerSpec.model_fields.keys() - {"model", "url"}
        settings: dict[str, Any] = {}
        for one in given:
            key, _, value = one.partition("=")
            if key not in known:
                raise ConfigError(f"{what}, {key}: {unknown('setting', key, known)}")
            settings[key] = _value(value)
        named = re.fullmatch(r"(?:(.*)@)?(https?://.*)", what)
        model, url = (named[1], named[2]) if named else (what, None)
        if model is not None and not model.strip():
            raise ConfigError(f"expected {FORMS}; got {text!r}")
        return cls(model, url, settings)


def _value(text: str) -> Any:
    """A number or a truth value if the text is one, otherwise the text."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, bool | int | float) else text
