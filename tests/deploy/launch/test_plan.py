"""Deployment files for two models: what fits where, as the file itself is checked."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from deploy.cli import main as cli
from deploy.lab.peers.llama_cpp import embedded_gguf
from deploy.lab.stock import stock
from deploy.launch.deployment_file import load
from deploy.launch.plan import BUSY, DeploymentPlan, plan
from deploy.launch.sizes import ENGINE_BYTES, GB, Gpu, Machine, ModelSize
from orchestrator.errors import ConfigError
from tests.deploy.conftest import free_port
from tests.workers.conftest import linears
from workers.embedded.checkpoints import resolve
from workers.engine.loading import load_model
from workers.model.packed import can_pack

# Qwen3's, by their configs.
TINY = ModelSize("Qwen/Qwen3-1.7B", 1_720_000_000, 114_688, 40_960, 16, 8, 1_409_000_000, tied=True)
MIDDLE = ModelSize("Qwen/Qwen3-8B", 8_190_000_000, 147_456, 40_960, 32, 8, 6_946_000_000)
LARGE = ModelSize("Qwen/Qwen3-32B", 32_760_000_000, 262_144, 40_960, 64, 8)
H100 = Gpu("NVIDIA H100", 80 * GB)
LAPTOP = Machine((), 8, 16 * GB)


def machine(*gpus: Gpu) -> Machine:
    return Machine(gpus, 16, 128 * GB)


def checked(planned: DeploymentPlan, tmp_path: Path) -> dict[str, dict[str, object]]:
    """The workers of the file, after `baton serve`'s own checks."""
    file = tmp_path / "planned.yaml"
    file.write_text(planned.text())
    load(file)
    workers: dict[str, dict[str, object]] = yaml.safe_load(file.read_text())["applications"][0][
        "args"
    ]["workers"]
    return workers


def test_two_models_share_a_gpu_that_holds_both(tmp_path: Path) -> None:
    planned = plan(TINY, MIDDLE, machine(H100))
    workers = checked(planned, tmp_path)
    shares = [float(str(workers[name]["gpu"])) for name in ("small", "large")]
    assert 0.9 < sum(shares) <= 0.95
    for share, model in zip(shares, (TINY, MIDDLE), strict=True):
        assert share * H100.memory > model.weights + 32_768 * model.token_bytes
    assert workers["large"]["engine"] == "vllm"
    assert "Both fit on one NVIDIA H100" in planned.text()


def test_a_large_model_is_spread_over_the_gpus_that_it_needs(tmp_path: Path) -> None:
    workers = checked(plan(TINY, LARGE, machine(*[Gpu("L40S", 48 * GB)] * 4)), tmp_path)
    assert workers["small"]["gpu"] == workers["large"]["gpu"] == 1
    assert workers["large"]["tensor_parallel"] == 2
    alone = checked(plan(TINY, LARGE, machine(H100, H100)), tmp_path)
    assert "tensor_parallel" not in alone["large"]
    assert alone["large"]["max_len"] == 16_384  # 32,768 would not fit behind 65.5 GB of weights


@pytest.mark.parametrize("gpus", [1, 2])
def test_what_does_not_fit_is_said_with_numbers(gpus: int) -> None:
    with pytest.raises(ConfigError, match=r"GB.*name a quantized checkpoint"):
        plan(TINY, LARGE, machine(*[Gpu("RTX 4090", 24 * GB)] * gpus))
    with pytest.raises(ConfigError, match=r"16\.0 GB are planned with: name smaller"):
        plan(TINY, LARGE, LAPTOP)


def test_weights_have_4_bits_if_they_do_not_fit_in_8(tmp_path: Path) -> None:
    planned = plan(TINY, MIDDLE, LAPTOP)
    assert {worker["dtype"] for worker in checked(planned, tmp_path).values()} == {"int4"}
    assert "4 bits because they do not fit in 8" in " ".join(planned.reasons)
    assert "speculation" not in planned.workers["large"]
    tight = plan(TINY, MIDDLE, Machine((), 8, int(26.4 * GB), int8=False))
    assert {worker["dtype"] for worker in tight.workers.values()} == {"bfloat16"}
    assert tight.workers["large"]["max_len"] == 1024
    assert "4 bits" not in " ".join(tight.reasons)


def test_weights_have_8_bits_and_what_cache_fits(tmp_path: Path) -> None:
    roomy = Machine((), 8, 20 * GB)
    planned = plan(TINY, MIDDLE, roomy)
    workers = checked(planned, tmp_path)
    assert {worker["dtype"] for worker in workers.values()} == {"int8"}
    assert [worker.get("threads") for worker in workers.values()] == [4, None]
    assert all("engine" not in worker for worker in workers.values())
    cached = sum(
        2 * int(str(worker["rows"])) * int(str(worker["max_len"])) * 2 * model.token_bytes
        for worker, model in zip(workers.values(), (TINY, MIDDLE), strict=True)
    )  # 32 bits each
    weights = TINY.packed("int8") + MIDDLE.packed("int8")
    assert weights > TINY.parameters + MIDDLE.parameters  # embeddings stay as they are
    assert weights + cached <= 0.8 * roomy.memory
    rows, length = (planned.workers["large"][key] for key in ("rows", "max_len"))
    said = (
        f"up to {rows} sequences at once (rows), and keeps {2 * rows} in its cache, each of up to "
        f"{length:,} tokens"
    )
    assert said in planned.text()
    old = Machine((), 8, 64 * GB, int8=False)
    workers = checked(plan(TINY, MIDDLE, old), tmp_path)
    assert {worker["dtype"] for worker in workers.values()} == {"bfloat16"}


@pytest.mark.parametrize("model", ["embedded:large", "untied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4", "int4+bfloat16"])
def test_weights_on_a_cpu_are_what_they_take_once_packed(
    model: str, dtype: str, tmp_path: Path
) -> None:
    """All that the loaded network holds, whatever of it is packed."""
    if dtype != "float32" and not can_pack():
        pytest.skip("weights are not packed on this machine")
    if model == "untied":
        network = stock(resolve("embedded:large"))
        network.config.tie_word_embeddings = False
        network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.clone())
        network.save_pretrained(tmp_path / "untied")
        model = str(tmp_path / "untied")
    size, network = ModelSize.of(model), load_model(str(resolve(model)), dtype=dtype)
    bits = {"bfloat16": 16, "half": 16, "int8": 8, "int4": 5, "int4+bfloat16": 21}
    held = {network.embedding.data_ptr(): network.embedding.nbytes}
    for one in linears(network):
        if one.packed is None:
            held[one.weight.data_ptr()] = one.weight.nbytes
        else:
            held[id(one)] = one.packed.inputs * one.packed.outputs * bits[one.packed.packing] // 8
    assert size.packed(dtype) == pytest.approx(sum(held.values()), rel=0.02)


def test_models_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ConfigError, match="the other way round"):
        plan(MIDDLE, TINY, LAPTOP)


def test_the_size_of_a_checkpoint_is_that_of_its_config() -> None:
    size = ModelSize.of("embedded:large")
    assert size.parameters == pytest.approx(2_500_000, rel=0.05)
    assert (size.token_bytes, size.context, size.heads) == (12 * 2 * 128 * 2, 1024, 4)
    assert size.weights == 2 * size.parameters
    with pytest.raises(ConfigError, match="cannot tell the size of"):
        ModelSize.of("no/such-model-anywhere")


def test_a_gguf_file_is_planned_for_a_cpu(tmp_path: Path) -> None:
    pair = [ModelSize.of(str(embedded_gguf(name, tmp_path))) for name in ("small", "large")]
    for file, name in zip(pair, ("small", "large"), strict=True):
        same = ModelSize.of(f"embedded:{name}")
        assert replace(same, name=file.name, vocabulary=file.vocabulary) == file
    workers = checked(plan(pair[0], pair[1], LAPTOP), tmp_path)
    assert [workers[name]["device"] for name in ("small", "large")] == ["cpu", "cpu"]
    with pytest.raises(ConfigError, match=r"small\.gguf is a GGUF file, .* not planned for vLLM"):
        plan(pair[0], pair[1], machine(H100))


def changed(folder: Path, **config: object) -> str:
    """A checkpoint as the embedded large one, but for its config."""
    written = json.loads((resolve("embedded:large") / "config.json").read_text())  # type: ignore[operator]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(written | config))
    return str(folder)


def test_a_quantized_checkpoint_takes_what_its_bits_take(tmp_path: Path) -> None:
    plain = ModelSize.of("embedded:large")
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    size = ModelSize.of(changed(tmp_path / "awq", quantization_config=awq))
    assert size.parameters == plain.parameters
    assert 0.5 * size.parameters < size.matrices < size.parameters
    assert size.weights == int(2 * (size.parameters - size.matrices) + 4.125 / 8 * size.matrices)
    four = replace(LARGE, matrices=31_200_000_000, bits=4.125)  # Qwen3-32B-AWQ
    planned = plan(TINY, four, machine(Gpu("RTX 6000", 48 * GB)))
    assert checked(planned, tmp_path)["large"]["max_len"] == 32_768
    assert "19.2 GB in 4 bits" in planned.text()
    with pytest.raises(ConfigError, match=r"a CPU .*quantization_config must be absent"):
        plan(plain, size, LAPTOP)


def test_what_our_own_engine_does_not_compute_is_not_planned_for_a_cpu(tmp_path: Path) -> None:
    other = ModelSize.of(changed(tmp_path / "other", use_magic=True))
    with pytest.raises(ConfigError, match=r"no GPU, and on a CPU .*use_magic is unknown to"):
        plan(ModelSize.of("embedded:small"), other, LAPTOP)
    plan(TINY, replace(other, parameters=2 * TINY.parameters), machine(H100))


def test_an_error_without_a_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", broken)
    with pytest.raises(ConfigError, match=r"the size of .*other: KeyError"):
        ModelSize.of(changed(tmp_path / "other", use_magic=True))  # read by transformers


@pytest.mark.parametrize(
    ("heads", "kv_heads", "gpus", "can"),
    [(64, 8, 4, True), (32, 2, 4, True), (24, 6, 4, False), (9, 3, 2, False), (40, 10, 4, False)],
)
def test_layers_are_spread_as_vllm_spreads_them(
    heads: int, kv_heads: int, gpus: int, can: bool
) -> None:
    assert replace(LARGE, heads=heads, kv_heads=kv_heads).can_spread(gpus) is can


def test_heads_of_keys_and_values_are_held_by_several_gpus(tmp_path: Path) -> None:
    few = replace(LARGE, kv_heads=2, token_bytes=65_536)
    gpus = [Gpu("A10", 24 * GB)] * 5
    workers = checked(plan(TINY, few, machine(*gpus)), tmp_path)
    assert workers["large"]["tensor_parallel"] == 4
    assert few.need(4, 1000) == few.weights // 4 + ENGINE_BYTES + 1000 * 65_536 // 2


def test_older_gpus_compute_in_float16(tmp_path: Path) -> None:
    planned = plan(TINY, MIDDLE, machine(Gpu("Quadro RTX 8000", 48 * GB, (7, 5))))
    assert checked(planned, tmp_path)["large"]["dtype"] == "float16"
    assert "In float16" in planned.text()


def test_shares_are_checked_as_they_are_written(tmp_path: Path) -> None:
    """No share is so small that the context that is written no longer fits."""
    for memory in range(30, 80):
        gpu = Gpu("G", memory * GB)
        workers = checked(plan(TINY, MIDDLE, machine(gpu)), tmp_path)
        for name, model in (("small", TINY), ("large", MIDDLE)):
            given = float(str(workers[name]["gpu"])) * gpu.memory
            assert given >= model.need(1, int(str(workers[name]["max_len"])))


def test_what_vllm_leaves_of_a_whole_gpu_is_not_planned_with(tmp_path: Path) -> None:
    for memory in range(77, 100):  # one GPU each
        gpu = Gpu("G", memory * GB)
        workers = checked(plan(TINY, LARGE, machine(gpu, gpu)), tmp_path)
        assert workers["large"]["gpu"] == 1
        context = int(str(workers["large"]["max_len"]))
        assert LARGE.need(int(str(workers["large"].get("tensor_parallel", 1))), context) <= (
            0.92 * gpu.memory
        )


def test_a_name_of_several_lines_stays_a_comment() -> None:
    named = replace(TINY, name="a\nworkers: {}\u2028b")
    head = plan(named, MIDDLE, machine(H100)).text().partition("proxy_location")[0]
    assert all(line.startswith("# ") for line in head.splitlines())


def test_further_gpus_that_stay_idle_are_named() -> None:
    for large, gpus in ((TINY, 2), (MIDDLE, 3)):  # on one GPU, on one each
        text = plan(TINY, large, machine(*[H100] * gpus)).text()
        assert "1 further GPU stays idle: more `replicas`" in text
    assert "idle" not in plan(TINY, LARGE, machine(H100, H100)).text()


def run(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["baton", "serve", *args])
    with pytest.raises(SystemExit) as info:
        cli.main()
    return int(info.value.code or 0)


def test_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ["--small", "embedded:small", "--large", "embedded:large"]
    assert run(monkeypatch, *pair, "--dry-run", "--port", "9001") == 0
    text = capsys.readouterr().out
    file = tmp_path / "file.yaml"
    file.write_text(text)
    assert load(file).url == "http://127.0.0.1:9001"
    assert "Our own engine" in text
    assert run(monkeypatch, "--small", "embedded:small") == 2
    assert "name both models, --small and --large" in capsys.readouterr().err
    assert run(monkeypatch, str(file), *pair) == 2
    assert "not both" in capsys.readouterr().err
    file.write_text("something: else")
    free = ["--port", str(free_port())]
    assert run(monkeypatch, *pair, *free, "--out", str(file)) == 1
    assert "is another file" in capsys.readouterr().err
    assert file.read_text() == "something: else"


def test_a_port_that_is_taken_is_said_before_a_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Machine, "look", lambda: pytest.fail("it looked at the machine"))
    pair, file = ["--small", "embedded:small", "--large", "embedded:large"], tmp_path / "new.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(monkeypatch, *pair, "--port", port, "--out", str(file)) == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize(
    ("small", "large", "policy"),
    [("a", "a", "bild"), ("a", "b", "large-only"), ("", "", "large-only")],
)
def test_models_of_one_vocabulary_share_tokens_and_others_nothing(
    small: str, large: str, policy: str, tmp_path: Path
) -> None:
    planned = plan(
        replace(TINY, vocabulary=small), replace(MIDDLE, vocabulary=large), machine(H100)
    )
    assert planned.policy["default"] == policy
    assert f"({policy})" in planned.text()
    checked(planned, tmp_path)


@pytest.mark.parametrize(
    ("vocabulary", "where", "method"),
    [
        ("a", machine(H100), "ngram"),
        ("b", machine(H100, H100), "ngram"),
        ("a", Machine((), 8, 80 * GB), "auto"),
        ("b", Machine((), 8, 80 * GB), None),
        ("a", Machine((), 8, 32 * GB), None),
    ],
)
def test_the_large_model_speculates_if_the_machine_has_room_for_a_draft_model(
    vocabulary: str, where: Machine, method: str | None, tmp_path: Path
) -> None:
    planned = plan(replace(TINY, vocabulary="a"), replace(MIDDLE, vocabulary=vocabulary), where)
    speculation: Any = checked(planned, tmp_path)["large"].get("speculation", {})
    assert speculation.get("method") == method
    assert speculation.get("params", {}).get("draft") == (TINY.name if method == "auto" else None)


@pytest.mark.parametrize(
    ("where", "vocabulary", "busy"),
    [
        (Machine((), 8, 80 * GB), "a", BUSY),
        (Machine((), 8, 80 * GB), "b", None),  # the large model answers alone anyway
        (machine(H100), "a", None),
    ],
)
def test_a_busy_cpu_shares_no_answers(
    where: Machine, vocabulary: str, busy: dict[str, object] | None, tmp_path: Path
) -> None:
    planned = plan(replace(TINY, vocabulary="a"), replace(MIDDLE, vocabulary=vocabulary), where)
    assert planned.policy.get("when_busy") == busy
    assert ("when_busy" in planned.text().partition("proxy_location")[0]) == (busy is not None)
    checked(planned, tmp_path)


def test_a_checkpoint_says_its_vocabulary(tmp_path: Path) -> None:
    sizes = [ModelSize.of(name) for name in ("embedded:small", "embedded:large")]
    assert sizes[0].vocabulary == sizes[1].vocabulary != ""
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((resolve("embedded:small") / "config.json").read_bytes())
    assert ModelSize.of(str(bare)).vocabulary == ""
