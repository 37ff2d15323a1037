"""Makes a worker from its part of the deployment file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploy.service.extras import want
from deploy.service.worker_spec import WorkerSpec
from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from workers.backend import LocalBackend
    from workers.remote.backend import RemoteBackend
    from workers.remote.server import Server
    from workers.worker import EngineWorker, ModelWorker

# What to do if vLLM is not installed.
WITH_VLLM = (
    "`make setup GPU=1` makes an environment that has it (.venv-gpu/bin/baton), or say "
    "engine: builtin"
)


def load_worker(spec: WorkerSpec, share: float | None = None) -> EngineWorker[LocalBackend]:
    """Return a worker over an engine in this process; `close()` stops it.

    `share`: the part of a GPU's memory that the whole process may take (None: what the file says).

    Raises:
        ConfigError: the model or a parameter cannot be used.
    """
    # Here, not above: the orchestrator and the command line need no torch (seconds, and memory).
    from workers.text.thinking import parse_thinking

    assert spec.model is not None
    method, *also = [{"method": one.method, **one.params} for one in spec.speculation.offered]
    settings: dict[str, Any] = {
        "speculation": method,
        "device": spec.device,
        "dtype": None if spec.dtype == "auto" else spec.dtype,
        "rows": spec.rows,
        "run_ahead": spec.run_ahead or 0,
        "max_len": spec.max_len,
        "threads": spec.threads,
        "share": spec.gpu if share is None else share,
        "thinking": parse_thinking(spec.thinking),
    }
    if not spec.runs_vllm:
        want("engine", spec.model, "torch", "transformers")
        from transformers.utils.logging import disable_progress_bar

        from workers.engine.loading import load

        disable_progress_bar()
        return load(spec.model, also=also, **settings)

    from workers.embedded.checkpoints import resolve

    try:
        from workers.vllm.loading import load as load_vllm
    except ImportError as error:
        raise ConfigError(
            f"the engine vllm (auto on cuda) cannot be imported: {error}; {WITH_VLLM}"
        ) from error
    if spec.lacks_draft_model:
        raise ConfigError("speculation.params.model: is missing; name a draft model")
    if spec.speculation.method == "draft_model":
        method["model"] = str(resolve(method["model"]))
    return load_vllm(
        spec.model,
        tensor_parallel=spec.tensor_parallel,
        pipeline_parallel=spec.pipeline_parallel,
        engine_args=spec.engine_args,
        **settings,
    )


def connect(spec: WorkerSpec) -> Server:
    """Return the server that `spec.url` names, not connected yet.

    Raises:
        ConfigError: the key is missing.
    """
    from workers.remote.server import Server

    assert spec.url is not None
    return Server(
        spec.url,
        key=spec.key(),
        ca=spec.ca,
        connect_s=spec.connect_s,
        silence_s=spec.silence_s,
        retries=spec.retries,
    )


def connect_worker(spec: WorkerSpec) -> ModelWorker[RemoteBackend]:
    """Return a worker over the server that `spec.url` names, not connected yet.

    Raises:
        ConfigError: there is no such tokenizer, or the key is missing.
    """
    from workers.embedded.checkpoints import TOKENIZER, resolve
    from workers.remote.backend import RemoteBackend
    from workers.text.thinking import parse_thinking
    from workers.text.tokenizer_files import load_tokenizer
    from workers.worker import ModelWorker

    assert spec.model is not None
    server, name = connect(spec), resolve(spec.tokenizer or spec.model, TOKENIZER)
    tokenizer = load_tokenizer(name, thinking=parse_thinking(spec.thinking))
    backend = RemoteBackend(
        server, spec.model, tokenizer, context=spec.max_len, run_ahead=spec.run_ahead or 0
    )
    return ModelWorker(backend)
