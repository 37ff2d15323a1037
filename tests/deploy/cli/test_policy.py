"""`baton policy` against a running service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.http.auth import Access, Keys
from orchestrator.http.settings import WhenBusy
from tests.orchestrator.serving import post, service, serving
from tests.orchestrator.state.test_set_aside import spoiled

NO_SERVICE = "http://127.0.0.1:9"


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv("BATON_API_KEY", raising=False)
    monkeypatch.delenv("BATON_ADMIN_KEY", raising=False)
    with serving(service(params={"specreason": {"step_tokens": 40}})) as address:
        yield address


def test_publish_show_and_roll_back(baton: Any, url: str) -> None:
    to = ("--url", url)
    told = baton("policy", "list", *to)
    assert told.status == 0
    assert "specreason (the deployment file's)" in told.out
    note = "fewer [red]rewrites"
    ran = baton("policy", "publish", "specreason:threshold=7:judge=short", "--note", note, *to)
    assert (ran.status, ran.out) == (0, "specreason@1 is published and active\n")
    assert post(url).json()["baton"]["version"] == 1
    ran = baton("policy", "publish", "bild:fallback=0.4", "--no-activate", "--author", "ben", *to)
    assert ran.out == "bild@1 is published\n"
    told = baton("policy", "list", *to).out
    assert [line.split() for line in told.splitlines() if "@" in line] == [
        ["specreason", "1", "specreason@1"]
    ]
    shown = json.loads(baton("policy", "show", "active", "--json", *to).out)
    assert (shown["id"], shown["params"]["threshold"], shown["note"]) == ("specreason@1", 7, note)
    assert note in baton("policy", "show", "specreason", *to).out
    assert shown["params"]["step_tokens"] == 40
    assert "threshold" in baton("policy", "show", "specreason@1", *to).out
    assert "ben" in baton("policy", "show", "bild", *to).out
    assert baton("policy", "rollback", *to).out == "specreason (the deployment file's) is active\n"
    again = baton("policy", "rollback", *to)
    assert (again.status, "nothing to roll back" in again.err) == (2, True)
    assert baton("policy", "rollback", "bild@1", *to).out == "bild@1 is active\n"
    assert post(url).json()["baton"]["policy"] == "bild"
    told = baton("policy", "activate", "default", "--json", *to)
    assert json.loads(told.out)["version"] == 0
    history = json.loads(baton("policy", "history", "--json", *to).out)["data"]
    assert [event["what"] for event in history[:2]] == ["default", "bild@1"]
    assert "policy.rollback" in baton("policy", "history", *to).out


def test_the_policy_of_busy_times_is_listed_while_none_is_active(baton: Any) -> None:
    with serving(service(when_busy=WhenBusy(answers=3))) as url:
        said = "specreason (the deployment file's); large-only while 3 answers or more are made"
        assert said in " ".join(baton("policy", "list", "--url", url).out.split())
        baton("policy", "publish", "bild", "--url", url)
        assert "while 3" not in baton("policy", "list", "--url", url).out


def test_what_is_not_in_effect_is_named_and_left(baton: Any, url: str) -> None:
    with serving(service(store=spoiled())) as address:
        to = ("--url", address)
        listed = baton("policy", "list", *to).out
        answers = "specreason@1, not in effect: specreason, the deployment file's, answers"
        assert answers in " ".join(listed.split())
        assert "not everything is in order: policy/active is not in effect" in listed
        for which in ("active", "specreason@1", "specreason"):
            shown = baton("policy", "show", which, *to)
            assert "not in effect: specreason@1 cannot be used" in " ".join(shown.out.split())
        refused = baton("policy", "activate", "specreason@1", *to)
        assert (refused.status, "params.gone: unknown parameter" in refused.err) == (1, True)
        assert baton("policy", "publish", "specreason:threshold=7", *to).status == 0
        assert "policy/active" not in baton("policy", "list", *to).out


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (("publish", "nonesuch"), 2, "nonesuch"),
        (("publish", "specreason:thresh=7"), 2, "params.thresh: unknown parameter"),
        (("publish", "specreason:threshold=99"), 2, "params.threshold"),
        (("show", "specreason@9"), 2, "no version specreason@9"),
        (("show", "nonesuch"), 2, "nonesuch"),
        (("activate", "specreason@9"), 2, "specreason@9"),
        (("rollback",), 2, "nothing to roll back"),
        (("list", "--url", NO_SERVICE), 1, NO_SERVICE),
        (("list", "--url", "nonsense"), 1, "nonsense"),
    ],
)
def test_mistakes_are_one_line(
    baton: Any,
    url: str,
    command: tuple[str, ...],
    status: int,
    said: str,
) -> None:
    to = () if "--url" in command else ("--url", url)
    ran = baton("policy", *command, *to)
    assert (ran.status, ran.out) == (status, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_the_admin_key(baton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BATON_API_KEY", "BATON_ADMIN_KEY", "BATON_OBSERVER_KEY"):
        monkeypatch.delenv(name, raising=False)
    access = Access(Keys(["sk-user"]), Keys(["sk-admin"]), Keys(["sk-eye"]))
    with serving(service(access=access)) as url:
        publish = ("policy", "publish", "specreason", "--url", url)
        assert "no API key" in baton(*publish).err
        monkeypatch.setenv("BATON_API_KEY", "sk-user")
        assert "needs an admin key" in baton(*publish).err
        assert "observer's key" in baton("policy", "list", "--url", url).err
        monkeypatch.setenv("BATON_OBSERVER_KEY", "sk-eye")
        assert baton("policy", "list", "--url", url).status == 0
        assert "needs an admin key" in baton(*publish).err
        monkeypatch.delenv("BATON_OBSERVER_KEY")
        monkeypatch.setenv("BATON_ADMIN_KEY", "sk-admin")
        assert baton("policy", "list", "--url", url).status == 0
        assert baton(*publish).status == 0
