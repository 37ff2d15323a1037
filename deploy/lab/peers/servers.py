"""Servers of one model: Baton's and its peers'."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from deploy.lab.processes import ROOT, ServerCommand, free_port
from workers.embedded.checkpoints import resolve

REAL_FOLDER = ROOT / "build" / "real-pair"
TRANSFORMERS = "from transformers.cli.transformers import main; main()"
PLAIN = MappingProxyType({"method": "vanilla"})
SLOTS = 16  # sequences at once, if a server wants to know
CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class PeerPair:
    """Two checkpoints and how they are run: the same for all servers."""

    small: str
    large: str
    dtype: str
    threads: int
    baton_dtype: str  # what Baton makes of the weights
    gguf: str | None = None  # None: written from the large checkpoint
    draft_gguf: str | None = None


EMBEDDED = PeerPair("embedded:small", "embedded:large", "float32", 1, "float32")
REAL = PeerPair(
    str(REAL_FOLDER / "small"), str(REAL_FOLDER / "large"), dtype="bfloat16", threads=2,
    baton_dtype="int4+bfloat16", gguf=str(REAL_FOLDER / "large.gguf"),
    draft_gguf=str(REAL_FOLDER / "small.gguf"),
)  # fmt: skip


def baton(file: Path, folder: Path, edit: Callable[[dict[str, Any]], object]) -> ServerCommand:
    """Run Baton on a free port: with a deployment file whose arguments `edit` has changed,
    written into `folder`."""
    document = yaml.safe_load(file.read_text())
    port = document["http_options"]["port"] = free_port()
    edit(document["applications"][0].setdefault("args", {}))
    edited = folder / "baton.yaml"
    edited.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "deploy.cli.main", "serve", str(edited)]
    return ServerCommand(command, port, "large-only", "/ready")


def baton_over(
    pair: PeerPair, folder: Path, speculation: Mapping[str, Any] | None = PLAIN
) -> ServerCommand:
    """Run Baton over a pair; None: the large worker decodes as the deployment file says."""

    def edit(args: dict[str, Any]) -> None:
        args["limits"]["concurrent"] = 128
        for name in ("small", "large"):
            worker = args["workers"][name]
            worker |= {"model": getattr(pair, name), "dtype": pair.baton_dtype}
            worker |= {"threads": pair.threads, "rows": 4 * SLOTS}
            if pair is REAL:
                worker["max_len"] = CONTEXT
        if speculation is not None:
            args["workers"]["large"]["speculation"] = dict(speculation)
        if pair is REAL:
            args["policy"]["params"] = {}

    return baton(ROOT / "deploy" / "local.yaml", folder, edit)


def _checkpoint(pair: PeerPair, folder: Path) -> str:
    """The large checkpoint for a peer. The embedded one's template opens the thought there, as
    Baton does, so that all servers answer the same prompts, with the same tokens."""
    model = resolve(pair.large)
    if pair is REAL:
        return str(model)
    copy = folder / "peer-model"
    shutil.copytree(model, copy, dirs_exist_ok=True)
    config = json.loads((copy / "tokenizer_config.json").read_text())
    opened = config["chat_template"].replace("<|assistant|>'", "<|assistant|><think>'")
    assert opened != config["chat_template"]
    (copy / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": opened}))
    return str(copy)


def bare_serve() -> ServerCommand:
    """Run Ray Serve without Baton."""
    port = free_port()
    command = [sys.executable, "-m", "deploy.lab.peers.bare_serve", str(port)]
    return ServerCommand(command, port, ready="/ready")


def transformers(pair: PeerPair, folder: Path) -> ServerCommand:
    """Run `transformers serve`."""
    port, model = free_port(), _checkpoint(pair, folder)
    command = [sys.executable, "-c", TRANSFORMERS, "serve", model, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--device", "cpu", "--dtype", pair.dtype]
    env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(pair.threads)}
    return ServerCommand(command, port, model, env=env)


def vllm(pair: PeerPair, folder: Path) -> ServerCommand:
    """Run vLLM's server, its build for CPUs."""
    python = ROOT / ".venv-vllm" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError("vLLM needs .venv-vllm: make test-vllm makes it")
    port, model = free_port(), _checkpoint(pair, folder)
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", pair.dtype]
    command += ["--max-model-len", str(CONTEXT), "--max-num-seqs", str(4 * SLOTS)]
    command += ["--enforce-eager"]
    env = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(pair.threads),
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return ServerCommand(command, port, model, env=env)


def llama_cpp(pair: PeerPair, folder: Path, *, drafts: bool = False) -> ServerCommand:
    """Run llama.cpp's server, with the small model's drafts if asked for."""
    port = free_port()
    model = pair.gguf or _checkpoint(pair, folder)
    command = [sys.executable, "-m", "deploy.lab.peers.llama_cpp", model]
    command += [str(port), str(SLOTS), str(pair.threads)]
    if drafts:
        assert pair.draft_gguf is not None, "the embedded pair has no file of its small model"
        command.append(pair.draft_gguf)
    return ServerCommand(command, port, "model")
