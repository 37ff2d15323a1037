"""`check-config` where vLLM is installed: its arguments by its own names."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from deploy.checking.files import check
from tests.deploy.conftest import ROOT

if find_spec("vllm") is None:
    pytest.skip("needs vLLM: make test-vllm", allow_module_level=True)

pytestmark = pytest.mark.vllm


GPU = (ROOT / "deploy" / "gpu.yaml").read_text()
NGRAM = "speculation: {method: ngram, params: {num_speculative_tokens: 4, prompt_lookup_max: 4}}"


def test_a_wrong_argument_is_named_where_it_stands(tmp_path: Path) -> None:
    before, _, after = GPU.partition(NGRAM)
    file = tmp_path / "gpu.yaml"
    file.write_text(
        f"{before}speculation:\n            method: ngram"
        "\n            params: {num_speculative_token: 3}"
        f"\n          engine_args:\n            quantization: fp8\n            nnodes: 2{after}"
    )
    told = {(one.field, one.line): one.message for one in check(str(file)).findings}
    line = before.count("\n") + 1
    large = "applications.0.args.workers.large"
    assert (
        "did you mean num_speculative_tokens?"
        in told[f"{large}.speculation.params.num_speculative_token", line + 2]
    )
    assert "Ray finds the GPUs" in told[f"{large}.engine_args.nnodes", line + 5]
    assert len([one for one in check(str(file)).findings if one.level == "error"]) == 2


def test_what_it_has_is_right(tmp_path: Path) -> None:
    file = tmp_path / "gpu.yaml"
    file.write_text(GPU.replace(NGRAM, f"{NGRAM}\n          engine_args: {{quantization: fp8}}"))
    assert check(str(file)).ok
