"""The pure parts of the HTTP surface, on many inputs."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, InvalidRequest
from orchestrator.http.auth import Keys
from orchestrator.http.chat_schema import ChatRequest
from orchestrator.http.rendering import Stripped
from orchestrator.http.schemas import UNSUPPORTED, parse_request
from orchestrator.types import GREEDY

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)
NAMES = sorted({*ChatRequest.model_fields, *UNSUPPORTED})


@given(st.lists(st.text(" \n\tab")))
def test_stripping_in_pieces(pieces: list[str]) -> None:
    strip = Stripped()
    assert "".join(strip.feed(piece) for piece in pieces) == "".join(pieces).strip()


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_any_body_is_understood_or_refused(body: dict[str, object]) -> None:
    whole = {"model": "baton", "messages": [{"role": "user", "content": "hi"}], **body}
    with suppress(InvalidRequest):
        asked = parse_request(json.dumps(whole).encode(), ChatRequest)
        assert asked.conversation
        assert asked.sampling(GREEDY).temperature >= 0


@settings(max_examples=80)
@given(st.binary())
def test_any_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_request(body, ChatRequest)


def test_roles_and_parts() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    turns = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    asked = parse_request(json.dumps({"model": "m", "messages": turns}).encode(), ChatRequest)
    said = [(message.role, message.content) for message in asked.conversation]
    assert said == [("system", "be brief"), ("user", "one\ntwo")]


def test_keys() -> None:
    keys = Keys(["sk-a", "sk-b"])
    assert keys.owner("Bearer sk-a") != keys.owner("bearer sk-b")
    for header in (None, "", "Bearer", "Bearer ", "Bearer sk-", "Basic sk-a", "sk-a", "Bearer é"):
        assert keys.owner(header) is None
    assert not Keys()
    for wrong in ("", " ", "a b", "schlüssel", "a\n"):
        with pytest.raises(ConfigError):
            Keys([wrong])
