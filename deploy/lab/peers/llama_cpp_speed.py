"""Plain decoding in 8 bits beside llama.cpp's: `python -m deploy.lab.peers.llama_cpp_speed`.

The same weights: llama.cpp's file is written here, in Q8_0, from the checkpoint that our engine
reads in `int8`. Both decode greedily from the same token ids, and neither's time counts the prompt.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import gguf
import httpx
import torch
from safetensors import safe_open

from deploy.evaluation.intervals import ratio_of_sums
from deploy.evaluation.problems import load_problems
from deploy.lab.pair.generation import generate
from deploy.lab.peers import servers
from orchestrator.types import Message, Sampling, Transcript
from workers.engine.loading import open_target
from workers.speculation.decode import Decoder
from workers.speculation.vanilla import Vanilla
from workers.text.prompt import PromptRenderer

PAIR = Path("build/real-pair")
PROBLEMS = "gym:gsm_symbolic:20261202"
OWN = {"general.architecture", "general.file_type", "general.quantization_version"}


def write_q8(source: Path, checkpoint: Path, path: Path) -> None:
    """The checkpoint in Q8_0, with the metadata and the tokenizer of the GGUF file `source`."""
    reader = gguf.GGUFReader(source)
    kind = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, kind)
    for name, field in reader.fields.items():
        if name in OWN or name.startswith("GGUF."):
            continue
        listed = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(
            name, field.contents(), field.types[0], field.types[-1] if listed else None
        )
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    blocks = reader.fields[f"{kind}.block_count"].contents()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, blocks)
    wanted = {tensor.name for tensor in reader.tensors}
    with safe_open(checkpoint / "model.safetensors", framework="pt") as file:
        keys = {names.get_name(key, try_suffixes=(".weight", ".bias")): key for key in file.keys()}  # noqa: SIM118
        for name in sorted(wanted):
            # The head's weight is the embedding's where the checkpoint ties them.
            tied = name == "output.weight" and name not in keys
            key = keys["token_embd.weight" if tied else name]
            weight = file.get_tensor(key).float().numpy()
            if weight.ndim == 1:
                writer.add_tensor(name, weight)
                continue
            packed = gguf.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    file = PAIR / "large-q8_0.gguf"
    if not file.exists():
        print("writing the checkpoint in Q8_0", file=sys.stderr)
        part = file.with_suffix(".part")
        write_q8(PAIR / "large.gguf", PAIR / "large", part)
        part.rename(file)
    loaded = open_target(PAIR / "large", dtype="int8", slots=1, max_len=1024)
    decoder, renderer = (
        Decoder(loaded.target, Vanilla(loaded.target)),
        PromptRenderer(loaded.tokenizer),
    )

    def ours(ids: list[int]) -> float:
        """Seconds of the tokens behind the first."""
        took = []
        for tokens in (1, 1 + options.tokens):
            loaded.target.cache.evict(0)
            began = perf_counter()
            generate(decoder, [ids], tokens, sampling=Sampling(), stop_token_ids=[])
            took.append(perf_counter() - began)
        return took[1] - took[0]

    seconds: tuple[list[float], list[float]] = [], []
    problems = load_problems(PROBLEMS, options.prompts, 0)
    pair = replace(servers.REAL, gguf=str(file), threads=options.threads)
    how = servers.llama_cpp(pair, slots=1)
    with servers.running(**how, log=file.with_suffix(".log")) as server:

        def theirs(ids: list[int]) -> float:
            # Its time begins behind the first token.
            body = {"prompt": ids, "n_predict": 1 + options.tokens, "temperature": 0,
                    "ignore_eos": True, "cache_prompt": False}  # fmt: skip
            reply = httpx.post(
                f"{server.url}/completion", json=body, timeout=300
            ).raise_for_status()
            timings = reply.json()["timings"]
            assert timings["predicted_n"] == 1 + options.tokens
            return float(timings["predicted_ms"]) / 1e3

        for number, problem in enumerate(problems):
            ids = renderer.transcript(Transcript((Message("user", problem.question),)))
            turn = [(0, ours), (1, theirs)]
            for at, decode in turn if number % 2 else reversed(turn):
                seconds[at].append(decode(ids))
            print(
                f"{number + 1} of {len(problems)}: {options.tokens / seconds[0][-1]:.1f} and "
                f"{options.tokens / seconds[1][-1]:.1f} tokens/s",
                file=sys.stderr,
            )
    low, high = ratio_of_sums(seconds[1], seconds[0])
    mine, others = (options.tokens * len(problems) / sum(one) for one in seconds)
    print(f"Baton, 8 bits: {mine:.1f} tokens/s; llama.cpp, Q8_0: {others:.1f} tokens/s")
    print(f"ratio {mine / others:.2f}x [{low:.2f}, {high:.2f}], {options.threads} threads")


if __name__ == "__main__":
    main()
