"""`baton check-config`: what is right passes, and each planted mistake is named at its place."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from deploy.checking.files import check, rendering_tool
from deploy.launch import workers
from deploy.service.worker_spec import WorkerSpec
from deploy.service.workers import connect_worker
from orchestrator.errors import ConfigError
from tests.deploy.conftest import ROOT
from workers.text.tokenizer_files import load_tokenizer

DEPLOY = ROOT / "deploy"
EMBEDDED = ROOT / "workers" / "embedded" / "small"
OVERLAYS = ("cpu-demo", "gpu", "high-availability")
FILES = ("local.yaml", "gpu.yaml", "remote.yaml")
LOCAL = (DEPLOY / "local.yaml").read_text(encoding="utf-8")

BASE = "kubernetes/base"
GPU = "kubernetes/overlays/gpu"
HA = "kubernetes/overlays/high-availability"
LARGE = "workers.large"
CHAIN = 'method: chain, params: {draft: "embedded:small", gamma: 16, threshold: 0.6}'
NGRAM = "method: ngram, params: {num_speculative_tokens: 4, prompt_lookup_max: 4}"
MAX_4 = "replicas: {min: 1, max: 4}"
DRAIN = "containers.0.lifecycle.preStop.exec.command: drain.sh"
AT_LEAST = "write the seconds for which it waits, at least the 600 s"

MISTAKES: dict[tuple[str, str], list[tuple[str, str, str]]] = {
    # What is checked, and the file with the mistake: the words it is about, what replaces them, and
    # what must be reported, beginning with the field.
    ("local.yaml", "local.yaml"): [
        ("    args:\n", "    runtime_env: {env_vars: {UPLOAD: false}}\n    args:\n",
         "applications.0.runtime_env: Ray refuses it: runtime_env['env_vars'] must be of"),
        ("    args:\n", "    deployments: [{name: Store, ray_actor_options: "
         "{runtime_env: {env_vars: {A: 3}}}}]\n    args:\n",
         "deployments.0.ray_actor_options.runtime_env: Ray refuses it: "),
        *(("port: 8000", f"port: {port}", f"http_options.port: must be {wanted}")
          for port, wanted in (
              ("80O1", "an integer, not '80O1'"), ("80010", "a number from 1 to 65535, not 80010"),
              ("0", "a number from 1 to 65535, not 0"),
              ("yes", "a number from 1 to 65535, not true"))),
        ("store: memory ", "store: redis://store:6379/one ",
         "store: url: expected redis://HOST:PORT/DATABASE"),
        ("      limits:\n", "      tracing: {endpoint: 'http://'}\n      limits:\n",
         "tracing.endpoint: must be a URL, empty host"),
        ("deadline_s: 600 ", "deadline_s: on ", "limits.deadline_s: must be a number, not true"),
        ("default: learned-gate", "default: no", "policy.default: must be a string, not false"),
        ("risk: 0.02", "risk: 2e1",
         "policy.params.learned-gate.risk: must be at most 1, not 20.0"),
        *((CHAIN, wrong, f"{LARGE}.speculation.{found}") for wrong, found in (
            ("method: chian", "method: no method 'chian'"),
            ("method: chain", "params.draft: is missing (chain)"),
            ("method: relaxed", "params.draft: is missing (relaxed over chain)"))),
        *((CHAIN, f"also: [{{{wrong}}}]", f"{LARGE}.speculation.also.{found}")
          for wrong, found in (
              ("method: lookup, params: {gamma: yes}",
               "0.params.gamma: must be an integer, not true (lookup)"),
              ("method: relaxed, params: {draft: embedded:small, threshold: high}",
               "0.params.threshold: must be"),
              ("method: reflective, params: {base: lookup, gama: 2}",
               "0.params.gama: unknown field; did you mean gamma?"),
              ("method: relaxed, params: {base: eagle}",
               "0.params.base: must be a lossless method, not 'eagle'"),
              ("method: relaxed, params: {base: vanilla}",
               "0.params.base: base vanilla verifies no drafts by itself"),
              ("method: relaxed, params: {base: lookup, draft: embedded:small}",
               "0.params.draft: unknown field"),
              ("method: lookup}, {method: chian", "1.method: no method 'chian'"))),
        (CHAIN, "also: [{method: lookup}, {method: lookup}]",
         f"{LARGE}.speculation.also: lookup is named twice"),
    ],
    ("remote.yaml", "remote.yaml"): [
        ("http://127.0.0.1:8001/v1", '"http://127.0.0.1:80O1/v1"',
         f"{LARGE}.url: Port could not be cast to integer value as '80O1'"),
        ("http://127.0.0.1:8001/v1", '"http://model server:8001/v1"',
         f"{LARGE}.url: expected HOST or HOST:PORT"),
        ("retries: 2", "replicas: 2", f"{LARGE}.replicas: is the server's own"),
    ],
    ("gpu.yaml", "gpu.yaml"): [
        ("          rows: 32 ", "          rowz: 32 ", "workers.small.rowz: unknown field"),
        ("proxy_location", "proxy_locations",
         "proxy_locations: unknown field; did you mean proxy_location?"),
        ("          gpu: 0.72", "          gpu: 0.8",
         f"{LARGE}.gpu: small 0.25 + large 0.8 = 1.05 of one GPU"),
        (NGRAM, "method: chain", f"{LARGE}.speculation.method: vLLM has vanilla, draft_model,"),
        ("          engine: vllm\n          gpu: 0.72",
         "          engine: builtin\n          engine_args: {}\n          gpu: 0.72",
         f"{LARGE}.engine_args: goes with engine: vllm"),
        ("rollback: 1.5", "rolback: 1.5", "policy.params.bild.rolback: unknown field"),
        ("host: 127.0.0.1", "host: 0.0.0.0", "http_options.host: 0.0.0.0 is open to the network"),
        ("keep_alive_timeout_s: 65", "request_timeout_s: 60",
         "http_options.request_timeout_s: 60 s would cut answers"),
        ("        deadline_s: 600", "        max_tokens: 600", "limits.max_tokens: written twice"),
    ],
    (GPU, f"{BASE}/network-policies.yaml"): [
        ("policyTypes: [Ingress, Egress]", "policyType: [Ingress, Egress]",
         "spec.policyType: unknown field"),
    ],
    (GPU, f"{BASE}/rayservice.yaml"): [
        ("rayClusterDeletionDelaySeconds", "rayClusterDeletionDelay",
         "spec.rayClusterDeletionDelay: unknown field; did you mean "),
        ("terminationGracePeriodSeconds: 720", "terminationGracePeriod: 720",
         "template.spec.terminationGracePeriod: unknown field"),
        ("readOnlyRootFilesystem: true", 'readOnlyRootFilesystem: "yes"',
         "securityContext.readOnlyRootFilesystem: 'yes' is not of type"),
        ("rayVersion: 2.60.0", "rayVersion: 2.51.0",
         "spec.rayClusterConfig.rayVersion: 2.51.0: the image is built with Ray 2.60.0"),
        ("      mode: token", "      mode: disabled",
         "authOptions.mode: must be token: Ray runs whatever"),
        ("rayClusterDeletionDelaySeconds: 660", "rayClusterDeletionDelaySeconds: 800",
         "GracePeriodSeconds: 720 s are less than rayClusterDeletionDelaySeconds, 800 s"),
        ('drain.sh, "660"', 'drain.sh, "500"', f"{DRAIN} 500: {AT_LEAST}"),
        ('drain.sh, "660"', 'drain.sh, "900"', f"{DRAIN} 900: {AT_LEAST}"),
        ('drain.sh, "660"', "drain.sh", f"{DRAIN} : {AT_LEAST}"),
    ],
    (GPU, f"{GPU}/gpu-groups.yaml"): [
        ("    maxReplicas: 6", "    maxReplica: 6",
         "workerGroupSpecs.1.maxReplica: unknown field; did you mean maxReplicas?"),
        ('limits: {cpu: "4", memory: 16Gi, nvidia.com/gpu: "1"}',
         'limits: {cpu: "4", memory: 16Gi}',
         "workers.small.gpu: takes 1 of a GPU, and group small-gpu has no nvidia.com/gpu"),
    ],
    (GPU, f"{GPU}/kustomization.yaml"): [
        ("0.1.0-ray2.60.0-cuda", "0.1.0-ray2.58.0-cuda", "containers.0.image: "),
    ],
    (GPU, f"{GPU}/serve.yaml"): [
        (MAX_4, "replicas: {min: 1, max: 5}",
         f"{LARGE}.replicas: LargeWorker 5 × 1 take 5 GPUs, group large-gpu has 4"),
        (MAX_4, f"tensor_parallel: 2\n          {MAX_4}",
         f"{LARGE}.replicas: LargeWorker 4 × 2 take 8 GPUs, group large-gpu has 4"),
        ("nodes: {baton/pool: large}", "nodes: {baton/pool: big}",
         f"{LARGE}.nodes: no worker group has the labels baton/pool=big"),
        ("deadline_s: 600", "deadline_s: 900", "rayClusterDeletionDelaySeconds: 660 s are less "
         "than the 900 s that an answer may take"),
        ("api_keys_env: BATON_API_KEYS", "api_keys_env: BATON_KEYS",
         "auth.api_keys_env: BATON_KEYS is not set in the pods of group orchestrator"),
        *(("password_env: BATON_STORE_PASSWORD", "password_env: BATON_PASSWORD",
           f"store.password_env: BATON_PASSWORD is not set in the {pods}")
          for pods in ("head", "pods of group orchestrator")),
        ("proxy_location: EveryNode", "proxy_location: HeadOnly",
         "proxy_location: HeadOnly: a worker pod is ready only with a proxy on it"),
        ("host: 0.0.0.0", "host: 127.0.0.1", "http_options.host: 127.0.0.1: other pods cannot"),
    ],
    (HA, f"{HA}/serve.yaml"): [
        ("replicas: {min: 2, max: 4}",
         "tensor_parallel: 2\n          replicas: {min: 2, max: 4}",
         "deployments.2.max_replicas_per_node: 1: Ray takes none for a replica over 2 GPUs"),
        ("- name: SmallWorker", "- name: LittleWorker",
         "deployments.1.name: no deployment 'LittleWorker'"),
        ("replicas: {min: 2, max: 6}\n        nodes: {baton/pool: orch",
         "replicas: {min: 2, max: 9}\n        nodes: {baton/pool: orch",
         "max_replicas_per_node: 9 replicas and a new one in an update at 1 a node need 10 nodes, "
         "there are 7"),
        ("replicas: {min: 2, max: 4}", "replicas: {min: 2, max: 5}",
         "max_replicas_per_node: 5 replicas at 1 a node need 5 nodes, there are 4"),
        ("redis://policy-redis:6379/0", "redis://gcs-redis:6379/1",
         "args.store.url: gcs-redis:6379 holds the cluster's state too"),
    ],
    (HA, f"{HA}/availability.yaml"): [
        ("  value: 7", "  value: 6",
         "max_replicas_per_node: 6 replicas and a new one in an update at 1 a node need 7 nodes"),
    ],
}  # fmt: skip
PLANTED = [(*where, *mistake) for where, mistakes in MISTAKES.items() for mistake in mistakes]


@pytest.fixture(autouse=True)
def _renders(request: pytest.FixtureRequest) -> None:
    """Skip what needs kustomize or kubectl if neither is installed."""
    callspec = getattr(request.node, "callspec", None)
    if rendering_tool() is None and (callspec is None or "overlays" in str(callspec.params)):
        pytest.skip("neither kustomize nor kubectl is installed")


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of deploy/, which is the working directory."""
    for name in FILES:
        shutil.copy(DEPLOY / name, tmp_path / name)
    shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found_in(large: str) -> tuple[bool, str]:
    """Check a file with these settings of its large worker: is it right, and its findings."""
    report = check(
        "own.yaml",
        text="http_options: {host: 127.0.0.1}\n"
        "applications:\n- name: baton\n  route_prefix: /\n  import_path: deploy.app:build\n"
        "  args:\n    store: memory\n    workers:\n      small: {model: 'embedded:small'}\n"
        f"      large: {{{large}}}\n",
    )
    return report.ok, "\n".join(map(str, report.findings))


@pytest.mark.parametrize("args", ["{}", "{colour: red, workers: 2}"])
def test_the_args_of_another_application_are_not_checked(args: str) -> None:
    report = check("own.yaml", text=f"applications: [{{import_path: my.app:app, args: {args}}}]\n")
    (found,) = report.findings
    assert (found.field, found.level) == ("applications.0.import_path", "error")
    assert found.message == "must be deploy.app:build"


@pytest.mark.parametrize("name", [*FILES, *(f"kubernetes/overlays/{name}" for name in OVERLAYS)])
def test_what_is_shipped_is_right(name: str, copied: Path) -> None:
    report = check(name)
    assert report.ok, list(map(str, report.findings))
    assert report.holds


@pytest.mark.parametrize(
    ("checked", "file", "words", "instead", "said"), PLANTED, ids=[one[4][:40] for one in PLANTED]
)
def test_a_planted_mistake_is_named_at_its_place(
    checked: str, file: str, words: str, instead: str, said: str, copied: Path
) -> None:
    before, found, after = (copied / file).read_text().partition(words)
    assert found
    (copied / file).write_text(before + instead + after)
    errors = [one for one in check(checked).findings if one.level == "error"]
    named = [one for one in errors if said in f"{one.field}: {one.message}"]
    assert named, list(map(str, errors))
    assert all(one.file and one.line > 0 and "\n" not in str(one) for one in errors)
    # If the field that is named is the one that was changed, and not another that clashes with it.
    # A rendered overlay has other lines.
    changed = instead.strip().partition(":")[0]
    if file == checked and said.partition(": ")[0].endswith(f".{changed}"):
        assert (file, before.count("\n") + 1) in {(one.file, one.line) for one in named}


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
    assert words in LOCAL
    report = check("local.yaml", text=LOCAL.replace(words, instead, 1))
    assert report.ok, report.findings


def test_what_a_deployment_wants_and_is_not_here_is_a_note(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, large = copied / "remote.yaml", "        large:\n"
    file.write_text(file.read_text().replace(large, f"{large}          api_key_env: KEY\n", 1))
    monkeypatch.setattr(workers, "find_spec", lambda name: None)

    def notes(name: str) -> list[str]:
        report = check(name)
        assert report.ok
        return [f"{one.field}: {one.message}" for one in report.findings if one.level == "note"]

    unset = "applications.0.args.workers.large.api_key_env: $KEY is not set here"
    assert unset in notes("remote.yaml")
    monkeypatch.setenv("KEY", "sk-1")
    assert unset not in notes("remote.yaml")
    absent = [one for one in notes("gpu.yaml") if "vllm (auto on cuda) is not installed" in one]
    assert [one.partition(":")[0][-5:] for one in absent] == ["small", "large"]


def test_the_command_reports_what_is_right_and_what_is_wrong(baton: Any, tmp_path: Path) -> None:
    local, demo = str(DEPLOY / "local.yaml"), str(DEPLOY / "kubernetes" / "overlays" / "cpu-demo")
    good = baton("check-config", local, demo)
    assert (good.status, good.err) == (0, "")
    assert "deploy/local.yaml: ok (deployment file)" in good.out
    assert "overlays/cpu-demo: ok (" in good.out
    assert "RayService baton" in good.out
    bad = tmp_path / "bad.yaml"
    bad.write_text(LOCAL.replace("port:", "prt:"))
    wrong = baton("check-config", local, str(bad), "--json")
    assert wrong.status == 1
    row = {
        "file": str(bad),
        "line": LOCAL[: LOCAL.index("port:")].count("\n") + 1,
        "field": "http_options.prt",
        "message": "unknown field; did you mean port?",
        "level": "error",
    }
    assert json.loads(wrong.out) == {"ok": False, "findings": [row]}


@pytest.mark.parametrize(
    ("setting", "ok", "said"),
    [
        ("", True, "note: applications.0.args.workers.large.model: thinking: deepseek_r1, '<think"),
        ("thinking: none, ", True, "thinking: switched off (deepseek_r1, '<think>' to"),
        ("thinking: mistral, ", True, "thinking: mistral, '[THINK]' to '[/THINK]'"),
        ("thinking: {open: Plan, close: Do}, ", True, "thinking: custom, 'Plan' to 'Do'"),
        ("thinking: qwen, ", False, "workers.large.thinking: 'qwen' is not known; give auto, none"),
        ("thinking: {open: Plan}, ", False, "large.thinking: expected the texts open and close"),
    ],
)
def test_how_a_model_thinks_is_shown(setting: str, ok: bool, said: str, tmp_path: Path) -> None:
    model = shutil.copytree(EMBEDDED, tmp_path / "model")
    right, found = found_in(f"{setting}model: '{model}'")
    assert (right, said in found) == (ok, True), found


@pytest.mark.parametrize("thinking", ["", "thinking: none, "])
def test_the_levels_of_effort_are_shown(thinking: str, tmp_path: Path) -> None:
    model = shutil.copytree(EMBEDDED, tmp_path / "model")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] += "{% if reasoning_effort in ['low', 'max'] %}{{ 1 }}{% endif %}"
    settings["chat_template"] += "{{ reasoning_effort if reasoning_effort == 'max' }}"
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    right, found = found_in(f"{thinking}model: '{model}'")
    shown = "efforts: low, max (the template's reasoning_effort)" in found
    assert (shown, right) == (not thinking, True)


def test_a_folder_with_a_tokenizer_alone(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED / name, tmp_path)
    server: dict[str, Any] = {
        "url": "http://127.0.0.1:9/v1",
        "model": "m",
        "tokenizer": str(tmp_path),
    }
    large = json.dumps(server)[1:-1]
    right, found = found_in(large)
    assert right
    assert "thinking: deepseek_r1" in found
    worker = connect_worker(WorkerSpec(**server, run_ahead=16))
    assert worker.prompts.tokenizer.hash == load_tokenizer(EMBEDDED).hash
    assert worker.backend._ahead.tokens == 16
    (tmp_path / "tokenizer.json").write_text("{}")
    _, broken = found_in(large)
    assert "large.tokenizer:" in broken
    assert "tokenizer.json cannot be read" in broken


def test_stdin_and_what_is_no_file(
    baton: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(LOCAL))
    assert baton("check-config", "-").out == "<stdin>: ok (deployment file)\n"
    contents = {"a.yaml": "a: [", "b.yaml": "", "c.yaml": "- a"}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    files = [str(tmp_path / name) for name in (*contents, "d.yaml")]  # the last is not there
    run = baton("check-config", *files)
    assert (run.status, run.err) == (1, "")
    lines = sorted(run.out.splitlines())
    assert all(line.startswith(file) for line, file in zip(lines, files, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        *(
            f"apiVersion: ray.io/v1\nkind: RayService\n{rest}\n"
            for rest in (
                "",
                "spec: {rayClusterConfig: 7}",
                "spec: {rayClusterConfig: {headGroupSpec: []}}",
                "metadata: x\nspec: {rayClusterConfig: {workerGroupSpecs: [1, {labels: 3}]}}",
                "spec: {serveConfigV2: 'applications: [{'}",
            )
        ),
        "apiVersion: v1\nkind: [Secret]\n",
        "apiVersion: 3\n",
    ],
)
def test_a_manifest_of_any_shape_is_refused_without_a_crash(text: str) -> None:
    report = check("m.yaml", text=text)
    assert not report.ok
    assert all(found.line > 0 for found in report.findings)


@pytest.mark.parametrize("content", ["a: 1", "a: ["])
def test_a_schema_that_is_none(content: str, tmp_path: Path) -> None:
    file = tmp_path / "crd.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"crd\.yaml"):
        check("m.yaml", file, "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n")


GRANITE = {"model_type": "granite", "architectures": ["GraniteForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "level", "said"),
    [
        (json.dumps(GRANITE), "note", "is of the family Granite"),
        (json.dumps(GRANITE | {"is_causal": False}), "error", "is_causal must be true, not False"),
        (json.dumps(GRANITE | {"model_type": "llama"}), "error", "architectures must be [Llama"),
        ("{", "error", "has a config.json that cannot be read"),
        ("[]", "error", "has a config.json that cannot be read"),
    ],
)
def test_a_model_in_a_folder_is_of_a_family_that_is_computed(
    config: str, level: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(config)
    text = LOCAL.replace("embedded:large", str(tmp_path))
    findings = check("a.yaml", text=text).findings
    (found,) = [one for one in findings if one.field.endswith(".model")]
    assert (found.level, said in found.message) == (level, True)
    assert "embedded" not in text.splitlines()[found.line - 1]
