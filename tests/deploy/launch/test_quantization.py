"""Bits of a weight, by the configs of checkpoints that people publish."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.launch.quantization import weight_bits


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 4.125),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False}, 8),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [1, 1]}, 8),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, 4.5),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "group_size": 32}, "targets": ["a"]},
                    "group_1": {"weights": {"num_bits": 8, "group_size": None}},
                    "group_2": {"weights": None},
                },
            },
            8,
        ),
        ({"quant_method": "of the future"}, None),
        ({}, None),
    ],
    ids=lambda value: str(value.get("quant_method", "")) if isinstance(value, dict) else None,
)
def test_bits_of_a_weight(config: dict[str, Any], bits: float | None) -> None:
    assert weight_bits(config) == bits
