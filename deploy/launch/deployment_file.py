"""A deployment file read and checked: Ray Serve's part, and the `args` that are Baton's own.

Ray Serve hands a service its `args` alone, so only tools read whole files. Unknown keys are refused
by name: Serve's own schema would let a typo pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ValidationError

from deploy.service.config import Args
from orchestrator.errors import ConfigError
from orchestrator.validation import each_error, unknown

if TYPE_CHECKING:  # Ray Serve takes seconds to import, and tools want `args` alone
    from ray.serve.schema import ServeDeploySchema

Place = tuple[str | int, ...]
Fault = tuple[Place, str]
"""What is wrong, and at which keys and indexes of the file."""

DEFAULT_FILE = Path(__file__).parents[1] / "local.yaml"
BUILDER = "deploy.app:build"
APPLICATION = ("applications", 0)
ARGS = (*APPLICATION, "args")
_MISSING = {
    "applications": "is missing; Baton's own fields go under applications[0].args "
    "(deploy/local.yaml shows how)",
    "import_path": f"is missing; write import_path: {BUILDER}",
}
"""Messages for these fields if they are missing."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment file that has been checked: Ray Serve's part and ours."""

    serve: ServeDeploySchema
    args: Args

    @property
    def url(self) -> str:
        options = self.serve.http_options
        host = "127.0.0.1" if options.host in ("0.0.0.0", "::", None) else options.host  # noqa: S104
        prefix = (self.serve.applications[0].route_prefix or "/").rstrip("/")
        return f"http://{f'[{host}]' if ':' in host else host}:{options.port}{prefix}"


def load(path: Path | str, *, port: int | None = None) -> Deployment:
    """Read and check a deployment file; `port` replaces the file's.

    Raises:
        ConfigError: names the file and the key that is wrong.
    """
    deployment: Deployment = _read(path, partial(parse, port=port))
    return deployment


def load_args(path: Path | str) -> Args:
    """Read and check a deployment file's `args` alone, as `load`."""
    args: Args = _read(path, _parse_args)
    return args


def _read(path: Path | str, parse: Callable[[Any], tuple[list[Fault], Any]]) -> Any:
    """Return what `parse` makes of a file; raise ConfigError for the first fault."""
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    faults, found = parse(data)
    for place, message in faults:
        where = f"{'.'.join(map(str, place))}: " if place else ""
        raise ConfigError(f"{path}: {where}{message}")
    return found


def parse(data: Any, port: int | None = None) -> tuple[list[Fault], Deployment | None]:
    """Return what is wrong with a deployment file, and what it says if its types are right."""
    from ray.serve.schema import ServeDeploySchema

    if not isinstance(data, dict):
        return [((), "not a mapping; see deploy/local.yaml for a deployment file")], None
    faults = list(_unknown_keys(ServeDeploySchema, data))
    try:
        serve = ServeDeploySchema.model_validate(data)
    except ValidationError as error:
        named = {place for place, _ in faults}
        others = _faults(error, ServeDeploySchema)
        return faults + [one for one in others if one[0] not in named], None
    if port is not None:
        serve.http_options.port = port
    wrong, args = _parse_args(data)
    if args is None:
        return faults + wrong, None
    try:
        args.check_host(serve.http_options.host)
    except ConfigError as error:
        faults.append((("http_options", "host"), str(error).partition(": ")[2]))
    return faults, Deployment(serve, args)


def _parse_args(data: Any) -> tuple[list[Fault], Args | None]:
    """As `parse`, of the `args` alone."""
    match data:
        case {"applications": [{**application}]}:
            args = application.get("args") or {}
        case _:
            return [(("applications",), "exactly one is expected, as in deploy/local.yaml")], None
    try:
        return [], Args.model_validate(args)
    except ValidationError as error:
        return [((*ARGS, *place), text) for place, text in _faults(error, Args)], None


def _faults(error: ValidationError, model: type[BaseModel]) -> Iterator[Fault]:
    for kind, place, text in each_error(error.errors(include_url=False), model, "field"):
        yield place, _MISSING.get(str(place[-1]), text) if kind == "missing" else text


def _unknown_keys(model: type[BaseModel], data: Any, path: Place = ()) -> Iterator[Fault]:
    """Yield the keys that Ray Serve's schema would silently ignore."""
    if isinstance(data, list):
        for index, item in enumerate(data):
            yield from _unknown_keys(model, item, (*path, index))
    for key, value in data.items() if isinstance(data, dict) else ():
        if (field := model.model_fields.get(key)) is None:
            hint = unknown("field", str(key), list(model.model_fields))
            if not path and key in Args.model_fields:
                hint = "unknown field; it goes under applications[0].args"
            yield (*path, key), hint
        elif (inner := _model_of(field.annotation)) is not None:
            yield from _unknown_keys(inner, value, (*path, key))


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model inside `X`, `X | None` or `list[X]`; none if a value may be anything else."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = [arg for arg in getattr(annotation, "__args__", ()) if arg is not type(None)]
    return _model_of(inner[0]) if len(inner) == 1 else None
