"""A model on a server, as the server's own answers show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from deploy.launch.source import Source
from deploy.service.config import explain
from deploy.service.worker_spec import WorkerSpec
from deploy.service.workers import connect, connect_worker
from orchestrator.errors import BatonError, ConfigError, Misconfigured, Unsupported
from workers.remote.capabilities import ServerCapabilities
from workers.remote.listing import model_name, tokenizer_sources
from workers.reporting import first_line


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model on a server, with its part of the deployment file."""

    name: str
    worker: dict[str, Any]
    vocabulary: str  # a hash
    context: int | None  # None: the server does not say
    able: ServerCapabilities

    @classmethod
    async def look(cls, source: Source) -> ServedModel:
        """Ask the server for the model and its tokenizer, and probe what it can do.

        Raises:
            ConfigError: the server does not answer, cannot be used, or more must be said.
        """
        settings = {"url": source.url, **source.settings}
        try:
            name, settings = await _completed(source.model, settings)
            backend = connect_worker(_spec({"model": name, **settings})).backend
            try:
                able = await backend.capabilities()
            finally:
                await backend.aclose()
        except Unsupported as error:
            raise ConfigError(
                f"{source.url}: {error}. llama.cpp's server takes the GGUF file that Ollama or "
                "LM Studio has downloaded: llama-server -m FILE --port 8001"
            ) from None
        except Misconfigured as error:
            raise ConfigError(str(error)) from None
        except ConfigError:
            raise
        except BatonError as error:
            raise ConfigError(f"{error}; is the server up, and the address right?") from None
        vocabulary = backend.prompts.tokenizer.hash
        return cls(name, {"model": name, **settings}, vocabulary, backend.context, able)

    def __str__(self) -> str:
        able = self.able
        takes = {"ids": "token ids", "text": "text", "chat": "a chat"}[able.prompt]
        size = "an unknown context" if self.context is None else f"{self.context:,} tokens"
        wanted = {
            "log-probabilities": able.top > 0,
            "log-probabilities of every streamed token": able.reads_logprobs,
            "log-probabilities of a prompt": able.scores,
            "answers held to a JSON schema": able.forms,
            "sampling (temperatures above 0 are refused)": able.samples,
            "a sign of a thought's end (thoughts are refused)": able.stops,
            "its context (set max_len)": self.context is not None,
        }
        lacks = [what for what, has in wanted.items() if not has]
        end = f"; it lacks {', '.join(lacks)}" if lacks else ""
        place = f"{self.name} at {self.worker['url']}"
        return f"{place} ({able.dialect}'s API, {takes}, {size}{end})."


async def _completed(name: str | None, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The model's name and settings, with a tokenizer that can be loaded.

    Raises:
        ConfigError: the server has several models, or no tokenizer is found.
        BatonError: the server does not answer.
    """
    server = connect(_spec({"model": name or "?", **settings}))
    try:
        name = await model_name(server, name)
        if "tokenizer" in settings:
            return name, settings
        sources = await tokenizer_sources(server, name)
    finally:
        await server.aclose()
    tried = list[str]()
    for source in sources:
        known = {} if source == name else {"tokenizer": source}
        try:
            connect_worker(_spec({"model": name, **settings, **known}))
        except ConfigError as error:
            tried.append(first_line(error))
        else:
            return name, {**settings, **known}
    raise ConfigError(
        f"{server.name}: the tokenizer of {name} is missing here; name the model's Hugging Face "
        f"id, folder or GGUF file: {name}@{settings['url']},tokenizer=WHAT ({'; '.join(tried)})"
    )


def _spec(worker: dict[str, Any]) -> WorkerSpec:
    try:
        return WorkerSpec.model_validate(worker)
    except ValidationError as error:  # the url may hold a password
        raise ConfigError(f"--small or --large, {explain(error, WorkerSpec)}") from None
