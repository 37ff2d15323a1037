"""A kustomize folder, rendered by kustomize or kubectl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from orchestrator.errors import ConfigError

NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_TOOLS = (("kustomize", "build"), ("kubectl", "kustomize"))
_LONGEST_S = 60.0


def tool() -> tuple[str, str] | None:
    """Return the command that renders a folder; None if none is installed."""
    return next((words for words in _TOOLS if shutil.which(words[0])), None)


def rendered(folder: Path) -> str:
    """Render the manifests of a kustomize folder as YAML.

    Raises:
        ConfigError: no tool is installed, or the tool refuses the folder.
    """
    if (words := tool()) is None:
        raise ConfigError(
            f"{folder}: expected kustomize or kubectl to render this folder, and neither is "
            "installed; render it elsewhere and give the manifests: baton check-config FILE"
        )
    command = [*words, str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{folder}: {words[0]} took more than {_LONGEST_S:g} s") from None
    if done.returncode:
        raise ConfigError(f"{folder}: {words[0]}: {' '.join(done.stderr.split())}")
    return done.stdout
