"""A deployment file read and checked: Ray Serve's part, and the `args` that are Baton's own.

Ray Serve hands a service its `args` alone, so only tools read whole files. Unknown keys are refused
by name: Serve's own schema would let a typo pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ValidationError

from deploy.service.config import Args, explain
from orchestrator.errors import ConfigError
from orchestrator.validation import unknown

if TYPE_CHECKING:  # Ray Serve takes seconds to import, and tools want `args` alone
    from ray.serve.schema import ServeDeploySchema

DEFAULT_FILE = Path(__file__).parents[1] / "local.yaml"


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
    with _errors_of(path):
        return _parse(_read(path), port)


def load_args(path: Path | str) -> Args:
    """Read and check a deployment file's `args` alone, as `load`."""
    with _errors_of(path):
        return _parse_args(_read(path))


@contextmanager
def _errors_of(path: Path | str) -> Iterator[None]:
    """Name the file in errors."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error)}") from None


def _read(path: Path | str) -> dict[str, Any]:
    data = yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))
    if not isinstance(data, dict):
        raise ConfigError("not a mapping; see deploy/local.yaml for a deployment file")
    return data


def _parse_args(data: dict[str, Any]) -> Args:
    match data.get("applications"):
        case [dict(application)]:
            args = application.get("args") or {}
        case _:
            raise ConfigError("applications: exactly one is expected")
    try:
        return Args.model_validate(args)
    except ValidationError as error:
        raise ConfigError(f"applications.0.args.{explain(error, Args)}") from None


def _parse(data: dict[str, Any], port: int | None) -> Deployment:
    from ray.serve.schema import ServeDeploySchema

    for path, message in unknown_keys(ServeDeploySchema, data):
        raise ConfigError(f"{'.'.join(map(str, path))}: {message}")
    if port is not None:
        data = {**data, "http_options": {**(data.get("http_options") or {}), "port": port}}
    serve = ServeDeploySchema.model_validate(data)
    args = _parse_args(data)
    args.check_host(serve.http_options.host)
    return Deployment(serve, args)


def unknown_keys(
    model: type[BaseModel], data: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Paths of keys that Ray Serve's schema would silently ignore, and what to say of each."""
    if isinstance(data, list):
        for index, item in enumerate(data):
            yield from unknown_keys(model, item, (*path, index))
    for key, value in data.items() if isinstance(data, dict) else ():
        if (field := model.model_fields.get(key)) is None:
            hint = unknown("field", str(key), list(model.model_fields))
            if not path and key in Args.model_fields:
                hint = "unknown field; it goes under applications[0].args"
            yield (*path, key), hint
        elif (inner := _model_of(field.annotation)) is not None:
            yield from unknown_keys(inner, value, (*path, key))


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model inside `X`, `X | None` or `list[X]`; none if a value may be anything else."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = [arg for arg in getattr(annotation, "__args__", ()) if arg is not type(None)]
    return _model_of(inner[0]) if len(inner) == 1 else None
