"""A GGUF file is a model: the one that was written comes back, and what is not known is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from deploy.lab.stock import stock
from orchestrator.errors import ConfigError
from orchestrator.types import StopCriteria
from tests.workers.conftest import TEMPLATE, make_model, make_tokenizer, save
from tests.workers.engine.local import ask, run
from workers.embedded.checkpoints import resolve
from workers.engine.gguf_checkpoint import GgufWeights, read_config
from workers.engine.loading import load, load_tokenizer
from workers.text.gguf_tokenizer import _check_vocabulary

F32 = gguf.GGMLQuantizationType.F32


def write(
    path: Path,
    model: Any,
    tokenizer: Any,
    kind: gguf.GGMLQuantizationType = F32,
    set_keys: dict[str, Any] | None = None,
    drop: str = "",
    tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """What llama.cpp's converter writes of a model; `set_keys` and `tensors` beside or instead."""
    config = model.config
    name = config.model_type
    writer = gguf.GGUFWriter(path, name)
    keys: dict[str, Any] = {
        f"{name}.context_length": config.max_position_embeddings,
        f"{name}.block_count": config.num_hidden_layers,
        f"{name}.embedding_length": config.hidden_size,
        f"{name}.feed_forward_length": config.intermediate_size,
        f"{name}.attention.head_count": config.num_attention_heads,
        f"{name}.attention.head_count_kv": config.num_key_value_heads,
        f"{name}.attention.key_length": config.head_dim,
        f"{name}.attention.value_length": config.head_dim,
        f"{name}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{name}.rope.freq_base": config.rope_parameters["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.eos_token_id": tokenizer.eos_token_id,
        "tokenizer.chat_template": TEMPLATE,
        **(set_keys or {}),
    }
    add = {str: writer.add_string, bool: writer.add_bool, list: writer.add_array,
           float: writer.add_float32, int: writer.add_uint32}  # fmt: skip
    for key, value in keys.items():
        if key != drop:
            add[type(value)](key, value)
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    pieces = described["model"]["vocab"] | {
        one["content"]: one["id"] for one in described["added_tokens"]
    }
    special = {one["id"]: 3 if one["special"] else 4 for one in described["added_tokens"]}
    texts = sorted(pieces, key=pieces.__getitem__)
    padded = texts + [f"[PAD{at}]" for at in range(len(texts), config.vocab_size)]
    writer.add_token_list(padded)
    writer.add_token_types(
        [special.get(at, 1 if at < len(texts) else 5) for at in range(len(padded))]
    )
    writer.add_token_merges([" ".join(pair) for pair in described["model"]["merges"]])
    for there, values in (_weights(model) | (tensors or {})).items():
        if there == drop:
            continue
        if kind == F32 or values.ndim == 1:
            writer.add_tensor(there, values)
        else:
            packed = gguf.quantize(values, kind)
            writer.add_tensor(there, packed, raw_shape=packed.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_neighbour_of_the_file_gives_it_nothing(tmp_path: Path) -> None:
    model, tokenizer = make_model(), make_tokenizer()
    (alone := tmp_path / "alone").mkdir()
    (beside := tmp_path / "beside").mkdir()
    expected = load_tokenizer(str(write(alone / "model.gguf", model, tokenizer)))
    other = make_tokenizer("{{ 'not this one' }}", corpus="quite another text, other merges " * 9)
    other.save_pretrained(beside)
    make_model(width=64).config.save_pretrained(beside)
    found = load_tokenizer(str(write(beside / "model.gguf", model, tokenizer)))
    assert found.hash == expected.hash != load_tokenizer(str(beside)).hash
    assert found.chat_template.source == TEMPLATE
    assert found.encode("Let me think") == expected.encode("Let me think")


def test_a_file_of_another_name_is_known_by_how_it_begins(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", make_model(), make_tokenizer())
    known = load_tokenizer(str(file))
    other = make_tokenizer(corpus="quite another text, other merges " * 9)
    with pytest.raises(ConfigError, match=r"tokenizer\.ggml\.tokens; the token .* differs"):
        _check_vocabulary(other, file)
    blob = file.rename(tmp_path / "sha256-0a")  # as Ollama names it
    assert load_tokenizer(str(resolve(str(blob)))).hash == known.hash


def _weights(model: Any) -> dict[str, np.ndarray]:
    made, config = {}, model.config
    arch = gguf.MODEL_ARCH[config.model_type.upper()]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    heads = {".q_proj.": config.num_attention_heads, ".k_proj.": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        count = next((count for part, count in heads.items() if part in name), 0)
        if count and config.model_type == "llama":
            halves = values.reshape(count, 2, -1, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        made[names.get_name(name, (".weight", ".bias"))] = values
    if config.tie_word_embeddings:
        del made["output.weight"]
    return made


def made(family: str, **options: Any) -> tuple[Any, Any]:
    tokenizer = make_tokenizer()
    return make_model(family, vocabulary=len(tokenizer) + 3, **options), tokenizer


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_network_that_was_written_comes_back(family: str, tmp_path: Path) -> None:
    model, tokenizer = made(family)
    file = write(tmp_path / "model.gguf", model, tokenizer)
    network = stock(file)
    for name, tensor in model.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor), name
    ids = torch.tensor([tokenizer("What is 12 + 34? Let me think.")["input_ids"]])
    assert torch.equal(network(ids).logits, model(ids).logits)
    assert network.generation_config.eos_token_id == tokenizer.eos_token_id


def test_its_tokenizer_is_the_one_that_was_written(tmp_path: Path) -> None:
    model, tokenizer = made("qwen3")
    file = write(tmp_path / "model.gguf", model, tokenizer)
    folder = tmp_path / "folder"
    save(folder, tokenizer, model)
    ours, theirs = load_tokenizer(str(file)), load_tokenizer(str(folder))
    assert (ours.hash, ours.pieces) == (theirs.hash, theirs.pieces)  # not the padding of the head
    assert (ours.eos_id, ours.chat_template.source) == (theirs.eos_id, TEMPLATE)
    for text in ("", "What is 12 + 34?", "<think>x</think>", "  two  \n\n b", "naïve 数学 🙂"):
        assert ours.encode_markup(text) == theirs.encode_markup(text)
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize(
    ("pre", "whole"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)]
)
def test_a_word_of_the_vocabulary_is_a_token_if_merges_are_ignored(
    pre: str, whole: bool, tmp_path: Path
) -> None:
    """Llama 3's and Mistral's say so in tokenizer.json; llama.cpp knows it by the name."""
    model, tokenizer = made("llama")
    backend = tokenizer.backend_tokenizer
    bpe = json.loads(backend.to_str())["model"]
    left, right = bpe["merges"].pop()
    backend.model = type(backend.model)(vocab=bpe["vocab"], merges=list(map(tuple, bpe["merges"])))
    file = write(tmp_path / "m.gguf", model, tokenizer, set_keys={"tokenizer.ggml.pre": pre})
    ours, word = load_tokenizer(str(file)), bpe["vocab"][left + right]
    assert (ours.encode(ours.decode([word])) == (word,)) is whole


@pytest.mark.parametrize(
    ("keys", "begins"),
    [
        ({"tokenizer.ggml.pre": "llama-bpe"}, True),
        ({"tokenizer.ggml.pre": "tekken"}, True),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False),
        ({"tokenizer.ggml.pre": "qwen2"}, False),
        ({"tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.add_bos_token": True}, True),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}, True),
    ],
)
def test_what_a_text_begins_with_is_what_llama_cpp_puts_there(
    keys: dict[str, Any], begins: bool, tmp_path: Path
) -> None:
    model, tokenizer = made("llama")
    bos = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    keys = {"tokenizer.ggml.bos_token_id": bos, **keys}
    ours = load_tokenizer(str(write(tmp_path / "m.gguf", model, tokenizer, set_keys=keys)))
    assert ours.begin == ((bos,) if begins else ())


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q4_1", "F16", "BF16"])
def test_packed_weights_are_unpacked(kind: str, tmp_path: Path) -> None:
    model, tokenizer = made("llama")
    chosen = gguf.GGMLQuantizationType[kind]
    file = write(tmp_path / "m.gguf", model, tokenizer, chosen)
    values = model.model.layers[1].mlp.up_proj.weight
    expected = gguf.dequantize(gguf.quantize(values.numpy(), chosen), chosen)
    ours = GgufWeights(file, read_config(file)).read("model.layers.1.mlp.up_proj.weight")
    assert torch.equal(ours, torch.from_numpy(np.array(expected, dtype=np.float32)))
    assert not torch.equal(ours, values)


async def test_it_answers_as_the_folder_does(tmp_path: Path) -> None:
    model, tokenizer = made("qwen2")
    model.config.tie_word_embeddings = True
    model.tie_weights()
    folder = save(tmp_path / "folder", tokenizer, model)
    file = write(tmp_path / "model.gguf", model, tokenizer)
    assert read_config(file).tie_word_embeddings
    texts = []
    for place in (folder, file):
        worker = load(place, rows=1, max_len=200)
        try:
            texts.append((await run(worker, ask(), StopCriteria(20))).segment)
        finally:
            worker.close()
    assert texts[0] == texts[1]


def test_llama3_positions_come_from_their_factors(tmp_path: Path) -> None:
    model, tokenizer = made("llama", width=128)
    rope = {
        "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    plain = model.model.rotary_emb.inv_freq.numpy()
    model.config.rope_parameters = rope
    scaled = type(model.model.rotary_emb)(model.config).inv_freq.numpy()
    divisors = {"rope_freqs.weight": plain / scaled}
    assert len({round(float(one), 3) for one in divisors["rope_freqs.weight"]}) > 2
    file = write(tmp_path / "m.gguf", model, tokenizer, tensors=divisors)
    assert read_config(file).rope_parameters == rope
    strange = {"rope_freqs.weight": plain / scaled + np.float32(0.5)}
    with pytest.raises(ConfigError, match="otherwise than Llama 3"):
        read_config(write(tmp_path / "other.gguf", model, tokenizer, tensors=strange))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"set_keys": {"general.architecture": "gemma3"}}, "GGUF file of gemma3; supported: llama"),
        ({"set_keys": {"qwen3.attention.sliding_window": 64}}, r"qwen3\.attention\.sliding_window"),
        ({"set_keys": {"qwen3.attention.head_count_kv": [2, 1]}}, "head_count_kv .as a list"),
        ({"set_keys": {"qwen3.rope.dimension_count": 4}}, "rope.dimension_count to 4"),
        ({"set_keys": {"qwen3.rope.scaling.type": "yarn"}}, "rope.scaling.type to yarn"),
        ({"set_keys": {"split.count": 3}}, "one of 3 parts"),
        ({"set_keys": {"tokenizer.ggml.pre": "deepseek-v3"}}, "not deepseek-v3"),
        ({"set_keys": {"tokenizer.ggml.model": "bert"}}, "tokenizer .*bert"),
        ({"drop": "qwen3.block_count"}, "does not set qwen3.block_count"),
        ({"set_keys": {"qwen3.block_count": 0}}, "cannot read the config .*num_hidden_layers"),
        ({"drop": "blk.1.ffn_up.weight"}, "lacks weights .*: model.layers.1.mlp.up_proj.weight"),
        (
            {"tensors": {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}},
            r"does not describe.*: blk\.0\.attn_sinks\.weight",
        ),
        (
            {"tensors": {"blk.0.attn_q.bias": np.ones(32, np.float32)}},
            r"does not describe.*: blk\.0\.attn_q\.bias",
        ),
        ({"tensors": {"output_norm.weight": np.ones(9, np.float32)}}, r"norm.weight is \(9,\)"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    model, tokenizer = made("qwen3")
    file = write(tmp_path / "model.gguf", model, tokenizer, **change)
    with pytest.raises(ConfigError, match=reason):
        load(file, rows=1)


def test_what_is_no_gguf_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        resolve(tmp_path / "absent.gguf")
    (tmp_path / "text.gguf").write_text("not a model" * 10)
    with pytest.raises(ConfigError, match=r"text\.gguf"):
        load(tmp_path / "text.gguf")
    model, tokenizer = made("qwen3")
    whole = write(tmp_path / "whole.gguf", model, tokenizer).read_bytes()
    for share in (0.01, 0.3, 0.9):
        (tmp_path / "cut.gguf").write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ConfigError, match=r"cut\.gguf"):
            read_config(tmp_path / "cut.gguf")
