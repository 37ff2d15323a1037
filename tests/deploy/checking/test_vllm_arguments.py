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


def test_a_wrong_argument_is_named_where_it_stands(tmp_path: Path) -> None:
    before, _, after = (ROOT / "deploy" / "gpu.yaml").read_text().partition("method: vanilla")
    file = tmp_path / "gpu.yaml"
    file.write_text(
        f"{before}method: ngram\n            params: {{num_speculative_token: 3}}"
        "\n          engine_args:\n            quantization: fp8\n            nnodes: 2\n"
        f"          # {after}"
    )
    told = {(one.field, one.location.line): one.message for one in check(str(file)).findings}
    line = before.count("\n") + 1
    large = "applications.0.args.workers.large"
    assert (
        "did you mean num_speculative_tokens?"
        in told[f"{large}.speculation.params.num_speculative_token", line + 1]
    )
    assert "Ray finds the GPUs" in told[f"{large}.engine_args.nnodes", line + 4]
    assert len([one for one in check(str(file)).findings if one.level == "error"]) == 2


def test_what_it_has_is_right(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "gpu.yaml").read_text()
    file = tmp_path / "gpu.yaml"
    file.write_text(
        text.replace(
            "method: vanilla",
            "method: ngram\n            params: {num_speculative_tokens: 4, prompt_lookup_max: 4}"
            "\n          engine_args: {quantization: fp8}\n          #",
        )
    )
    assert check(str(file)).ok
