"""What the image is built from reaches the builder, and compose runs it."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import yaml

from deploy.launch.deployment_file import load
from deploy.service.config import Auth
from tests.deploy.conftest import ROOT


def test_what_is_copied_is_not_ignored() -> None:
    ignored, *kept = (ROOT / ".dockerignore").read_text().split()
    assert ignored == "*"
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    copied = [
        source.lstrip("/")
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert "requirements-vllm.lock" in copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source.partition('/')[0]}" in kept, source


def test_compose_serves_a_file_with_the_store_and_the_keys_that_it_names() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    baton = services["baton"]
    *_, file = baton["command"]
    args = load(ROOT / file).args
    assert isinstance(args.auth, Auth)
    named = {args.auth.api_keys_env, args.auth.admin_key_env, args.store.password_env}
    assert named == set(baton["environment"])
    assert args.store.url is not None
    assert urlsplit(args.store.url).hostname in services
    assert f" AS {baton['build']['target']}\n" in (ROOT / "deploy" / "Dockerfile").read_text()
