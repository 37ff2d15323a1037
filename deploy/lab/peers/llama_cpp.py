"""llama.cpp's server over a checkpoint, as a GGUF file, or over such a file.

python -m deploy.lab.peers.llama_cpp MODEL PORT SLOTS THREADS [DRAFT]

DRAFT is the GGUF file of a draft model.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import gguf
import httpx
import xllamacpp
from gguf import MODEL_ARCH, TokenType
from safetensors.torch import load_file

from workers.embedded.checkpoints import resolve


def write_gguf(folder: Path, path: Path) -> Path:
    """The Llama or Qwen3 checkpoint in `folder` as a GGUF file."""
    config = json.loads((folder / "config.json").read_text())
    kind = config["model_type"]
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    _add_tokenizer(writer, folder, config["vocab_size"])
    names = gguf.get_tensor_name_map(MODEL_ARCH[kind.upper()], config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        renamed = names.get_name(name, try_suffixes=(".weight",))
        assert renamed is not None, name
        if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            # There, rotated pairs are neighbours; here, they lie half a head apart.
            halves = tensor.unflatten(0, (-1, 2, config["head_dim"] // 2))
            tensor = halves.transpose(1, 2).flatten(0, 2)
        writer.add_tensor(renamed, tensor.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def embedded_gguf(name: str, folder: Path) -> Path:
    """One of the embedded pair as a GGUF file in the folder."""
    return write_gguf(Path(resolve(f"embedded:{name}")), folder / f"{name}.gguf")


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, size: int) -> None:
    spec = json.loads((folder / "tokenizer.json").read_text())
    tokens = {i: (f"[unused {i}]", TokenType.UNUSED) for i in range(size)}
    tokens |= {i: (text, TokenType.NORMAL) for text, i in spec["model"]["vocab"].items()}
    tokens |= {token["id"]: (token["content"], TokenType.CONTROL) for token in spec["added_tokens"]}
    named = json.loads((folder / "tokenizer_config.json").read_text())
    (eos,) = (i for i, (text, _) in tokens.items() if text == named["eos_token"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens[i][0] for i in range(size)])
    writer.add_token_types([tokens[i][1] for i in range(size)])
    writer.add_token_merges([" ".join(pair) for pair in spec["model"]["merges"]])
    writer.add_eos_token_id(eos)
    if template := named.get("chat_template"):
        writer.add_chat_template(template)
    writer.add_add_bos_token(False)


@contextmanager
def serving_gguf(
    path: Path,
    context: int = 400,
    slots: int = 1,
    port: int = 0,
    threads: int = 1,
    *,
    draft: Path | Literal["ngram"] | None = None,
) -> Iterator[str]:
    """llama.cpp's server of that file, in threads; yields its base URL. Port 0: a free one.

    `draft`: the file of a draft model, or drafts from what was written before.
    """
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.port = port
    params.n_ctx, params.n_parallel = context * slots, slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_threads_http = 4 * slots + 8  # a stream holds one, whether or not it has a slot
    params.n_gpu_layers = 0
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.warmup, params.endpoint_slots, params.verbosity = False, True, 0
    if draft is not None:
        kinds = xllamacpp.common_speculative_type
        if draft == "ngram":
            params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            params.speculative.ngram_simple.size_n = params.speculative.ngram_simple.size_m = 2
        else:
            params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
            params.speculative.draft.mparams.path = str(draft)
            params.speculative.draft.n_max = 4
    server = xllamacpp.Server(params)
    try:
        yield f"{server.listening_address}/v1"
    finally:
        del server


def live_slots(url: str) -> int:
    """Sequences that the server is working on."""
    slots = httpx.get(url.removesuffix("/v1") + "/slots").json()
    return sum(slot["is_processing"] for slot in slots)


def main() -> None:
    """Serve until a signal comes."""
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before the server starts its threads
    model, port, slots, threads = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    draft = Path(sys.argv[5]) if len(sys.argv) > 5 else None
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(model, Path(folder) / "model.gguf") if model.is_dir() else model
        with serving_gguf(path, 1024, slots, port, threads, draft=draft):
            signal.sigwait(ends)


if __name__ == "__main__":
    main()
