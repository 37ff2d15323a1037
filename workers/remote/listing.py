"""What a server says of its models: their names, and where a tokenizer may lie."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import ConfigError, WorkerError
from workers.remote.server import Server

WAIT_S = 10.0
SHOWN = 20  # names in an error


async def model_name(server: Server, name: str | None) -> str:
    """Return the name, or that of the server's only model.

    Raises:
        ConfigError: no name was given, and the server lists none or several.
        WorkerError: the server does not answer.
    """
    listed = [str(one.get("id")) for one in await _models(server)]
    if name is not None:
        return name
    if len(listed) == 1:
        return listed[0]
    some = ", ".join(listed[:SHOWN]) + (", ..." if len(listed) > SHOWN else "")
    raise ConfigError(
        f"{server.name} serves {f'{len(listed)} models ({some})' if listed else 'no model'}: "
        f"name one, as {listed[0] if listed else 'MODEL'}@{server.name}"
    )


async def tokenizer_sources(server: Server, name: str) -> list[str]:
    """Return folders, GGUF files and Hugging Face ids that may hold the model's tokenizer, the
    likeliest first.

    vLLM names the checkpoint as a model's `root`, SGLang in `/get_model_info`, llama.cpp in
    `/props`, Ollama in the `FROM` of `/api/show`.
    """
    found = list[Any]()
    listed = await _models(server)
    found += [one.get("root") for one in listed if one.get("id") == name or len(listed) == 1]
    sglang = await _page(server, "/get_model_info")
    found += [sglang.get("tokenizer_path"), sglang.get("model_path")]
    found.append((await _page(server, "/props")).get("model_path"))
    shown = await _page(server, "/api/show", {"model": name})
    found += re.findall(r"^FROM (/.+)$", str(shown.get("modelfile", "")), re.M)
    return list(dict.fromkeys([*(one for one in found if one and isinstance(one, str)), name]))


def context(models: Any, name: str) -> int | None:
    """Return the context length of a model from the server's list of models, if it is there.

    A server of one model may answer to any name, as llama.cpp's does.
    """
    listed = models.get("data") or ()
    for model in listed:
        if model.get("id") == name or len(listed) == 1:
            size = model.get("max_model_len") or (model.get("meta") or {}).get("n_ctx")
            return size if isinstance(size, int) else None
    return None


async def _models(server: Server) -> list[Mapping[str, Any]]:
    answer = await server.fetch("/models", timeout_s=WAIT_S)
    listed = answer.get("data") if isinstance(answer, dict) else None
    return [one for one in listed or () if isinstance(one, dict)]


async def _page(
    server: Server, path: str, body: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """Return a page beside `/v1`; {} if the server has none."""
    try:
        page = await server.fetch(path, body, beside=True, timeout_s=WAIT_S)
    except WorkerError:
        return {}
    return page if isinstance(page, dict) else {}
