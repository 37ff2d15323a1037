"""How many bits a quantized checkpoint holds of a weight, by its config.

Every method has its own keys; those that vLLM reads and people publish are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = ("bits", "w_bit", "nbits", "num_bits")
_SCALE_BITS = 16  # of a group's scale


def weight_bits(quantization: Mapping[str, Any]) -> float | None:
    """Bits of a weight, its share of its group's scale included; None if unknown.

    Args:
        quantization: the config's `quantization_config`.
    """
    groups = quantization.get("config_groups")  # compressed-tensors, modelopt
    schemes = [
        group["weights"]
        for group in (groups.values() if isinstance(groups, Mapping) else ())
        if isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping)
    ]
    found = [bits for scheme in (schemes or [quantization]) if (bits := _said(scheme)) is not None]
    if found:
        return max(found)
    names = ("quant_method", "quant_algo", "format", "fmt")
    named = " ".join(str(quantization.get(name, "")) for name in names).lower()
    if quantization.get("load_in_4bit") or "fp4" in named:
        return 4 + 0.5
    if quantization.get("load_in_8bit") or "fp8" in named:
        return 8.0
    return None


def _said(scheme: Mapping[str, Any]) -> float | None:
    bits = next((scheme[key] for key in _KEYS if isinstance(scheme.get(key), int)), None)
    group = scheme.get("group_size")
    if bits is None:
        return None
    return bits + _SCALE_BITS / group if isinstance(group, int) and group > 0 else float(bits)
