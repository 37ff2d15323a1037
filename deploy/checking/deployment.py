"""A deployment file, alone or inside a RayService: every key with its line, and whether its parts
fit."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from ray.runtime_env import RuntimeEnv
from ray.serve.schema import RayActorOptionsSchema, ServeDeploySchema

from deploy.checking.documents import Document, Finding, Path
from deploy.launch.deployment_file import APPLICATION, ARGS, BUILDER, Deployment, parse
from deploy.launch.workers import without_engine
from deploy.service.config import Args
from deploy.service.notes import uncalibrated
from deploy.service.worker_spec import MethodSpec, WorkerSpec
from deploy.service.workers import WITH_VLLM
from orchestrator.errors import ConfigError
from orchestrator.validation import each_error, unknown
from workers.embedded.checkpoints import MODELS, TOKENIZER, folder_of
from workers.model.families import check_family
from workers.text.prompt import PromptRenderer
from workers.text.thinking import parse_thinking
from workers.text.tokenizer import Tokenizer
from workers.text.tokenizer_files import load_tokenizer

NAMES = {
    "SmallWorker": "workers.small",
    "LargeWorker": "workers.large",
    "Orchestrator": "orchestrator",
    "Store": "store",
}
"""Deployments, and the part of `args` that describes each."""
_OURS = {"num_replicas": "replicas", "autoscaling_config": "replicas", "ray_actor_options": "nodes"}
"""Options of Serve's `deployments` that would replace settings of `args`, and those settings."""
_ABSENT = object()


def check(document: Document) -> tuple[list[Finding], Deployment | None]:
    """Return the findings, and the deployment if its types are right."""
    faults, deployment = parse(document.data)
    builder = (*APPLICATION, "import_path")
    if document.at(builder, BUILDER) != BUILDER:  # then the args are another application's
        faults = [one for one in faults if one[0][: len(ARGS)] != ARGS]
        faults, deployment = [*faults, (builder, f"must be {BUILDER}")], None
    findings = [_finding(document, path, message) for path, message in faults]
    if deployment is None:
        return findings, None
    serve, args = deployment.serve, deployment.args
    findings += _serve_options(document, serve, args)
    findings += _overrides(document, serve, args)
    for name, spec in args.workers.by_name().items():
        findings += _worker(document, (*ARGS, "workers", name), spec)
    findings += _shares(document, args)
    findings += [document.finding((*ARGS, "policy"), note, "note") for note in uncalibrated(args)]
    return findings, deployment


def lacking_here(document: Document, args: Args) -> Iterator[Finding]:
    """Note what the deployment needs and this machine or shell lacks: it may run elsewhere."""
    for name in without_engine(args.workers):
        message = f"the engine vllm (auto on cuda) is not installed here: {WITH_VLLM}"
        yield document.finding((*ARGS, "workers", name), message, "note")
    for path, variable in variables(args):
        if not os.environ.get(variable, "").strip():
            yield document.finding((*ARGS, *path), f"${variable} is not set here", "note")


def variables(model: BaseModel, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield each path at which a model names a variable of the environment, with that name."""
    for field in type(model).model_fields:
        value = getattr(model, field)
        if isinstance(value, BaseModel):
            yield from variables(value, (*path, field))
        elif field.endswith("_env") and value and not getattr(model, f"{field[:-4]}_file", None):
            yield (*path, field), value


def _finding(document: Document, path: Path, message: str) -> Finding:
    """Make a finding; a validator of several fields begins its message with one of them."""
    match = re.fullmatch(r"([\w.-]+): (.*)", message, re.DOTALL)
    if match is not None:
        inner = match[1].split(".")
        if document.at((*path, inner[0]), _ABSENT) is not _ABSENT:
            return document.finding((*path, *inner), match[2])
    return document.finding(path, message)


def _serve_options(document: Document, serve: ServeDeploySchema, args: Args) -> Iterator[Finding]:
    options = serve.http_options
    deadline, timeout = args.limits.deadline_s, options.request_timeout_s
    if timeout is not None and timeout < deadline:
        message = f"{timeout:g} s would cut answers that limits.deadline_s lets take {deadline:g} s"
        yield document.finding(("http_options", "request_timeout_s"), message)
    port = document.at(("http_options", "port"), options.port)
    if isinstance(port, bool) or not 0 < options.port < 2**16:
        message = f"must be a number from 1 to 65535, not {str(port).lower()}"
        yield document.finding(("http_options", "port"), message)
    application = serve.applications[0]
    yield from _runtime_env(document, (*APPLICATION, "runtime_env"), application.runtime_env)
    for index, override in enumerate(application.deployments):
        if isinstance(override.ray_actor_options, RayActorOptionsSchema):
            where = (*APPLICATION, "deployments", index, "ray_actor_options", "runtime_env")
            yield from _runtime_env(document, where, override.ray_actor_options.runtime_env)


def _runtime_env(document: Document, path: Path, given: dict[str, Any] | None) -> Iterator[Finding]:
    """Find what Ray would refuse in an environment when it starts the first process in it."""
    for key in sorted((given or {}).keys() - RuntimeEnv.known_fields):
        message = unknown("field", str(key), sorted(RuntimeEnv.known_fields))
        yield document.finding((*path, key), message, "note")  # Ray's plugins have fields too
    try:
        RuntimeEnv(**(given or {}))
    except Exception as error:  # Ray's checks raise errors of many kinds
        yield document.finding(path, f"Ray refuses it: {error}")


def _overrides(document: Document, serve: ServeDeploySchema, args: Args) -> Iterator[Finding]:
    spread = {
        f"workers.{name}": spec.gpus
        for name, spec in args.workers.by_name().items()
        if spec.on_gpu and spec.gpus > 1
    }
    for index, override in enumerate(serve.applications[0].deployments):
        path = (*APPLICATION, "deployments", index)
        if override.name not in NAMES:
            message = f"no deployment {override.name!r}; there are {', '.join(NAMES)}"
            yield document.finding((*path, "name"), message)
            continue
        for key in sorted(override.model_fields_set & _OURS.keys()):
            message = f"would replace a setting: write args.{NAMES[override.name]}.{_OURS[key]}"
            yield document.finding((*path, key), message)
        gpus = spread.get(NAMES[override.name])
        if gpus is not None and isinstance(override.max_replicas_per_node, int):
            message = f"{override.max_replicas_per_node}: Ray takes none for a replica over {gpus} "
            message += "GPUs (tensor_parallel x pipeline_parallel), a placement group: leave it out"
            yield document.finding((*path, "max_replicas_per_node"), message)


def _worker(document: Document, path: Path, spec: WorkerSpec) -> Iterator[Finding]:
    yield from _thinking(document, path, spec)
    if spec.runs_vllm:
        yield from _vllm(document, path, spec)
    elif spec.url is None:
        yield from _model(document, (*path, "model"), spec.model)
        yield from _method(document, (*path, "speculation"), spec.speculation)
        for index, also in enumerate(spec.speculation.also):
            yield from _method(document, (*path, "speculation", "also", index), also)


def _thinking(document: Document, path: Path, spec: WorkerSpec) -> Iterator[Finding]:
    """Note how a user's model marks its thought, if its tokenizer is on this machine."""
    folder = folder_of(spec.source, TOKENIZER)
    if folder is None or folder.parent == MODELS or not (folder / TOKENIZER).is_file():
        return
    try:
        tokenizer = load_tokenizer(folder, thinking=parse_thinking(spec.thinking))
    except ConfigError as error:
        named = "tokenizer" if spec.tokenizer else "model"
        yield document.finding((*path, named), str(error))
        return
    where = (*path, "thinking" if "thinking" in spec.model_fields_set else "model")
    yield document.finding(where, f"thinking: {_thinking_of(tokenizer)}", "note")
    if (efforts := PromptRenderer(tokenizer).efforts) is not None and tokenizer.thinks:
        known = f"efforts: {', '.join(efforts.levels)} (the template's {efforts.variable})"
        yield document.finding(where, known, "note")


def _thinking_of(tokenizer: Tokenizer) -> str:
    """Describe how a model marks its thought."""
    if tokenizer.format is None:
        return "none (the steps are the answer)"
    markup = f"{tokenizer.format.open.strip()!r} to {tokenizer.format.close.strip()!r}"
    if not tokenizer.thinks:
        return f"switched off ({tokenizer.format.name}, {markup})"
    return f"{tokenizer.format.name}, {markup}"


def _model(document: Document, path: Path, model: str | None) -> Iterator[Finding]:
    """Check a checkpoint in a local folder: its family, or why it is not computed here.

    Any other name may be a folder where the worker runs, or be on a hub.
    """
    folder = folder_of(model)
    if folder is None or folder.parent == MODELS:
        return
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        family = check_family(config, str(model))
    except (OSError, ValueError, AttributeError) as error:
        yield document.finding(path, f"{model} has a config.json that cannot be read: {error}")
    except ConfigError as error:
        yield document.finding(path, str(error))
    else:
        yield document.finding(path, f"{model} is of the family {family.name}", "note")


def _method(document: Document, path: Path, given: MethodSpec) -> Iterator[Finding]:
    """Check a token-level method's name, and its parameters by the signature of its class."""
    if given.method == "vanilla" and not given.params:
        return
    from workers.speculation import METHODS  # it needs torch: seconds

    if given.method not in METHODS:
        message = f"no method {given.method!r}; there are {', '.join(METHODS)}"
        yield document.finding((*path, "method"), message)
        return
    where = (*path, "params")
    yield from _model(document, (*where, "draft"), given.params.get("draft"))
    known, named = _parameters(METHODS[given.method]), given.method
    if "base" in known:  # the others are those of a lossless method
        base = given.params.get("base", known["base"][1])
        try:
            if not isinstance(base, str) or not getattr(METHODS.get(base), "lossless", False):
                raise ValueError(f"must be a lossless method, not {base!r}")
            METHODS[given.method].check_base(base, METHODS[base])  # type: ignore[attr-defined]
        except ValueError as error:
            yield document.finding((*where, "base"), str(error))
            return
        del known["draft"]  # the base's, if it takes one
        known, named = _parameters(METHODS[base]) | known, f"{named} over {base}"
    config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
    model = create_model("Parameters", __config__=config, **known)
    try:
        model.model_validate(given.params)
    except ValidationError as error:
        for _, place, text in each_error(error.errors(include_url=False), model, "field"):
            yield document.finding((*where, *place), f"{text} ({named})")


def _parameters(method: Callable[..., Any]) -> dict[str, Any]:
    """Return the type and default of a method's parameters, without its target and loader."""
    _, _, *known = inspect.signature(method, eval_str=True).parameters.values()
    return {
        one.name: (one.annotation, ... if one.default is one.empty else one.default)
        for one in known
        if one.kind is one.KEYWORD_ONLY
    }


def _vllm(document: Document, path: Path, spec: WorkerSpec) -> Iterator[Finding]:
    """Check vLLM's arguments by the vLLM that is installed here, if one is."""
    method = {"method": spec.speculation.method, **spec.speculation.params}
    if (not spec.engine_args and spec.speculation.method == "vanilla") or find_spec("vllm") is None:
        return
    try:
        from workers.vllm.arguments import check_engine_args, check_speculation  # it takes seconds
    except (ImportError, OSError, RuntimeError):  # vLLM does not run on this machine
        return
    for check_one, given in ((check_engine_args, spec.engine_args), (check_speculation, method)):
        try:
            check_one(given)
        except ConfigError as error:
            where, _, message = str(error).partition(": ")
            yield document.finding((*path, *where.split(".")), message)


def _shares(document: Document, args: Args) -> Iterator[Finding]:
    """Check that one replica of each worker fits on a GPU that they share."""
    specs = args.workers.by_name()
    shares = {name: spec.gpu for name, spec in specs.items() if spec.on_gpu and spec.gpu < 1}
    total = sum(shares.values())
    if len(shares) == 2 and specs["small"].nodes == specs["large"].nodes and total > 1 + 1e-9:
        message = " + ".join(f"{name} {share:g}" for name, share in shares.items())
        message = f"{message} = {total:g} of one GPU: lower one, or give both a whole GPU (gpu: 1)"
        yield document.finding((*ARGS, "workers", "large", "gpu"), message)
