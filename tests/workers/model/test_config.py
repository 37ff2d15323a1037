"""A config is read as transformers' config classes read it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from transformers import AutoConfig

from tests.workers.model.families import CASES, SIZES, network
from tests.workers.model.test_families import CHECKPOINTS
from workers.model.config import ModelConfig
from workers.model.families import FAMILIES, FULL, SLIDING

SHORT = {key: SIZES[key] for key in list(SIZES)[:5]}
WRITTEN: dict[str, dict[str, Any]] = {
    **{
        f"{case}, as given": {**SIZES, **more, "model_type": kind}
        for case, (kind, more) in CASES.items()
    },
    **{f"{kind}, nothing but sizes": {**SHORT, "model_type": kind} for kind in FAMILIES},
    **CHECKPOINTS,
    "llama, an older name of the type": {
        **SHORT, "model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0},
    },
    "llama 3, no length of pretraining": {
        **SHORT, "model_type": "llama", "rope_theta": 500.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
    },
    "smollm3, layers by name": {
        **SHORT, "model_type": "smollm3", "layer_types": ["full_attention"] * 4,
        "no_rope_layers": [1, 0, 1, 0],
    },
}  # fmt: skip
INPUTS = {
    "use_sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
    "no_rope_layer_interval",
}
"""Of these both make `layer_types` and the like."""


def compare(ours: ModelConfig, theirs: Any) -> None:
    for name in ModelConfig.model_fields.keys() - INPUTS - {"eos_token_id"}:
        expected = getattr(theirs, name, None)
        if name == "head_dim":
            expected = expected or theirs.hidden_size // theirs.num_attention_heads
        elif name == "layer_types" and expected is None:
            expected = [SLIDING if ours.sliding_window else FULL] * ours.num_hidden_layers
        elif name == "hidden_act":
            expected = getattr(theirs, "hidden_activation", None) or expected
        elif expected is None:
            expected = ModelConfig.model_fields[name].default
        assert getattr(ours, name) == expected, name


@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_file_leaves_out_is_completed_as_transformers_does(name: str) -> None:
    written = WRITTEN[name]
    theirs = AutoConfig.for_model(**deepcopy(written))
    compare(ModelConfig.read(deepcopy(written)), theirs)


@pytest.mark.parametrize("case", CASES)
def test_what_transformers_writes_is_read(case: str) -> None:
    theirs = network(case).config
    for written in (theirs.to_dict(), theirs.to_diff_dict()):
        compare(ModelConfig.read(deepcopy(written)), theirs)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_size": "wide"}, "hidden_size: .* integer.*, not 'wide'"),
        ({"num_hidden_layers": None}, "num_hidden_layers: .*not None"),
        ({"vocab_size": 0}, "vocab_size: .*greater than 0, not 0"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ModelConfig.read({**SHORT, "model_type": "llama", **change})
