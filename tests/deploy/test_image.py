"""What the image is built from is there, and reaches the builder."""

from __future__ import annotations

import re

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
