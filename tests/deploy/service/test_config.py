"""Deployment files: what is right is typed, what is wrong is named in one line."""

from __future__ import annotations

import copy
import hashlib
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.launch.deployment_file import DEFAULT_FILE, load
from deploy.service.config import Args, Auth
from deploy.service.worker_spec import LOSSY, RUN_AHEAD, MethodSpec, Workers, WorkerSpec
from orchestrator.errors import ConfigError
from orchestrator.http.auth import Access, Keys
from orchestrator.types import TokenPrices
from policies import POLICIES
from policies.judge import Judging
from workers.embedded.checkpoints import MODELS
from workers.speculation import METHODS
from workers.vllm import is_lossy

GOOD: dict[str, Any] = yaml.safe_load(DEFAULT_FILE.read_text())


def write(folder: Path, change: dict[str, Any] | None = None, **http: Any) -> Path:
    """local.yaml with other keys; `change` is dotted path -> value."""
    data = copy.deepcopy(GOOD)
    for path, value in (change or {}).items():
        *parents, last = path.split(".")
        place: Any = data
        for key in parents:
            place = place[int(key)] if key.isdigit() else place.setdefault(key, {})
        place[last] = value
    data["http_options"].update(http)
    file = folder / "some.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


ARGS = "applications.0.args"


def test_local_yaml_spells_out_what_the_contract_promises() -> None:
    deployment = load(DEFAULT_FILE)
    assert deployment.url == "http://127.0.0.1:8000"
    assert load(DEFAULT_FILE, port=9000).url == "http://127.0.0.1:9000"
    assert deployment.args.workers.large.model == "embedded:large"
    application = GOOD["applications"][0]
    assert {"route_prefix", "import_path"} <= application.keys()
    assert application["args"]["store"] == "memory"


def test_a_lossy_method_is_marked(tmp_path: Path) -> None:
    lossy = {name for name, made in METHODS.items() if not made.lossless}  # type: ignore[attr-defined]
    assert lossy == LOSSY
    change = {f"{ARGS}.workers.large.speculation": {"method": "reflective", "params": {}}}
    labels = load(write(tmp_path, change)).args.workers.speculation()
    assert labels == {"small": "vanilla", "large": "reflective (lossy)"}
    server = Workers.model_validate(
        {"small": {"model": "embedded:small"}, "large": {"model": "m", "url": "http://h/v1"}}
    )
    assert server.speculation()["large"] == "the server's"
    assert server.methods() == {}


def test_the_small_model_runs_ahead_unless_the_file_says_how_far() -> None:
    url = "http://h/v1"
    for small, ahead in (
        ({"model": "m"}, RUN_AHEAD),
        ({"model": "m", "threads": 1}, RUN_AHEAD),
        ({"model": "m", "run_ahead": 0}, 0),
        ({"model": "m", "url": url}, None),
        ({"model": "m", "url": url, "run_ahead": 8}, 8),
    ):
        workers = Workers.model_validate({"small": small, "large": {"model": "m"}})
        assert (workers.small.run_ahead, workers.large.run_ahead) == (ahead, None)


def test_what_a_request_may_ask_of_the_large_worker(tmp_path: Path) -> None:
    also = [{"method": "lookup"}, {"method": "reflective", "params": {"draft": "embedded:small"}}]
    change = {f"{ARGS}.workers.large.speculation": {"method": "vanilla", "also": also}}
    workers = load(write(tmp_path, change)).args.workers
    assert workers.speculation() == {"small": "vanilla", "large": "vanilla"}
    labels = {"vanilla": "vanilla", "lookup": "lookup", "reflective": "reflective (lossy)"}
    assert workers.methods() == labels


@pytest.mark.parametrize(
    ("sampler", "lossy"), [("standard", False), ("block", False), ("synthetic", True)]
)
def test_speculation_of_vllm_that_changes_the_text_is_lossy(sampler: str, lossy: bool) -> None:
    method = MethodSpec(method="ngram", params={"rejection_sample_method": sampler})
    assert method.lossy is is_lossy(method.params) is lossy


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("workers.large.rowz", 1, "args.workers.large.rowz: unknown field"),
        ("workers.large.rows", 0, "args.workers.large.rows: "),
        ("workers.large.replicas", {"min": 3, "max": 2},
         "workers.large.replicas: min 3 is more than max 2"),
        ("workers.large.replicas", 0, "workers.large.replicas.min: "),
        ("workers.large.replicas", True, "workers.large.replicas: "),
        ("workers.large.gpu", 1.5, "workers.large.gpu: "),
        ("orchestrator", {"replica": 2}, "orchestrator.replica: unknown field"),
        ("workers.large.device", "tpu", "args.workers.large.device: "),
        ("workers.large.model", None, "args.workers.large: model is missing"),
        ("workers.small.url", "http://x", "workers.small: device: is the server's own"),
        ("workers.small", {"url": "http://x"}, "workers.small: model is missing"),
        ("workers.small", {"url": "x", "model": "m"}, "workers.small: url: 'x' is not"),
        ("workers.small.tokenizer", "t", "workers.small: tokenizer: goes with url"),
        ("workers.small.ca", "a.pem", "workers.small: ca: goes with url"),
        ("workers.small", {"url": "https://x", "model": "m", "ca": "/no/a.pem"},
         "workers.small: ca: expected a file of certificates"),
        ("workers.small", {"url": "http://x", "model": "m", "ca": "/no/a.pem"},
         "workers.small: ca: goes with a url of https"),
        ("workers.small.silence_s", 0, "workers.small.silence_s: "),
        ("workers.small.patience_s", 0, "workers.small.patience_s: "),
        ("workers.small", {"url": "http://x", "model": "m", "patience_s": 9},
         "workers.small: patience_s: is the server's own"),
        ("workers.small.speculation.methods", "x", "speculation.methods: unknown field"),
        ("workers.large.speculation.also", [{}], "also.0.method: "),
        ("workers.large.speculation.also", [{"method": "lookup", "gamma": 2}],
         "speculation.also.0.gamma: unknown field"),
        ("workers.large.speculation.also", [{"method": "chain"}],
         "speculation: also: chain is named twice"),
        ("workers.small.speculation.also", [{"method": "lookup"}],
         "small.speculation.also: requests choose for the large worker alone"),
        ("workers.small",
         {"model": "m", "engine": "vllm", "speculation": {"method": "draft_model"}},
         "workers: small.speculation.params.model: is missing; name a draft model"),
        ("store", "disk", "store: must be `memory`"),
        ("store", "redis://h:port", "store: not a Redis url"),
        ("store", "redis://h?nonsense=1", "store: not a Redis url"),
        ("store", {"url": "redis://h", "ttl": 1}, "store.ttl: unknown field"),
        ("store", {"url": "redis://h", "prefix": "a b"}, "store.prefix: "),
        ("store", {"url": "redis://h", "trace_ttl_s": 0}, "store.trace_ttl_s: "),
        ("store", {"password_env": "X"}, "store: password_env: goes with redis://"),
        ("policy.default", "learned", "no policy 'learned'; did you mean learned-gate?"),
        ("policy.when_busy", {"answers": 2, "policy": "larg-only"},
         "no policy 'larg-only'; did you mean large-only?"),
        ("policy.when_busy", {"answers": 0}, "policy.when_busy.answers: "),
        ("policy.params", {"lookahead": {}}, "no policy 'lookahead'; there are"),
        ("policy.params", {"specreason": {"threshold": 99}}, "specreason.threshold: "),
        ("policy.params", {"specreason": {"thresh": 9}}, "specreason.thresh: unknown"),
        ("policy.params", {"specreason": {"threshold": "7"}}, "specreason.threshold: "),
        ("policy.params", {"specreason": {"budget": True}}, "specreason.budget: "),
        ("policy.params", {"specreason": {"threshold": date(2026, 1, 1)}},
         "specreason.threshold: "),
        ("limits.deadline", 1, "limits.deadline: unknown field; did you mean deadline_s"),
        ("limits.wait_s", "long", "limits.wait_s: must be a number, not 'long'"),
        ("/workers", {}, "workers: unknown field; it goes under applications[0].args"),
        ("workers.small.model", "embedded:smal",
         "workers.small: model: there is no embedded model 'embedded:smal'; there are"),
        ("limits.prompt_tokens", 0, "limits.prompt_tokens"),
        ("auth", {"api_key": "x"}, "args.auth.api_key: unknown field; did you mean api_"),
        ("auth", "s3cret", "args.auth: must be"),
        ("auth", {"admin_key_env": "X"}, "args.auth: name api_keys_env"),
        ("/applications.0.route_prefx", "/", "applications.0.route_prefx: unknown field"),
        ("/http_options.prt", 1, "http_options.prt: unknown field"),
        ("/applications", [], "applications: exactly one"),
        ("/applications.0.deployments", [{"name": "LargeWorker", "max_ongoing_request": 5}],
         "applications.0.deployments.0.max_ongoing_request: unknown field"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, key: str, value: Any, said: str) -> None:
    """A key of args, or with a slash before it one of the whole file."""
    path = key[1:] if key.startswith("/") else f"{ARGS}.{key}"
    file = write(tmp_path, {path: value})
    with pytest.raises(ConfigError) as info:
        load(file)
    message = str(info.value)
    assert message.startswith(f"{file}: ")
    assert said in message
    assert "\n" not in message
    assert "s3cret" not in message


@pytest.mark.parametrize("text", ["- a", "a: [", "\x00", "just words", "http_options: 8000"])
def test_what_is_no_deployment_file_at_all(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as info:
        load(file, port=9000)
    assert "\n" not in str(info.value)


def test_a_worker_may_be_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = load(DEFAULT_FILE.parent / "remote.yaml").args.workers
    assert workers.large.url == "http://127.0.0.1:8001/v1"
    assert (workers.large.model, workers.large.key()) == ("Qwen/Qwen3-32B", None)
    spec = WorkerSpec(url="http://x", model="m", tokenizer="embedded:large", api_key_env="K")
    assert spec.folder() == MODELS / "large"  # its judge file lies beside its tokenizer
    with pytest.raises(ConfigError, match=r"\$K holds no key"):
        spec.key()
    monkeypatch.setenv("K", " secret ")
    assert spec.key() == "secret"
    assert "secret" not in repr(spec)


def test_without_keys_only_loopback(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        assert load(write(tmp_path, host=host))
    for host in ("0.0.0.0", "::", "192.168.0.7", "example.org"):
        with pytest.raises(ConfigError, match="no API keys"):
            load(write(tmp_path, host=host))
        assert load(write(tmp_path, {f"{ARGS}.auth": "none"}, host=host))
        assert load(write(tmp_path, {f"{ARGS}.auth": {"api_keys_env": "KEYS"}}, host=host))


def test_keys_come_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("c\n\n d \n")
    monkeypatch.setenv("KEYS", "a, b")
    monkeypatch.setenv("ADMIN", " root ")
    auth = Auth(api_keys_env="KEYS", api_keys_file=file, admin_key_env="ADMIN")
    assert auth.access() == Access(Keys("abcd"), Keys(["root"]))
    assert load(DEFAULT_FILE).args.access() == Access()


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ({"api_keys_env": "NOT_SET"}, r"\$NOT_SET holds no key"),
        ({"api_keys_file": "/nowhere"}, "/nowhere: No such file"),
        ({"api_keys_env": "ASK", "admin_key_env": "ADMIN"}, r"\$ADMIN holds no key"),
    ],
)
def test_keys_that_are_promised_must_be_there(
    monkeypatch: pytest.MonkeyPatch, auth: dict[str, Any], said: str
) -> None:
    monkeypatch.setenv("ASK", "sk-ask")
    with pytest.raises(ConfigError, match=said):
        Auth(**auth).access()


def test_a_key_file_that_is_no_text_is_named_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"good\n\xe9vil\n")
    with pytest.raises(ConfigError, match=r"keys: not UTF-8 text") as told:
        Auth(api_keys_file=file).access()
    assert "0xe9" not in str(told.value)


def test_a_checkpoint_says_how_it_judges(tmp_path: Path) -> None:
    """judge.json beside the large model gives the policy's defaults; the file goes before it."""
    judge = {"judge": "short", "scoring": "likelihood", "likelihood": [3.5, 0.5]}
    (tmp_path / "judge.json").write_text(json.dumps({"policy": judge}))
    (tmp_path / "config.json").write_text("{}")
    workers = {"small": {"model": "embedded:small"}, "large": {"model": str(tmp_path)}}
    args = Args.model_validate({"workers": workers})
    for name, policy in POLICIES.items():
        assert args.policy.params.get(name, {}) == (judge if issubclass(policy, Judging) else {})
        assert args.policy.policy(name)  # and the values fit them
    own = {"scoring": "greedy", "threshold": 5}
    policy = {"params": {"specreason": own}}
    args = Args.model_validate({"workers": workers, "policy": policy})
    assert args.policy.params["specreason"] == judge | own


def test_prices(tmp_path: Path) -> None:
    assert load(write(tmp_path)).args.prices is None
    args = load(write(tmp_path, {f"{ARGS}.prices": {"small": 0.1, "large": 0.6}})).args
    assert args.prices == TokenPrices(0.1, 0.6, 0.0)
    for wrong in ({"large": -1}, {"large": "dear"}, {"medium": 1}, {}, {"small": 0}):
        with pytest.raises(ConfigError, match="prices"):
            load(write(tmp_path, {f"{ARGS}.prices": wrong}))


def test_a_cap_in_money_needs_prices(tmp_path: Path) -> None:
    capped = {f"{ARGS}.policy.params.specreason.max_cost": 0.01}
    with pytest.raises(ConfigError, match=r"policy.params.specreason.max_cost: needs `prices`"):
        load(write(tmp_path, capped))
    priced = {**capped, f"{ARGS}.prices": {"large": 0.6}}
    assert load(write(tmp_path, priced)).args.policy.policy("specreason").max_cost == 0.01


def test_a_store_by_its_url_or_with_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = load(write(tmp_path, {f"{ARGS}.store": "rediss://me@h:6380/2"})).args.store
    assert (plain.url, plain.prefix, plain.password()) == ("rediss://me@h:6380/2", "baton:", None)
    monkeypatch.setenv("BATON_REDIS_PASSWORD", "common")
    assert plain.password() == "common"
    given = {"url": "redis://h", "password_env": "OWN", "prefix": "staging:", "trace_ttl_s": 60}
    more = load(write(tmp_path, {f"{ARGS}.store": given})).args.store
    with pytest.raises(ConfigError, match=r"password_env names \$OWN, which is empty"):
        more.password()
    monkeypatch.setenv("OWN", "secret")
    assert more.password() == "secret"


def test_keys_are_rotated_without_a_restart(tmp_path: Path) -> None:
    users, eyes = tmp_path / "users", tmp_path / "eyes"
    users.write_text("one\n")
    eyes.write_text("sha256:" + hashlib.sha256(b"eye").hexdigest())
    auth = Auth(api_keys_file=users, observer_keys_file=eyes)
    assert auth.access() == auth.access() == Access(Keys(["one"]), observers=Keys(["eye"]))
    users.write_text("two\n")
    assert auth.access() == Access(Keys(["two"]), observers=Keys(["eye"]))
    eyes.write_text("")
    with pytest.raises(ConfigError, match="holds no key"):
        auth.access()
