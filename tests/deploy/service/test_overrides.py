"""Settings of the environment take the place of a deployment file's."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.launch.deployment_file import load
from orchestrator.errors import ConfigError
from orchestrator.http.settings import ServiceLimits
from tests.deploy.service.test_config import ARGS, write


def test_the_environment_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_STORE", "redis://store:6379/1")
    monkeypatch.setenv("BATON_LIMITS__CONCURRENT", "8")
    monkeypatch.setenv("BATON_WORKERS__LARGE__ROWS", "3")
    monkeypatch.setenv("BATON_POLICY__DEFAULT", "large-only")
    monkeypatch.setenv("BATON_API_KEY", "a client's, of no field")
    args = load(write(tmp_path, {f"{ARGS}.limits.concurrent": 5})).args
    assert (args.store.url, args.limits.concurrent) == ("redis://store:6379/1", 8)
    assert (args.workers.large.rows, args.workers.large.model) == (3, "embedded:large")
    assert args.policy.default == "large-only"


@pytest.mark.parametrize(("text", "kept"), [("", True), (" ", True), ("null", False)])
def test_a_blank_variable_is_not_set(
    text: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, {f"{ARGS}.auth": {"api_keys_env": "BATON_API_KEYS"}})
    monkeypatch.setenv("BATON_AUTH", text)
    assert (load(file).args.auth is not None) == kept


def test_null_removes_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_WORKERS__LARGE__URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("BATON_LIMITS__MAX_TOKENS", "null")
    with pytest.raises(ConfigError, match="is the server's own if a url is given"):
        load(write(tmp_path))
    for name in ("DEVICE", "DTYPE", "REPLICAS", "ROWS", "THREADS", "SPECULATION"):
        monkeypatch.setenv(f"BATON_WORKERS__LARGE__{name}", "null")
    args = load(write(tmp_path, {f"{ARGS}.limits.max_tokens": 5})).args
    assert args.workers.large.url == "http://127.0.0.1:9/v1"
    assert args.limits.max_tokens == ServiceLimits().max_tokens


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("BATON_LIMITS__CONCURRENT", "many", "limits.concurrent"),
        ("BATON_LIMITS__TYPO", "1", "limits.typo: unknown field"),
        ("BATON_STORE__PREFIX", "x:", r"\$BATON_STORE__PREFIX: expected an object"),
        ("BATON_STORE", "[", "store"),
    ],
)
def test_a_wrong_override_is_refused(
    name: str, text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError, match=said):
        load(write(tmp_path))
