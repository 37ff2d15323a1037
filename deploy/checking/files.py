"""The inputs of `baton check-config`: deployment files, manifests, overlays."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from deploy.checking import cluster, deployment, schema
from deploy.checking.documents import Document, Finding, read
from orchestrator.errors import ConfigError

_KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_LONGEST_S = 60.0


@dataclass
class CheckReport:
    """The kinds of documents in a file, and the findings on them."""

    file: str
    holds: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(found.level == "error" for found in self.findings)


def check(file: str, crd: Path | None = None, text: str | None = None) -> CheckReport:
    """Check a file, or an overlay's folder (or its kustomization file), which is rendered first.

    `crd` is a file with the schema of RayServices. `text` is the content if there is no file.

    Raises:
        ConfigError: it cannot be read, or manifests cannot be checked here.
    """
    report, path, place = CheckReport(file), Path(file), file
    if text is None and (path.is_dir() or path.name in _KUSTOMIZATIONS):
        folder = path if path.is_dir() else path.parent
        text, place = rendered(folder), f"{folder} (rendered)"
    documents = read(_text_of(path) if text is None else text, place)
    if not documents:
        raise ConfigError(f"{file}: is empty")
    ray = schema.rayservice(crd) if any(one.is_manifest for one in documents) else None
    for document in documents:
        report.findings += document.twice
        if document.is_manifest:
            name = document.at(("metadata", "name"), "")
            report.holds.append(f"{document.data.get('kind')} {name}")
            report.findings += _check_manifest(document, ray)
        else:
            report.holds.append("deployment file")
            findings, found = deployment.check(document)
            report.findings += findings
            if found is not None:
                report.findings += deployment.lacking_here(document, found.args)
    report.findings = list(dict.fromkeys(report.findings))
    return report


def rendering_tool() -> tuple[str, str] | None:
    """Return the command that renders a kustomize folder; None if none is installed."""
    tools = (("kustomize", "build"), ("kubectl", "kustomize"))
    return next((words for words in tools if shutil.which(words[0])), None)


def rendered(folder: Path) -> str:
    """Render the manifests of a kustomize folder as YAML.

    Raises:
        ConfigError: no tool is installed, or the tool refuses the folder.
    """
    if (words := rendering_tool()) is None:
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


def _check_manifest(document: Document, ray: dict[str, object] | None) -> list[Finding]:
    for key in ("apiVersion", "kind"):
        if not isinstance(document.data.get(key), str):
            return [document.finding((key,), "must be a string")]
    findings = list(schema.check(document, ray))
    fits = all(found.level == "note" for found in findings)
    if document.data["kind"] == "RayService":
        try:
            findings += cluster.check(document)
        except (AttributeError, TypeError, ValueError, IndexError, KeyError):
            if fits:
                raise  # the manifest fits its schema, so this is an error in the check
    return findings


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {getattr(error, 'strerror', None) or error}") from None
