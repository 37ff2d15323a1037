"""What can be loaded, and the methods that a worker offers."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from orchestrator.errors import (
    ConfigError,
    InvalidRequest,
)
from orchestrator.types import (
    StopCriteria,
)
from tests.workers.conftest import CONTROLS, TEMPLATE, linears, make_model, make_tokenizer, save
from tests.workers.engine.local import ask, run
from tests.workers.model.families import network, stock_logits
from workers.engine import loading
from workers.engine.loading import WHOLE_NUMBERS, load, load_config, load_model, load_tokenizer
from workers.model.linear import Linear
from workers.model.network import Network
from workers.model.target import Target
from workers.speculation.drafter import DrafterMethod
from workers.text import tokenizer_files


async def test_what_cannot_be_loaded_says_why(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, reason in (
        ({"model": "embedded:nothing"}, "no embedded model"),
        ({"model": tmp_path}, "no config.json"),
        ({"speculation": {"method": "magic"}}, "vanilla, chain"),
        ({"speculation": {"method": "vanilla", "gamma": 3}}, "gamma"),
        ({"also": [{"method": "magic"}]}, "vanilla, chain"),
        ({"also": [{"method": "lookup", "gamme": 3}]}, "speculation lookup: .*gamme"),
        ({"also": [{"method": "vanilla"}]}, "speculation vanilla: named twice"),
        ({"max_len": 10_000}, "512 positions"),
        ({"dtype": "int2"}, r"one of .*, float16, int8, int4, int4\+bfloat16, not int2"),
        ({"dtype": "int8", "device": "cuda"}, "dtype int8 is for x86 CPUs, not cuda"),
        ({"dtype": "int4", "device": "cuda"}, "dtype int4 is for x86 CPUs, not cuda"),
        ({"rows": 4, "slots": 3}, "slots"),
        ({"rows": 0}, "rows"),
    ):
        with pytest.raises(ConfigError, match=reason):
            load(**{"model": checkpoint, **options})
    other = make_tokenizer(corpus="some other text with other merges " * 5)
    save(tmp_path, other, make_model("qwen3", vocabulary=len(other)))
    with pytest.raises(ConfigError, match="must share the vocabulary"):
        load(checkpoint, speculation={"method": "chain", "draft": str(tmp_path)})
    config = (tmp_path / "config.json").read_text().replace("Qwen3ForCausalLM", "GPT2LMHeadModel")
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match="GPT2LMHeadModel"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot read the config of"):
        load(tmp_path)


def test_a_config_that_asks_for_another_computation_is_refused(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    save(tmp_path, tokenizer, make_model("llama", vocabulary=len(tokenizer)))
    written = json.loads((tmp_path / "config.json").read_text())
    for said, reason in (
        ({"model_type": "granite"}, r"architectures must be \[GraniteForCausalLM\] with granite"),
        ({"model_type": "ernie4_5"}, "model_type must be one of llama"),
        ({"is_causal": False}, "is_causal must be true"),
        ({"hidden_size": "wide"}, "cannot read the config of .*hidden_size"),
        ({"attention_bias": True}, "lacks weights that its config describes.*: model.layers.0.*"),
        ({"num_hidden_layers": 1}, "has weights that its config does not describe.* and 6 more"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(written | said))
        with pytest.raises(ConfigError, match=reason):
            load(tmp_path)


@pytest.mark.parametrize("case", ["llama, longrope", "mistral", "granite", "gemma 3"])
async def test_a_stored_model_answers_as_in_transformers(case: str, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    model = network(case, torch.float32, vocab_size=len(tokenizer), max_position_embeddings=256)
    if case == "llama, longrope":
        model.config.rope_parameters["original_max_position_embeddings"] = 128
    save(tmp_path, tokenizer, model)
    if case == "llama, longrope":
        with pytest.raises(ConfigError, match="max_len must be at most the 128 positions"):
            load(tmp_path, max_len=256)
    draft = network("mistral", torch.float32, vocab_size=len(tokenizer), num_hidden_layers=1)
    save(tmp_path / "draft", tokenizer, draft)
    branching = {"method": "recursive-c", "draft": str(tmp_path / "draft"), "branching": [3, 2]}
    worker = load(tmp_path, speculation=branching, max_len=64)
    worker.backend.ends = frozenset()  # how long it goes on is no matter here
    try:
        call = ask("What is 1 + 2?")
        made = (await run(worker, call, StopCriteria(20))).segment.tokens
        prompt = torch.tensor([worker.prompts.transcript(call.transcript)])
    finally:
        worker.close()
    stock = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.inference_mode():
        whole = stock(torch.tensor([[*prompt[0].tolist(), *made]])).logits[0]
    assert len(made) == 20
    assert whole[prompt.shape[1] - 1 : -1].argmax(-1).tolist() == list(made)


def stored(folder: Path) -> Path:
    """The folder of a tied model."""
    tokenizer = make_tokenizer()
    model = make_model("llama", vocabulary=len(tokenizer))
    model.config.tie_word_embeddings = True
    model.tie_weights()
    save(folder, tokenizer, model)
    return folder


IDS = [5, 9, 33, 2]


def logits(network: Network) -> torch.Tensor:
    """Of a few tokens, as our own layers compute them."""
    target = Target(network, slots=1, max_len=32)
    with torch.inference_mode():
        return target.prefill(0, IDS, num_logits=len(IDS)).logits


@pytest.mark.parametrize("form", ["its own head", "the head alone", "no first part", "in parts"])
def test_a_checkpoint_is_read_in_every_form_that_transformers_reads(
    form: str, tmp_path: Path
) -> None:
    folder = stored(tmp_path)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    embedding = tensors["model.embed_tokens.weight"]
    if form == "its own head":  # of a tied model; what is stored counts
        tensors["lm_head.weight"] = 2 * embedding + 1
    elif form == "the head alone":
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    elif form == "no first part":
        tensors = {name.removeprefix("model."): one for name, one in tensors.items()}
    parts = {"model.safetensors": tensors}
    if form == "in parts":
        file.unlink()
        names = sorted(tensors)
        parts = {
            f"part-{i}.safetensors": {name: tensors[name] for name in names[i::2]} for i in (0, 1)
        }
        placed = {name: part for part, held in parts.items() for name in held}
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": placed})
        )
    for name, held in parts.items():
        save_file(held, folder / name, metadata={"format": "pt"})
    ours = load_model(str(folder))
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(logits(ours), stock_logits(theirs, IDS)[None])
    assert isinstance(ours.head, Linear)
    tied = ours.head.weight.data_ptr() == ours.embedding.data_ptr()
    assert tied is (form != "its own head")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_act": "swiglu"}, "hidden_act must be one of silu, .*, not 'swiglu'"),
        ({"num_attention_heads": 0}, "cannot read the config of .*num_attention_heads"),
        ({"max_window_layers": None, "use_sliding_window": None, "attention_multiplier": 0}, ""),
    ],
)
def test_keys_of_a_config(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = stored(tmp_path)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | change))
    if reason:
        with pytest.raises(ConfigError, match=reason):
            load_model(str(folder))
    else:  # of other families, and switched off
        assert load_config(str(folder)).attention_scale == (32 // 4) ** -0.5


@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model"])
def test_a_sentencepiece_model_alone_is_refused(tmp_path: Path, name: str) -> None:
    """transformers 5.23 makes a vocabulary of it whose ids of white space are others."""
    save(tmp_path, make_tokenizer(), make_model())
    load_tokenizer(str(tmp_path))
    (tmp_path / name).write_bytes(b"")  # beside a tokenizer.json it is not read
    load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    for open_one in (load_tokenizer, tokenizer_files.load_tokenizer):
        with pytest.raises(ConfigError, match=rf"{name} and no tokenizer\.json.*GGUF"):
            open_one(str(tmp_path))


def test_a_tokenizer_without_tokenizer_json_is_converted(tmp_path: Path) -> None:
    made = make_tokenizer()
    save(tmp_path, made, make_model("qwen3", vocabulary=len(made)))
    direct = load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):  # nothing to convert
        load_tokenizer(str(tmp_path))
    made.backend_tokenizer.model.save(str(tmp_path))
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    table = {
        str(made.convert_tokens_to_ids(text)): {"content": text, "special": i < 3, **flags}
        for i, text in enumerate(CONTROLS)
    }
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": CONTROLS[2],
        "added_tokens_decoder": table,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert {"vocab.json", "merges.txt"} <= {file.name for file in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        tokenizer_files.load_tokenizer(tmp_path)
    converted, theirs = load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    assert converted.chat_template.source == TEMPLATE
    assert converted.eos_id == theirs.eos_token_id == direct.eos_id
    assert (converted.close_id, converted.controls) == (direct.close_id, direct.controls)
    assert (converted.hash, converted.pieces) == (direct.hash, direct.pieces)
    for text in ("", "What is 12 + 34?", "<think>x</think>", "  two  \n\n b"):
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert list(converted.encode_markup(text)) == expected
        assert converted.decode(converted.encode(text)) == text


async def test_every_call_has_the_method_that_it_names(
    checkpoint: Path, draft_checkpoint: Path
) -> None:
    chain = {"method": "chain", "draft": str(draft_checkpoint), "gamma": 3}
    block = {"method": "recursive-s", "draft": str(draft_checkpoint)}
    plain = load(checkpoint, rows=1, max_len=200)
    several = load(checkpoint, also=[chain, block, {"method": "lookup"}], rows=4, max_len=200)
    named = several.backend.engine.decoder.methods
    assert list(named) == ["vanilla", "chain", "recursive-s", "lookup"]
    models = [named[name].drafter.model.model for name in ("chain", "recursive-s")]  # type: ignore[attr-defined]
    assert models[0] is models[1]  # loaded once
    drafted: set[str] = set()
    for name, method in named.items():
        method.draft = _noting(method.draft, name, drafted)  # type: ignore[method-assign]
    try:
        texts = [f"{n} and {n + 1} make {2 * n + 1}" for n in range(8)]
        alone = [(await run(plain, ask(text), StopCriteria(20))).segment for text in texts]
        calls = [
            replace(ask(text), speculation=name)
            for text, name in zip(texts, [None, *named] * 2, strict=False)
        ]
        made = await asyncio.gather(*(run(several, call, StopCriteria(20)) for call in calls))
        assert [one.segment.tokens for one in made] == [one.tokens for one in alone]
        assert drafted == set(named)
        assert several.stats()["lossy"] == 0
        for worker, offered in (
            (several, "vanilla, chain, recursive-s, lookup"),
            (plain, "vanilla"),
        ):
            for criteria in (
                StopCriteria(20),
                StopCriteria(0),
            ):  # also where only the prompt is prefilled
                with pytest.raises(InvalidRequest, match=f"offers {offered}$") as caught:
                    await run(worker, replace(ask(), speculation="kangaroo"), criteria)
                assert caught.value.param == "speculation"
    finally:
        plain.close()
        several.close()


def _noting(draft: Any, name: str, drafted: set[str]) -> Any:
    def noted(rows: Any) -> Any:
        drafted.add(name)
        return draft(rows)

    return noted


async def test_a_lossy_method_on_request_shows_in_the_stats(
    checkpoint: Path, draft_checkpoint: Path
) -> None:
    lossy = {"method": "reflective", "draft": str(draft_checkpoint)}
    worker = load(checkpoint, also=[lossy], max_len=200)
    assert worker.stats()["lossy"] == 1
    worker.close()


@pytest.mark.parametrize("dtype", ["int8", "int4", "int4+bfloat16", "bfloat16"])
async def test_the_draft_of_a_packed_target_is_packed(
    dtype: str, checkpoint: Path, draft_checkpoint: Path
) -> None:
    chain = {"method": "chain", "draft": str(draft_checkpoint), "gamma": 3}
    tokens = []
    for speculation in ({"method": "vanilla"}, chain):
        worker = load(checkpoint, dtype=dtype, speculation=speculation, rows=2, max_len=200)
        tokens.append((await run(worker, ask(), StopCriteria(12))).segment.tokens)
        method = worker.backend.engine.decoder.method
        worker.close()
    if dtype in ("int8", "int4"):  # in 16 bits a wider pass may break a tie otherwise
        assert tokens[0] == tokens[1]
    assert isinstance(method, DrafterMethod)
    target, draft = (
        {one.packed and one.packed.packing for one in linears(model.model)[:-1]}
        for model in (method.target, method.drafter.model)
    )
    few = "int4" if dtype.startswith("int4") else "int8"
    odd = {few, "int8"}  # shapes that take no 4 bits
    assert loading.packing_of("cpu", dtype) in target
    assert target <= {dtype} | odd
    assert few in draft <= odd


@pytest.mark.parametrize("instructions", [True, False])
def test_how_weights_are_packed(instructions: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "computes_in_bfloat16", lambda: instructions)
    monkeypatch.setattr(loading, "can_pack", lambda: True)
    wanted = {None: None, "float16": "half", **{name: name for name in WHOLE_NUMBERS}}
    assert {dtype: loading.packing_of("cpu", dtype) for dtype in wanted} == wanted
    bfloat16 = loading.packing_of("cpu", "bfloat16")
    assert bfloat16 == ("bfloat16" if instructions else "half")
    assert loading.packing_of("cuda", "bfloat16") is None


def test_weights_are_read_in_a_thread_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its threads of OpenMP stay, and each kernel has to wake the engine's."""
    save(tmp_path, make_tokenizer(), make_model("llama", vocabulary=len(make_tokenizer())))
    read, threads = loading.open_target, list[threading.Thread]()

    def opened(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return read(*args, **options)

    monkeypatch.setattr(loading, "open_target", opened)
    load(tmp_path).close()
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert not thread.is_alive()
    with pytest.raises(ConfigError, match="there is no folder"):
        load(tmp_path / "none")
