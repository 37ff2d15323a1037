"""Golden transcripts: every API, every policy, what a client gets, byte for byte.

    BATON_GOLDEN=write python -m pytest tests/golden

writes them; a change to one is a change that clients see. Ids, dates and times are left out.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.golden.cases import CASES, Case
from tests.orchestrator.serving import HTTP, serving

TRANSCRIPTS = Path(__file__).parent / "transcripts"
WRITES = os.environ.get("BATON_GOLDEN") == "write"
VARYING = (
    (re.compile(r'"(\w*ms)":\s*-?[\d.]+(e-?\d+)?'), r'"\1":0'),
    (re.compile(r'"ms":\s*\{[^}]*\}'), '"ms":{}'),
    (re.compile(r'"(created\w*|completed_at)":\s*[\d.]+'), r'"\1":0'),
    (re.compile(r"\b(chatcmpl|cmpl|resp|rs|msg|fc|call|req|trace)[-_][0-9a-f]{8,}\w*"), r"\1-ID"),
    (re.compile(r'"((?:trace|request)_id)":\s*"[^"]*"'), r'"\1":"ID"'),
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
)


def transcript(case: Case) -> str:
    """What a client gets, less what is different each time."""
    with serving(case.service()) as url:
        reply = HTTP.post(url + case.path, json=case.body, headers=case.headers)
    text = reply.text
    for pattern, kept in VARYING:
        text = pattern.sub(kept, text)
    asked = json.dumps(case.body, indent=1, ensure_ascii=False)
    kind, wait = reply.headers["content-type"], reply.headers.get("retry-after", "-")
    return f"POST {case.path}\n{asked}\n\n{reply.status_code} {kind}, Retry-After: {wait}\n{text}\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_client_gets_what_it_got(case: Case) -> None:
    file = TRANSCRIPTS / f"{case.name}.txt"
    made = transcript(case)
    if WRITES:
        file.write_text(made, encoding="utf-8")
    assert made == file.read_text(encoding="utf-8")


def test_every_transcript_has_a_case() -> None:
    assert {file.stem for file in TRANSCRIPTS.iterdir()} == {case.name for case in CASES}
