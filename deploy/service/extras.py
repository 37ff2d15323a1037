"""Packages that only an extra of Baton's installs."""

from __future__ import annotations

from importlib.util import find_spec

from orchestrator.errors import ConfigError


def want(extra: str, what: str, *packages: str) -> None:
    """Raise ConfigError if one of the packages that `what` needs is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError(
                f"{what} needs {package}, which is not installed here: run pip install -e "
                f"'.[{extra}]' in Baton's checkout (PyPI's baton is another project)"
            )
