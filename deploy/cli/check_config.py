"""`baton check-config`: check deployment files and Kubernetes manifests without a cluster."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.common import AsJson, print_json
from orchestrator.errors import ConfigError


def check_config(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Deployment files, manifests, overlay folders; - is stdin."
        ),
    ],
    schema: Annotated[
        Path | None,
        typer.Option(envvar="KUBERAY_SCHEMA", help="Your operator's RayService CRD."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a deployment before anything is started.

    Prints one line per finding: file, line, field, message. The exit status is 1 if there is an
    error; notes do not count. kustomize or kubectl renders overlay folders first, and findings name
    the line of the rendered text.

    [bold]Examples[/]

      baton check-config deploy/local.yaml deploy/gpu.yaml

      baton check-config deploy/kubernetes/overlays/gpu

      kustomize build my/overlay | baton check-config -

      kubectl get crd rayservices.ray.io -o yaml > crd.yaml
      baton check-config --schema crd.yaml deploy/kubernetes/overlays/high-availability
    """
    from deploy.checking.files import check

    reports, unread = [], []
    for file in files:
        try:
            text = sys.stdin.read() if file == "-" else None
            reports.append(check("<stdin>" if file == "-" else file, schema, text))
        except ConfigError as error:
            unread.append((file, str(error)))
    failed = bool(unread) or not all(report.ok for report in reports)
    if as_json:
        rows = [asdict(finding) for report in reports for finding in report.findings]
        rows += [
            {"file": file, "line": 0, "field": "", "message": message, "level": "error"}
            for file, message in unread
        ]
        print_json({"ok": not failed, "findings": rows})
    else:
        for report in reports:
            for finding in report.findings:
                print(finding)
            if report.ok and report.holds:
                print(f"{report.file}: ok ({', '.join(report.holds)})")
        for _, message in unread:
            print(message)
    if failed:
        raise typer.Exit(1)
