"""The inputs of `baton check-config`: deployment files, manifests, overlays."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path as File

from deploy.checking import cluster, deployment
from deploy.checking.documents import Document, Finding, SourceLocation, read
from deploy.checking.overlay import NAMES, rendered
from deploy.checking.schema import Schemas
from orchestrator.errors import ConfigError


@dataclass
class CheckReport:
    """The kinds of documents in a file, and the findings on them."""

    file: str
    holds: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(found.level == "error" for found in self.findings)


def check(file: str, crd: File | None = None, text: str | None = None) -> CheckReport:
    """Check a file or an overlay's folder.

    A folder, or its kustomization file, is rendered. `crd` is a file with the schema of
    RayServices. `text` is the content if there is no file.

    Raises:
        ConfigError: it cannot be read, or manifests cannot be checked here.
    """
    report, path = CheckReport(file), File(file)
    place = file
    if text is None and (path.is_dir() or path.name in NAMES):
        folder = path if path.is_dir() else path.parent
        text, place = rendered(folder), f"{folder} (rendered)"
    documents = read(_text_of(path) if text is None else text, SourceLocation(place, 1))
    if not documents:
        raise ConfigError(f"{file}: is empty")
    manifests = [one for one in documents if one.is_manifest]
    schemas = Schemas(crd) if manifests else None
    for document in documents:
        report.findings += document.twice
        if schemas is not None and document.is_manifest:
            name = document.at(("metadata", "name"), "")
            report.holds.append(f"{document.data.get('kind')} {name}")
            report.findings += _manifest(schemas, document)
        else:
            report.holds.append("deployment file")
            checked = deployment.check(document)
            report.findings += checked.findings
            if checked.deployment is not None:
                report.findings += deployment.lacking_here(document, checked.deployment.args)
    report.findings = list(dict.fromkeys(report.findings))
    return report


def _manifest(schemas: Schemas, document: Document) -> list[Finding]:
    for key in ("apiVersion", "kind"):
        if not isinstance(document.data.get(key), str):
            return [document.finding((key,), "must be a string")]
    shape = schemas.check(document)
    findings = list(shape)
    if document.data["kind"] == "RayService":
        try:
            findings += cluster.check(document)
        except (AttributeError, TypeError, ValueError, IndexError, KeyError):
            if all(found.level == "note" for found in shape):
                raise  # the manifest fits its schema, so this is an error in the check
    return findings


def _text_of(file: File) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {getattr(error, 'strerror', None) or error}") from None
