"""Load tools and evaluations: a command each, and what its output says when it went through."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SUMS = [(12, 30), (37, 12), (8, 9), (41, 17)]
_VLLM = """import argparse
from vllm.benchmarks import serve
parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""


@dataclass(frozen=True, slots=True)
class Tool:
    """`command` may name {url}, {tokenizer} (a folder of the pair's) and {tasks}; it runs in
    `workers/`, so that the pair's folders have names of two parts, as on a hub.

    `done` is a regular expression of the output's; `python` the least version that it runs on.
    """

    name: str
    requirements: Sequence[str]
    command: Sequence[str]
    done: str
    python: str = "3.11"


def _vllm_bench(name: str, backend: str, endpoint: str) -> Tool:
    return Tool(
        name,
        (),  # its environment is that of `make test-vllm`
        ["python", "-P", "-c", _VLLM, "--backend", backend, "--base-url", "{url}",
         "--endpoint", endpoint,
         "--model", "large-only", "--tokenizer", "{tokenizer}", "--num-prompts", "4",
         "--random-input-len", "16", "--random-output-len", "16"],
        r"Successful requests: +4\b",
    )  # fmt: skip


TOOLS = (
    Tool(
        "guidellm 0.8.1",
        ["guidellm==0.8.1", "torch==2.13.0"],
        ["guidellm", "run", "--backend", "kind=openai_http,target={url},model=large-only",
         "--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=4",
         "--tokenizer", "kind=huggingface_auto,model={tokenizer}",
         "--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=16",
         "--output", "kind=console", "--disable-console-interactive"],
        r"Benchmarking complete, generated 1",
    ),
    _vllm_bench("vllm bench serve, chat", "openai-chat", "/v1/chat/completions"),
    _vllm_bench("vllm bench serve, completions", "openai", "/v1/completions"),
    Tool(
        "aiperf 0.13.0",
        ["aiperf==0.13.0"],
        ["aiperf", "profile", "--model", "large-only", "--url", "{url}", "--endpoint-type", "chat",
         "--streaming", "--tokenizer", "{tokenizer}", "--request-count", "4", "--concurrency", "1",
         "--isl", "16", "--osl", "16", "--extra-inputs", "ignore_eos:true", "--ui", "none",
         "--artifact-dir", "{tasks}/aiperf"],
        r"Request Count[^\n]*\b4\b",
    ),
    Tool(
        "evalscope perf 1.14.1",
        ["evalscope[perf]==1.14.1"],
        ["evalscope", "perf", "--url", "{url}/v1/chat/completions", "--model", "large-only",
         "--api", "openai", "--dataset", "random", "--tokenizer-path", "{tokenizer}",
         "--min-prompt-length", "8", "--max-prompt-length", "16", "--max-tokens", "16",
         "--number", "4", "--parallel", "1", "--outputs-dir", "{tasks}/evalscope"],
        r"Performance summary saved",
    ),
    Tool(
        "inference-perf 0.7.0",
        ["inference-perf==0.7.0"],
        ["inference-perf", "--api.type", "completion", "--api.streaming", "true",
         "--server.type", "vllm", "--server.model_name", "large-only",
         "--server.base_url", "{url}", "--server.ignore_eos", "true",
         "--tokenizer.pretrained_model_name_or_path", "{tokenizer}", "--data.type", "random",
         *(f"--data.{side}_distribution.{name}={value}"
           for side, most in (("input", 16), ("output", 16))
           for name, value in (("min", 8), ("max", most), ("mean", 12), ("std_dev", 2),
                               ("total_count", 4))),
         "--load.type", "constant", "--load.stages", '[{"rate": 1, "duration": 4}]',
         "--load.num_workers", "1", "--storage.local_storage.path", "{tasks}/inference-perf"],
        r"Successes[^0-9]+0[^0-9]+4\b",
        python="3.12",
    ),
    Tool(
        "lm-eval 0.4.13, chat",
        ["lm_eval[api]==0.4.13"],
        ["lm_eval", "run", "--model", "local-chat-completions", "--model_args",
         "model=large-only,base_url={url}/v1/chat/completions,max_retries=1",
         "--include_path", "{tasks}", "--tasks", "sums", "--apply_chat_template"],
        r"\|sums +\|.*\|exact_match\|",
    ),
    Tool(
        "lm-eval 0.4.13, completions",
        ["lm_eval[api]==0.4.13", "transformers==5.23.0"],
        ["lm_eval", "run", "--model", "local-completions", "--model_args",
         "model=large-only,base_url={url}/v1/completions,max_retries=1,tokenizer={tokenizer},"
         "tokenizer_backend=huggingface",
         "--include_path", "{tasks}", "--tasks", "likely"],
        r"\|likely *\|.*\|acc +\|",
    ),
)  # fmt: skip


def write_tasks(folder: Path) -> None:
    """Two tasks of four sums for lm-eval: to write the answer, and to tell it from a wrong one."""
    common = {"dataset_path": "json", "test_split": "test", "target_delimiter": ""}
    sums = {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n\n"], "max_gen_toks": 200},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "filter_list": [
            {
                "name": "boxed",
                "filter": [
                    {"function": "regex", "regex_pattern": "boxed.(\\d+)"},
                    {"function": "take_first"},
                ],
            }
        ],
    }
    likely = {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_target": "label",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    rows = {
        "sums": [{"question": f"What is {a}+{b}?", "answer": str(a + b)} for a, b in _SUMS],
        "likely": [
            {"question": f"{a}+{b}=", "choices": [f"{a + b}.", f"{a + b + 7}."], "label": 0}
            for a, b in _SUMS
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, task in (("sums", sums), ("likely", likely)):
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows[name]), encoding="utf-8")
        files = {"dataset_kwargs": {"data_files": {"test": str(data)}}}
        whole = {"task": name, **common, **files, **task}  # JSON is YAML
        (folder / f"{name}.yaml").write_text(json.dumps(whole), encoding="utf-8")
