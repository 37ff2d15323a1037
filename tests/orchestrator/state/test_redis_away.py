"""A Redis that is away, slow, wiped, read-only, full of garbage or secured: answers go on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis as plain
import trustme

from orchestrator.errors import (
    ConfigError,
    InvalidRequest,
    StoreError,
    StoreUnavailable,
    UnknownPolicy,
)
from orchestrator.experiments.documents import Experiment
from orchestrator.http.records import OUTCOMES, REWARDS
from orchestrator.http.service import Service
from orchestrator.state.redis import RedisStore
from orchestrator.state.store import StoreState
from orchestrator.state.versions import AuditInfo, Publication
from tests.orchestrator.commits import commit
from tests.orchestrator.redis_server import RedisServer, redis_server
from tests.orchestrator.serving import HTTP, planned, post, service, serving
from tests.orchestrator.serving import until as until_now
from tests.orchestrator.waiting import until

WHO = AuditInfo("anna")


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@asynccontextmanager
async def replica(redis: RedisServer) -> AsyncIterator[Service]:
    """A replica's state, following its store, without an HTTP server."""
    made = service(store=RedisStore(redis.url))
    await made.shared.start()
    try:
        yield made
    finally:
        await made.shared.stop()


async def publish(made: Service, threshold: float) -> None:
    given = Publication(policy="specreason", params={"threshold": threshold})
    await made.shared.versions.publish(given, WHO)


async def threshold(made: Service) -> float:
    context = await planned(made, "baton")
    return context.policy.threshold  # type: ignore[attr-defined,no-any-return]


def version(made: Service) -> int:
    active = made.shared.watcher.current.active
    return 0 if active is None else active.document.version


async def test_running_replicas_pick_a_change_up(redis: RedisServer) -> None:
    async with replica(redis) as one, replica(redis) as other:
        assert one.shared.degraded is other.shared.degraded is None
        for number in range(1, 4):
            await publish(one, number)
            await until(lambda n=number: version(one) == version(other) == n)  # type: ignore[misc]
            assert await threshold(other) == number
        await one.shared.versions.rollback(WHO)
        await until(lambda: version(one) == version(other) == 2)


async def test_away_at_the_start(redis: RedisServer) -> None:
    redis.stop()
    async with replica(redis) as made:
        assert made.shared.degraded is not None
        assert str(redis.port) in made.shared.degraded
        assert (await planned(made, "baton")).version == 0
        redis.start()
        await until(lambda: made.shared.degraded is None)
        await publish(made, 3)
        await until(lambda: version(made) == 1)


async def test_away_in_the_middle_and_wiped(redis: RedisServer) -> None:
    async with replica(redis) as made:
        await publish(made, 3)
        await until(lambda: version(made) == 1)
        other = Publication(policy="bild", activate=False)
        await made.shared.versions.publish(other, WHO)
        await planned(made, "specreason@1")
        await planned(made, "bild@1")
        await made.shared.versions.publish(other, WHO)
        await until(lambda: made.shared.watcher.current.latest.get("bild") == 2)
        redis.stop()
        await until(lambda: made.shared.degraded is not None)
        made.shared.outbox.event(OUTCOMES, {"n": 1})
        assert await threshold(made) == 3
        for pin in ("specreason@1", "bild@1"):
            assert (await planned(made, pin)).version == 1  # has been read before
        with pytest.raises(StoreUnavailable):
            await planned(made, "specreason@2")
        redis.start()  # with nothing of what it held
        await until(lambda: made.shared.watcher.error == "the store is empty: it has been wiped")
        assert await threshold(made) == 3
        await until(lambda: made.shared.outbox.error is None)
        assert len(await made.shared.store.read(OUTCOMES)) == 1
        await publish(made, 4)  # version 1 once more, and another one
        await until(lambda: made.shared.degraded is None)
        assert await threshold(made) == 4
        assert (await planned(made, "specreason@1")).policy == (await planned(made, "baton")).policy


async def test_what_a_wiped_store_lacks_comes_into_no_effect(redis: RedisServer) -> None:
    async with replica(redis) as made:
        await publish(made, 3)
        await until(lambda: version(made) == 1)
        await planned(made, "specreason@1")  # is remembered
        redis.admin.flushall()
        await until(lambda: made.shared.watcher.error == "the store is empty: it has been wiped")
        for change in (made.shared.versions.activate("specreason@1", WHO),
                       made.shared.versions.rollback(WHO, "specreason@1")):  # fmt: skip
            with pytest.raises(UnknownPolicy):
                await change
        arms = [{"name": name, "policy": "specreason@1"} for name in ("one", "two")]
        with pytest.raises(InvalidRequest, match="specreason@1"):
            await made.shared.experimenter.runs.start(
                Experiment.parse({"name": "trial", "arms": arms}), WHO
            )
        assert await made.shared.store.state() == StoreState()


@pytest.mark.parametrize("renamed", [False, True])
async def test_an_older_backup_while_it_runs(redis: RedisServer, renamed: bool) -> None:
    """What was read of versions and experiments with the same names is read anew."""
    admin = redis.admin

    async def trial(made: Service, policy: str) -> None:
        arms = [{"name": "one", "policy": policy}, {"name": "two", "policy": policy}]
        experiment = Experiment.parse({"name": "trial", "arms": arms})
        await made.shared.experimenter.runs.start(experiment, WHO)

    def arm(made: Service) -> str | None:
        found = made.shared.watcher.current.experiments
        return found[0].arms["one"].name if found else None

    async with replica(redis) as made, replica(redis) as other:
        await publish(made, 3)
        backup = {key: admin.dump(key) for key in admin.scan_iter()}
        await publish(other, 4)
        await trial(other, "bild")
        await until(lambda: version(made) == 2 and arm(made) == "bild")
        assert (await planned(made, "specreason@2")).policy.threshold == 4  # type: ignore[attr-defined]
        with admin.pipeline() as pipe:
            pipe.flushall()
            for key, data in backup.items():
                pipe.restore(key, 0, data)
            if renamed:  # as docs/operate.md has it
                pipe.hset("baton:pointers", "", f"{int(time.time())}:1")
            pipe.execute()
        await until(lambda: version(made) == version(other) == 1)
        await publish(other, 9)
        await trial(other, "large-only")
        await until(lambda: version(made) == 2 and arm(made) == "large-only")
        assert (await planned(made, "specreason@2")).policy.threshold == 9  # type: ignore[attr-defined]


def test_no_answer_waits_for_a_store_that_says_nothing(redis: RedisServer) -> None:
    with serving(service(store=RedisStore(redis.url, timeout_s=3600))) as url:
        redis.freeze()
        try:  # one wait for the store would last an hour
            assert {post(url).status_code for _ in range(5)} == {200}
        finally:
            redis.thaw()


def test_slow_for_those_who_ask(redis: RedisServer) -> None:
    """The server takes connections and says nothing: nobody waits for it."""
    with serving(service(store=RedisStore(redis.url))) as url:
        made = HTTP.post(
            f"{url}/v1/policies", json={"policy": "specreason", "params": {"threshold": 1}}
        )
        assert made.status_code == 201
        redis.freeze()
        try:
            until_now(lambda: HTTP.get(f"{url}/ready").json()["degraded"])
            replies = [post(url) for _ in range(5)]
            assert {reply.json()["baton"]["version"] for reply in replies} == {1}
            trace = replies[0].json()["baton"]["trace_id"]
            assert HTTP.get(f"{url}/v1/traces/{trace}").status_code == 200
            given = {"trace_id": trace, "reward": 1}
            assert HTTP.post(f"{url}/v1/feedback", json=given).status_code == 200
            reply = HTTP.get(f"{url}/v1/traces/{'0' * 32}")
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_unavailable")
            assert reply.headers["retry-after"]
            reply = HTTP.post(f"{url}/v1/policies", json={"policy": "bild"})
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_unavailable")
            told = HTTP.get(f"{url}/v1/policies").json()
            assert told["active"] == "specreason@1"
            assert "no answer" in told["degraded"]
            reply = HTTP.get(f"{url}/ready")
            assert reply.status_code == 200
            assert str(redis.port) not in reply.text  # an open door says where nothing is
            assert 'baton_store_waiting{kind="event"} 6.0' in HTTP.get(f"{url}/metrics").text
        finally:
            redis.thaw()
        until_now(lambda: not HTTP.get(f"{url}/ready").json()["degraded"])
        until_now(lambda: redis.admin.xlen(f"baton:stream:{OUTCOMES}") >= 5)
        until_now(lambda: redis.admin.xlen(f"baton:stream:{REWARDS}") >= 1)


async def test_read_only(redis: RedisServer) -> None:
    async with replica(redis) as made:
        await publish(made, 3)
        await until(lambda: version(made) == 1)
        redis.admin.replicaof("127.0.0.1", str(redis.port))  # of itself: a replica that is whole
        made.shared.outbox.event(OUTCOMES, {"n": 1})
        await until(lambda: made.shared.degraded is not None)
        assert await threshold(made) == 3
        with pytest.raises(StoreUnavailable):
            await publish(made, 4)
        redis.admin.replicaof("NO", "ONE")
        await until(lambda: made.shared.degraded is None)
        await until(lambda: redis.admin.xlen(f"baton:stream:{OUTCOMES}") == 1)


def _no_hash(admin: plain.Redis) -> None:
    admin.set("baton:pointers", b"garbage")


def _no_version(admin: plain.Redis) -> None:
    admin.hset("baton:pointers", mapping={"": "?", "policy/active": "rm -rf"})


def _a_version_that_is_not_there(admin: plain.Redis) -> None:
    admin.hset("baton:pointers", mapping={"": "0a:9", "policy/active": "specreason@7"})


def _no_number(admin: plain.Redis) -> None:
    admin.hset("baton:pointers", mapping={b"": b"\xff", b"\xff": b"\xff"})
    admin.hset("baton:pointers", "policy/latest/specreason", "many")


def _another_document(admin: plain.Redis) -> None:
    admin.set("baton:document:policy/specreason/1", b'{"policy": "rm"}')
    admin.hset("baton:pointers", "", "0a:9")


@pytest.mark.parametrize(
    "spoil",
    [_no_hash, _no_version, _a_version_that_is_not_there, _no_number, _another_document],
)
async def test_garbage(redis: RedisServer, spoil: Callable[[plain.Redis], None]) -> None:
    async with replica(redis) as made:
        await publish(made, 3)
        await until(lambda: version(made) == 1)
        spoil(redis.admin)
        await until(lambda: made.shared.degraded is not None)
        assert await threshold(made) == 3
        redis.admin.flushall()
        await publish(made, 5)
        await until(lambda: made.shared.degraded is None)
        assert await threshold(made) == 5


async def test_garbage_in_every_other_place(redis: RedisServer) -> None:
    store = RedisStore(redis.url)
    admin = redis.admin
    admin.set("baton:stream:s", "x")
    admin.xadd("baton:stream:t", {"other": "x"})
    admin.lpush("baton:value:v", "x")
    admin.lpush("baton:document:d", "x")
    admin.hset("baton:pointers", "", b"\xff")  # a revision of nobody's
    for call in (store.append("s", [b"x"], keep=5), store.read("s")):
        with pytest.raises(StoreError):
            await call
    with pytest.raises(StoreError):
        await store.get("v")
    await store.put("v", b"y", ttl_s=9)
    assert await store.get("v") == b"y"
    assert await store.documents(["d"]) == [None]
    assert [entry.event for entry in await store.read("t")] == [b""]
    made = await commit(store, {"p": b"y"})
    assert await store.state() == StoreState(made, {"p": b"y"})
    await store.aclose()


async def test_a_failing_commit_changes_nothing(redis: RedisServer) -> None:
    store = RedisStore(redis.url)
    redis.admin.set("baton:stream:audit", "x")
    with pytest.raises(StoreError):
        await commit(store, {"p": b"y"}, {"d": b"x"})
    assert await store.state() == StoreState()
    assert await store.documents(["d"]) == [None]
    await store.aclose()


RIGHTS = "~baton:* +@read +@write +@transaction +@connection +eval"


async def test_a_user_with_rights_for_the_prefix_alone(redis: RedisServer) -> None:
    admin = redis.admin  # its connection outlasts the change of the password
    admin.acl_setuser("baton", enabled=True, passwords=["+s3cret"], reset=True, reset_keys=True)
    admin.execute_command("ACL", "SETUSER", "baton", *RIGHTS.split())
    admin.config_set("requirepass", "other")
    url = f"redis://baton@127.0.0.1:{redis.port}/0"
    for password in (None, "wrong"):
        shut = RedisStore(url, password=password)
        with pytest.raises(StoreUnavailable) as info:
            await shut.state()
        assert "s3cret" not in str(info.value)
        await shut.aclose()
    store = RedisStore(url, password="s3cret", timeout_s=60)
    await commit(store, {"p": b"y"}, {"d": b"x"}, b"z")
    await store.append("s", [b"1"], keep=10)
    await store.put("v", b"x", ttl_s=9)
    assert await store.documents(["d"]) == [b"x"]
    first, seconds, second = await store.time(), admin.time(), await store.time()
    assert isinstance(seconds, tuple)
    assert first - 0.001 <= seconds[0] + seconds[1] / 1e6 <= second + 1.0
    ((entry,), third) = await store.newest("s", 1), await store.time()
    assert (entry.event, entry.time <= first, first <= third) == (b"1", True, True)
    assert admin.xlen("baton:stream:clock") == 1
    assert await store.get("v") == b"x"
    await store.aclose()
    elsewhere = RedisStore(url, password="s3cret", prefix="others:", timeout_s=60)
    with pytest.raises(StoreUnavailable, match=r"(?i)no permission"):
        await elsewhere.state()
    await elsewhere.aclose()


async def test_prefixes_keep_deployments_apart(redis: RedisServer) -> None:
    one = RedisStore(redis.url, timeout_s=60)
    other = RedisStore(redis.url, prefix="staging:", timeout_s=60)
    await commit(one, {"p": b"y"}, {"d": b"x"})
    await one.put("v", b"x", ttl_s=9)
    assert await other.state() == StoreState()
    assert (await other.documents(["d"]), await other.get("v")) == ([None], None)
    assert all(key.startswith(b"baton:") for key in redis.admin.scan_iter())
    assert 0 < redis.admin.pttl("baton:value:v") <= 9000
    await one.aclose()
    await other.aclose()


async def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    stranger = trustme.CA()
    stranger.cert_pem.write_to_path(tmp_path / "stranger.pem")
    files = ("cert", "key", "ca")
    options = [f"--tls-{name}-file={tmp_path}/{name}.pem" for name in files[:2]]
    options += [f"--tls-ca-cert-file={tmp_path}/ca.pem", "--tls-auth-clients=no"]
    flat = [part for option in options for part in option.split("=")]
    with redis_server() as plain_one:
        port = plain_one.port
    with redis_server("--tls-port", str(port), *flat):
        url = f"rediss://localhost:{port}/0?ssl_ca_certs={tmp_path}"
        store = RedisStore(f"{url}/ca.pem", timeout_s=5)
        made = await commit(store)
        assert (await store.state()).revision == made
        await store.aclose()
        for wrong in (
            f"{url}/stranger.pem",
            f"rediss://127.0.0.1:{port}?ssl_ca_certs={tmp_path}/ca.pem",
            f"rediss://localhost:{port}",
        ):
            shut = RedisStore(wrong, timeout_s=5)
            with pytest.raises(StoreUnavailable):
                await shut.state()
            await shut.aclose()
        monkeypatch.setenv("SSL_CERT_FILE", f"{tmp_path}/ca.pem")  # redis-py reads it
        store = RedisStore(f"rediss://localhost:{port}", timeout_s=5)
        assert (await store.state()).revision == made
        await store.aclose()


@pytest.mark.parametrize(
    "url", ["redis://h:port", "redis://h/0?nonsense=1", "http://h", "redis://h:99999999"]
)
def test_no_url_of_rediss(url: str) -> None:
    with pytest.raises(ConfigError):
        RedisStore(url)
