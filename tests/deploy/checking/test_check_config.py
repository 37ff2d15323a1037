"""`baton check-config`: what is right passes, and each planted mistake is named where it stands."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from deploy.checking.files import check
from deploy.checking.overlay import tool
from deploy.launch import workers
from deploy.service.config import WorkerSpec
from deploy.service.workers import connect_worker
from orchestrator.errors import ConfigError
from tests.deploy.conftest import ROOT
from workers.text.tokenizer_files import load_tokenizer

OVERLAYS = ("cpu-demo", "gpu", "high-availability")
FILES = ("local.yaml", "gpu.yaml", "remote.yaml")

BASES = "kubernetes/base"
BASE = f"{BASES}/rayservice.yaml"
GPU = "kubernetes/overlays/gpu"
HA = "kubernetes/overlays/high-availability"

CHAIN = 'method: chain, params: {draft: "embedded:small", gamma: 16, threshold: 0.6}'
NGRAM = "method: ngram, params: {num_speculative_tokens: 4, prompt_lookup_max: 4}"

TRACING = (
    "      limits:\n",
    "      tracing: {endpoint: 'http://otel.observability:4318/v1/traces'}\n      limits:\n",
)
HEADERS = (TRACING[0], TRACING[1].replace("'}", "', headers_env: BATON_OTLP}"))

Mistake = tuple[str, str, str, str, str]
"""What is checked, the file with the mistake, the words it is about, what stands there instead,
and what must be said, beginning with the field."""

MISTAKES: list[Mistake] = [
    # Deployment files.
    *(
        ("local.yaml", "local.yaml", "    args:\n", f"    runtime_env: {{{given}}}\n    args:\n",
         f"applications.0.runtime_env{said}")
        for given, said in (
            ("env_vars: {UPLOAD: false}", ": Ray refuses it: runtime_env['env_vars'] must be of"),
            ("pip: {packages: 1}", ": Ray refuses it: runtime_env['pip']"),
            ("pip: [a], uv: [b]", ": Ray refuses it: The 'pip' field, 'uv' field"),
            ("config: {setup_timeout_seconds: x}", ": Ray refuses it: setup_timeout_seconds"),
            ("working_dir: 'https://a/b.txt'", ": Ray refuses it: Only .zip"),
        )
    ),
    ("local.yaml", "local.yaml", "    args:\n",
     "    deployments: [{name: Store, ray_actor_options: {runtime_env: {env_vars: {A: 3}}}}]\n"
     "    args:\n",
     "applications.0.deployments.0.ray_actor_options.runtime_env: Ray refuses it: "),
    *(
        ("local.yaml", "local.yaml", "port: 8000", f"port: {port}", f"http_options.port: {said}")
        for port, said in (
            ("80O1", "must be an integer, not '80O1'"),
            ("80010", "must be a number from 1 to 65535, not 80010"),
            ("0", "must be a number from 1 to 65535, not 0"),
            ("yes", "must be a number from 1 to 65535, not true"),
        )
    ),
    *(
        ("remote.yaml", "remote.yaml", "http://127.0.0.1:8001/v1", f'"http://{place}/v1"',
         f"workers.large.url: {said}")
        for place, said in (
            ("127.0.0.1:80O1", "Port could not be cast to integer value as '80O1'"),
            ("127.0.0.1:80010", "Port out of range 0-65535"),
            ("127.0.0.1:0", "expected HOST or HOST:PORT"),
            ("127.0.0.1:８００１", "Port could not be cast"),
            ("model server:8001", "expected HOST or HOST:PORT"),
            ("model_server{a}:8001", "a host has letters, digits, dots and hyphens alone"),
        )
    ),
    ("remote.yaml", "remote.yaml", "http://127.0.0.1:8001/v1", '"http://[::1:8001/v1"',
     "workers.large.url: Invalid IPv6 URL"),
    *(
        ("local.yaml", "local.yaml", "store: memory ", f"store: {store} ", f"store: {said}")
        for store, said in (
            ("redis://store:6379/one", "url: expected redis://HOST:PORT/DATABASE"),
            ("redis://store:63O9", "not a Redis url (redis://HOST:PORT/DATABASE): Port"),
        )
    ),
    *(
        ("local.yaml", "local.yaml", "      limits:\n",
         f"      tracing: {{endpoint: '{endpoint}'}}\n      limits:\n", f"tracing.endpoint: {said}")
        for endpoint, said in (
            ("http://otel:43l8/v1/traces", "Port could not be cast"),
            ("http://", "expected a host in it"),
        )
    ),
    *(
        ("local.yaml", "local.yaml", words, f"{words.partition(':')[0]}: {value} ", said)
        for words, value, said in (
            ("deadline_s: 600 ", "on", "limits.deadline_s: must be a number, not true"),
            ("concurrent: 64 ", "yes", "limits.concurrent: must be a number, not true"),
            ("default: learned-gate", "no", "policy.default: must be a string, not false"),
        )
    ),
    ("local.yaml", "local.yaml", "risk: 0.02", "risk: 2e1",
     "policy.params.learned-gate.risk: must be at most 1, not 20.0"),
    ("local.yaml", "local.yaml", CHAIN,
     "also: [{method: lookup, params: {gamma: yes}}]",
     "workers.large.speculation.also.0.params.gamma: must be an integer, not True (lookup)"),
    ("local.yaml", "local.yaml", CHAIN,
     "also: [{method: relaxed, params: {draft: embedded:small, threshold: high}}]",
     "workers.large.speculation.also.0.params.threshold: must be"),
    ("gpu.yaml", "gpu.yaml", "          rows: 32 ", "          rowz: 32 ",
     "workers.small.rowz: unknown field"),
    ("gpu.yaml", "gpu.yaml", "proxy_location", "proxy_locations",
     "proxy_locations: unknown field; did you mean proxy_location?"),
    ("gpu.yaml", "gpu.yaml", "          gpu: 0.72", "          gpu: 0.8",
     "workers.large.gpu: small 0.25 + large 0.8 = 1.05 of one GPU"),
    ("local.yaml", "local.yaml", CHAIN, "method: chian",
     "workers.large.speculation.method: no method 'chian'"),
    ("local.yaml", "local.yaml", CHAIN, "method: chain",
     "workers.large.speculation.params.draft: is missing (chain)"),
    ("local.yaml", "local.yaml", CHAIN, "method: relaxed",
     "workers.large.speculation.params.draft: is missing (relaxed over chain)"),
    ("local.yaml", "local.yaml", CHAIN,
     "also: [{method: reflective, params: {base: lookup, gama: 2}}]",
     "workers.large.speculation.also.0.params.gama: unknown field; did you mean gamma?"),
    ("local.yaml", "local.yaml", CHAIN,
     "also: [{method: relaxed, params: {base: eagle}}]",
     "workers.large.speculation.also.0.params.base: must be a lossless method, not 'eagle'"),
    ("local.yaml", "local.yaml", CHAIN,
     "also: [{method: relaxed, params: {base: vanilla}}]",
     "workers.large.speculation.also.0.params.base: base vanilla verifies no drafts by itself"),
    ("local.yaml", "local.yaml", CHAIN,
     "also: [{method: relaxed, params: {base: lookup, draft: embedded:small}}]",
     "workers.large.speculation.also.0.params.draft: unknown field"),
    ("local.yaml", "local.yaml", CHAIN, "also: [{method: lookup, params: {gama: 2}}]",
     "workers.large.speculation.also.0.params.gama: unknown field; did you mean gamma?"),
    ("local.yaml", "local.yaml", CHAIN, "also: [{method: lookup}, {method: chian}]",
     "workers.large.speculation.also.1.method: no method 'chian'"),
    ("local.yaml", "local.yaml", CHAIN, "also: [{method: lookup}, {method: lookup}]",
     "workers.large.speculation.also: lookup is named twice"),
    ("gpu.yaml", "gpu.yaml", NGRAM, "method: chain",
     "workers.large.speculation.method: vLLM has vanilla, draft_model, eagle,"),
    ("gpu.yaml", "gpu.yaml", "          engine: vllm\n          gpu: 0.72",
     "          engine: builtin\n          engine_args: {}\n          gpu: 0.72",
     "workers.large.engine_args: goes with engine: vllm"),
    ("gpu.yaml", "gpu.yaml", "rollback: 1.5", "rolback: 1.5",
     "policy.params.bild.rolback: unknown field"),
    (HA, f"{HA}/serve.yaml", "replicas: {min: 2, max: 4}",
     "tensor_parallel: 2\n          replicas: {min: 2, max: 4}",
     "deployments.2.max_replicas_per_node: 1: Ray takes none for a replica over 2 GPUs"),
    ("gpu.yaml", "gpu.yaml", "host: 127.0.0.1", "host: 0.0.0.0",
     "http_options.host: 0.0.0.0 is open to the network"),
    ("gpu.yaml", "gpu.yaml", "keep_alive_timeout_s: 65", "request_timeout_s: 60",
     "http_options.request_timeout_s: 60 s would cut answers"),
    ("gpu.yaml", "gpu.yaml", "        deadline_s: 600", "        max_tokens: 600",
     "limits.max_tokens: written twice"),
    ("remote.yaml", "remote.yaml", "retries: 2", "replicas: 2",
     "workers.large.replicas: is the server's own"),
    (HA, f"{HA}/serve.yaml", "- name: SmallWorker", "- name: LittleWorker",
     "deployments.1.name: no deployment 'LittleWorker'"),
    # The shape of manifests.
    (GPU, BASE, "rayClusterDeletionDelaySeconds", "rayClusterDeletionDelay",
     "spec.rayClusterDeletionDelay: unknown field; did you mean rayClusterDeletionDelaySeconds?"),
    (GPU, f"{GPU}/gpu-groups.yaml", "    maxReplicas: 6", "    maxReplica: 6",
     "workerGroupSpecs.1.maxReplica: unknown field; did you mean maxReplicas?"),
    (GPU, BASE, "terminationGracePeriodSeconds: 720", "terminationGracePeriod: 720",
     "template.spec.terminationGracePeriod: unknown field"),
    (GPU, BASE, "readOnlyRootFilesystem: true", 'readOnlyRootFilesystem: "yes"',
     "securityContext.readOnlyRootFilesystem: 'yes' is not of type"),
    (GPU, f"{BASES}/network-policies.yaml", "policyTypes: [Ingress, Egress]",
     "policyType: [Ingress, Egress]", "spec.policyType: unknown field"),
    # The cluster against the deployment in it.
    (GPU, BASE, "rayVersion: 2.60.0", "rayVersion: 2.51.0",
     "spec.rayClusterConfig.rayVersion: 2.51.0: the image is built with Ray 2.60.0"),
    (GPU, f"{GPU}/kustomization.yaml", "newTag: 0.1.0-ray2.60.0-cuda",
     "newTag: 0.1.0-ray2.58.0-cuda", "containers.0.image: "),
    (GPU, f"{GPU}/kustomization.yaml", "newTag: 0.1.0-ray2.60.0-cuda", "newTag: latest",
     "is not pinned: name a tag or a digest"),
    (GPU, BASE, "      mode: token", "      mode: disabled",
     "authOptions.mode: must be token: Ray runs whatever"),
    (GPU, f"{GPU}/gpu-groups.yaml", "limits: {cpu: \"4\", memory: 16Gi, nvidia.com/gpu: \"1\"}",
     "limits: {cpu: \"4\", memory: 16Gi}",
     "workers.small.gpu: takes 1 of a GPU, and group small-gpu has no nvidia.com/gpu"),
    (GPU, f"{GPU}/serve.yaml", "replicas: {min: 1, max: 4}", "replicas: {min: 1, max: 5}",
     "workers.large.replicas: LargeWorker 5 × 1 take 5 GPUs, group large-gpu has 4"),
    (GPU, f"{GPU}/serve.yaml", "replicas: {min: 1, max: 4}",
     "tensor_parallel: 2\n          replicas: {min: 1, max: 4}",
     "workers.large.replicas: LargeWorker 4 × 2 take 8 GPUs, group large-gpu has 4"),
    (HA, f"{HA}/serve.yaml", "replicas: {min: 2, max: 6}\n        nodes: {baton/pool: orch",
     "replicas: {min: 2, max: 9}\n        nodes: {baton/pool: orch",
     "max_replicas_per_node: 9 replicas and a new one in an update at 1 a node need 10 nodes, "
     "there are 7"),
    (HA, f"{HA}/availability.yaml", "  value: 7", "  value: 6",
     "max_replicas_per_node: 6 replicas and a new one in an update at 1 a node need 7 nodes"),
    (HA, f"{HA}/serve.yaml", "replicas: {min: 2, max: 4}", "replicas: {min: 2, max: 5}",
     "max_replicas_per_node: 5 replicas at 1 a node need 5 nodes, there are 4"),
    (GPU, f"{GPU}/serve.yaml", "nodes: {baton/pool: large}", "nodes: {baton/pool: big}",
     "workers.large.nodes: no worker group has the labels baton/pool=big"),
    (GPU, f"{GPU}/serve.yaml", "deadline_s: 600", "deadline_s: 900",
     "rayClusterDeletionDelaySeconds: 660 s are less than the 900 s that an answer may take"),
    (GPU, BASE, "rayClusterDeletionDelaySeconds: 660", "rayClusterDeletionDelaySeconds: 800",
     "terminationGracePeriodSeconds: 720 s are less than rayClusterDeletionDelaySeconds, 800 s"),
    (GPU, BASE, 'drain.sh, "660"', 'drain.sh, "500"',
     "containers.0.lifecycle.preStop.exec.command: "
     "drain.sh 500: write the seconds for which it waits, at least the 600 s"),
    (GPU, BASE, 'drain.sh, "660"', 'drain.sh, "900"',
     "containers.0.lifecycle.preStop.exec.command: "
     "drain.sh 900: write the seconds for which it waits, at least the 600 s"),
    (GPU, BASE, 'drain.sh, "660"', "drain.sh",
     "preStop.exec.command: drain.sh : write the seconds for which it waits"),
    (GPU, f"{GPU}/serve.yaml", "api_keys_env: BATON_API_KEYS", "api_keys_env: BATON_KEYS",
     "auth.api_keys_env: BATON_KEYS is not set in the pods of group orchestrator"),
    (GPU, f"{GPU}/serve.yaml", "admin_key_env: BATON_ADMIN_KEY",
     "admin_key_env: BATON_ADMIN_KEY\n        observer_keys_env: BATON_OBSERVERS",
     "auth.observer_keys_env: BATON_OBSERVERS is not set in the pods of group orchestrator"),
    (GPU, f"{GPU}/serve.yaml", *HEADERS,
     "tracing.headers_env: BATON_OTLP is not set in the pods of group orchestrator"),
    (GPU, f"{GPU}/serve.yaml", *HEADERS, "tracing.headers_env: BATON_OTLP is not set in the head"),
    (GPU, f"{GPU}/serve.yaml", "proxy_location: EveryNode", "proxy_location: HeadOnly",
     "proxy_location: HeadOnly: a worker pod is ready only with a proxy on it"),
    (HA, f"{HA}/serve.yaml", "redis://policy-redis:6379/0", "redis://gcs-redis:6379/1",
     "args.store.url: gcs-redis:6379 holds the cluster's state too"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _renders(request: pytest.FixtureRequest) -> None:
    """Skip what needs kustomize or kubectl if neither is installed."""
    if tool() is not None:
        return
    callspec = getattr(request.node, "callspec", None)
    if callspec is None or "overlays" in str(callspec.params):
        pytest.skip("neither kustomize nor kubectl is installed")


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of deploy/, which is the working directory."""
    for name in FILES:
        shutil.copy(ROOT / "deploy" / name, tmp_path / name)
    shutil.copytree(ROOT / "deploy" / "kubernetes", tmp_path / "kubernetes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [*FILES, *(f"kubernetes/overlays/{name}" for name in OVERLAYS)])
def test_what_is_shipped_is_right(name: str, copied: Path) -> None:
    report = check(name)
    assert report.ok, list(map(str, report.findings))
    assert report.holds


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake[4][:40])
def test_a_planted_mistake_is_named_where_it_stands(mistake: Mistake, copied: Path) -> None:
    checked, file, words, instead, said = mistake
    before, found, after = (copied / file).read_text().partition(words)
    assert found
    (copied / file).write_text(before + instead + after)
    errors = [one for one in check(checked).findings if one.level == "error"]
    told = [one for one in errors if said in f"{one.field}: {one.message}"]
    assert told, list(map(str, errors))
    assert all(one.location.file and one.location.line > 0 for one in errors)
    assert all("\n" not in str(one) for one in errors)
    # Where the field that is named is the one that was changed, and not another it clashes with.
    # A rendered overlay has lines of its own.
    if file == checked and said.partition(": ")[0].endswith(
        "." + instead.strip().partition(":")[0]
    ):
        line = before.count("\n") + 1
        locations = {(one.location.file.removeprefix("./"), one.location.line) for one in told}
        assert (file, line) in locations


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("# The", "\ufeff# The"),
        ("risk: 0.02", "risk: 2e-2"),
        ("risk: 0.02", "risk: 1.e-3"),
        ("deadline_s: 600", "deadline_s: 6e2"),
        ("port: 8000", "port: 8_000"),
        ("port: 8000", "port: '8000'"),
        ("    args:\n", "    runtime_env: {env_vars: {UPLOAD: 'false'}}\n    args:\n"),
        ("store: memory", "store: redis://user:word@[::1]:6379/1"),
    ],
)
def test_what_looks_odd_and_is_right(words: str, instead: str) -> None:
    text = (ROOT / "deploy" / "local.yaml").read_text(encoding="utf-8")
    assert words in text
    report = check("local.yaml", text=text.replace(words, instead, 1))
    assert report.ok, report.findings


def test_what_a_deployment_wants_and_is_not_here_is_a_note(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = copied / "remote.yaml"
    text = file.read_text()
    written = text.replace(
        "        large:\n", "        large:\n          api_key_env: LARGE_KEY\n", 1
    )
    assert written != text
    file.write_text(written)
    monkeypatch.setattr(workers, "find_spec", lambda name: None)

    def notes(name: str) -> list[str]:
        report = check(name)
        assert report.ok
        return [f"{one.field}: {one.message}" for one in report.findings if one.level == "note"]

    unset = "applications.0.args.workers.large.api_key_env: $LARGE_KEY is not set here"
    assert unset in notes("remote.yaml")
    monkeypatch.setenv("LARGE_KEY", "sk-1")
    assert unset not in notes("remote.yaml")
    absent = [one for one in notes("gpu.yaml") if "vllm (auto on cuda) is not installed" in one]
    assert [one.partition(":")[0][-5:] for one in absent] == ["small", "large"]


def test_the_command_says_what_is_right_and_what_is_wrong(baton: Any, tmp_path: Path) -> None:
    local = str(ROOT / "deploy" / "local.yaml")
    demo = str(ROOT / "deploy" / "kubernetes" / "overlays" / "cpu-demo")
    good = baton("check-config", local, demo)
    assert (good.status, good.err) == (0, "")
    assert "deploy/local.yaml: ok (deployment file)" in good.out
    assert "overlays/cpu-demo: ok (" in good.out
    assert "RayService baton" in good.out
    bad = tmp_path / "bad.yaml"
    bad.write_text((ROOT / "deploy" / "local.yaml").read_text().replace("port:", "prt:"))
    wrong = baton("check-config", local, str(bad), "--json")
    assert wrong.status == 1
    told = json.loads(wrong.out)
    assert told["ok"] is False
    (row,) = told["findings"]
    assert row == {
        "file": str(bad),
        "line": row["line"],
        "field": "http_options.prt",
        "message": "unknown field; did you mean port?",
        "level": "error",
    }
    assert bad.read_text().splitlines()[row["line"] - 1].strip().startswith("prt:")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("", "note: applications.0.args.workers.large.model: thinking: deepseek_r1, '<think>' to"),
        ("thinking: none, ", "large.thinking: thinking: switched off (deepseek_r1, '<think>' to"),
        ("thinking: mistral, ", "large.thinking: thinking: mistral, '[THINK]' to '[/THINK]'"),
        ("thinking: {open: Plan, close: Do}, ", "thinking: custom, 'Plan' to 'Do'"),
        ("thinking: qwen, ", "workers.large.thinking: 'qwen' is not known; give auto, none"),
        ("thinking: {open: Plan}, ", "large.thinking: expected the texts open and close"),
    ],
)
def test_how_a_model_thinks_is_said(setting: str, said: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(ROOT / "workers" / "embedded" / "small", model)
    file = tmp_path / "own.yaml"
    file.write_text(
        "http_options: {host: 127.0.0.1}\n"
        "applications:\n- name: baton\n  route_prefix: /\n  import_path: deploy.app:build\n"
        "  args:\n    store: memory\n    workers:\n      small: {model: 'embedded:small'}\n"
        f"      large: {{{setting}model: '{model}'}}\n"
    )
    report = check(str(file))
    assert said in "\n".join(map(str, report.findings))
    assert report.ok == ("qwen" not in setting and "Plan}" not in setting)


@pytest.mark.parametrize("thinking", ["", "thinking: none, "])
def test_the_levels_of_effort_are_shown(thinking: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(ROOT / "workers" / "embedded" / "small", model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] += "{% if reasoning_effort in ['low', 'max'] %}{{ 1 }}{% endif %}"
    settings["chat_template"] += "{{ reasoning_effort if reasoning_effort == 'max' }}"
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    file = tmp_path / "own.yaml"
    file.write_text(
        "http_options: {host: 127.0.0.1}\n"
        "applications:\n- name: baton\n  route_prefix: /\n  import_path: deploy.app:build\n"
        "  args:\n    store: memory\n    workers:\n      small: {model: 'embedded:small'}\n"
        f"      large: {{{thinking}model: '{model}'}}\n"
    )
    report = check(str(file))
    shown = "efforts: low, max (the template's reasoning_effort)" in "\n".join(
        map(str, report.findings)
    )
    assert (shown, report.ok) == (not thinking, True)


def test_a_folder_with_a_tokenizer_alone(tmp_path: Path) -> None:
    embedded, folder = ROOT / "workers" / "embedded" / "small", tmp_path / "tokenizer"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded / name, folder)
    file = tmp_path / "own.yaml"
    file.write_text(
        "http_options: {host: 127.0.0.1}\n"
        "applications:\n- name: baton\n  route_prefix: /\n  import_path: deploy.app:build\n"
        "  args:\n    store: memory\n    workers:\n      small: {model: 'embedded:small'}\n"
        f"      large: {{url: 'http://127.0.0.1:9/v1', model: m, tokenizer: '{folder}'}}\n"
    )
    report = check(str(file))
    assert report.ok
    assert "thinking: deepseek_r1" in "\n".join(map(str, report.findings))
    spec = WorkerSpec(url="http://127.0.0.1:9/v1", model="m", tokenizer=str(folder))
    assert connect_worker(spec).prompts.tokenizer.hash == load_tokenizer(embedded).hash
    (folder / "tokenizer.json").write_text("{}")
    broken = "\n".join(map(str, check(str(file)).findings))
    assert "large.tokenizer:" in broken
    assert "tokenizer.json cannot be read" in broken


def test_stdin_and_what_is_no_file(
    baton: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "deploy" / "local.yaml").read_text()
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert baton("check-config", "-").out == "<stdin>: ok (deployment file)\n"
    contents = {"a.yaml": "a: [", "b.yaml": "", "c.yaml": "- a"}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    files = [str(tmp_path / name) for name in (*contents, "d.yaml")]  # the last is not there
    run = baton("check-config", *files)
    assert (run.status, run.err) == (1, "")
    lines = sorted(run.out.splitlines())
    assert len(lines) == len(files)
    assert all(line.startswith(file) for line, file in zip(lines, files, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: ray.io/v1\nkind: RayService\n",
        "apiVersion: ray.io/v1\nkind: RayService\nspec: {rayClusterConfig: 7}\n",
        "apiVersion: ray.io/v1\nkind: RayService\nspec: {rayClusterConfig: {headGroupSpec: []}}\n",
        "apiVersion: ray.io/v1\nkind: RayService\nmetadata: x\nspec:\n  rayClusterConfig:\n"
        "    workerGroupSpecs: [1, {labels: 3}]\n",
        "apiVersion: ray.io/v1\nkind: RayService\nspec: {serveConfigV2: 'applications: [{'}\n",
        "apiVersion: v1\nkind: [Secret]\n",
        "apiVersion: 3\n",
    ],
)
def test_a_manifest_of_any_shape_is_refused_without_a_crash(text: str) -> None:
    report = check("m.yaml", text=text)
    assert not report.ok
    assert all(found.location.line > 0 for found in report.findings)


def test_a_schema_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "crd.yaml"
    manifest = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n"
    for content in ("a: 1", "a: ["):
        file.write_text(content)
        with pytest.raises(ConfigError, match=r"crd\.yaml"):
            check("m.yaml", file, manifest)


def test_a_model_in_a_folder_is_of_a_family_that_is_computed(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    text = (ROOT / "deploy" / "local.yaml").read_text().replace("embedded:large", f"{tmp_path}/m")
    config = tmp_path / "m" / "config.json"
    granite = {"model_type": "granite", "architectures": ["GraniteForCausalLM"]}
    for written, level, said in (
        (json.dumps(granite), "note", "is of the family Granite"),
        (json.dumps(granite | {"is_causal": False}), "error", "is_causal must be true, not False"),
        (json.dumps(granite | {"model_type": "llama"}), "error", "architectures must be [Llama"),
        ("{", "error", "has a config.json that cannot be read"),
        ("[]", "error", "has a config.json that cannot be read"),
    ):
        config.write_text(written)
        findings = check("a.yaml", text=text).findings
        (found,) = [one for one in findings if one.field.endswith(".model")]
        assert found.level == level
        assert said in found.message
        assert "embedded" not in text.splitlines()[found.location.line - 1]


def test_what_requests_get_that_say_nothing_of_their_sampling(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(
        json.dumps({"model_type": "granite", "architectures": ["GraniteForCausalLM"]})
    )
    text = (ROOT / "deploy" / "local.yaml").read_text().replace("embedded:large", f"{tmp_path}/m")

    def found(text: str) -> list[str]:
        return [str(one) for one in check("a.yaml", text=text).findings if "ampling" in str(one)]

    own = tmp_path / "m" / "generation_config.json"
    assert found(text) == []  # greedy
    own.write_text(json.dumps({"do_sample": True, "temperature": 0.6, "top_p": 0.95}))
    said = "temperature 0.6, top_p 0.95, top_k 0 for requests that say nothing of sampling"
    assert [line.partition("model: ")[2] for line in found(text)] == [said]
    named = text.replace(
        "      store: memory", "      sampling: {temperature: 1}\n      store: memory"
    )
    assert "temperature 1, top_p 0.95" in found(named)[0]
    greedy = text.replace(
        "      store: memory", "      sampling: {temperature: 0}\n      store: memory"
    )
    assert found(greedy) == []
    for wrong, what in (
        ("{temperature: 3}", "temperature"),
        ("{top_p: 0}", "top_p"),
        ("{x: 1}", "x"),
    ):
        bad = text.replace("      store: memory", f"      sampling: {wrong}\n      store: memory")
        assert f"sampling.{what}" in found(bad)[0]
    own.write_text("[]")
    assert "generation_config.json" in str(
        [str(one) for one in check("a.yaml", text=text).findings if one.level == "error"]
    )
