"""The model families whose computation is ours, listed in `families.yaml`.

A config.json says how its authors compute. `FAMILIES` says which of its keys the layer follows for
each family; every other key must change nothing, or have the value of the family
as we compute it, and is refused by name otherwise. A test compares each family with transformers'
own forward pass, and this table with all fields of transformers' config classes.

Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from orchestrator.errors import ConfigError

_TABLES = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))
EVERYWHERE = frozenset(_TABLES["everywhere"])
"""Keys that every family follows, whatever they say; ropes are checked in `_rope_problems`."""
WITHOUT_EFFECT = frozenset(chain.from_iterable(_TABLES["without_effect"].values()))
"""Keys of real checkpoints that no family's forward pass reads."""
ROPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_ROPE_KEYS = frozenset(_TABLES["rope_keys"])
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu")
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Family:
    """What a family's layer does beyond Llama's.

    Attributes:
        name: as people call it.
        architecture: transformers' class.
        kind: its `model_type`.
        follows: its config keys that the layer follows, whatever their value.
        qkv_biases: queries, keys and values have biases, whatever `attention_bias` says.
        head_norms: queries and keys are normed head by head.
        post_norms: what attention and feed-forward part give is normed before it is added.
        norm_offset: what the stored weights of the norms lack.
        scaled_embedding: embeddings are multiplied by the root of their width, in their type.
        ropes_by_type: `rope_parameters` has an entry for each type of layer.
    """

    name: str
    architecture: str
    kind: str
    follows: frozenset[str]
    qkv_biases: bool = False
    head_norms: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    scaled_embedding: bool = False
    ropes_by_type: bool = False


FAMILIES: dict[str, Family] = {
    kind: Family(**{**row, "kind": kind, "follows": frozenset(row["follows"])})
    for kind, row in _TABLES["families"].items()
}
"""By `model_type`."""
DEFAULTS: dict[str, dict[str, Any]] = {
    kind: {**_TABLES["defaults"]["everywhere"], **_TABLES["defaults"].get(kind, {})}
    for kind in FAMILIES
}
"""By `model_type`, what a config.json may leave out."""


# What a config may say ---------------------------------------------------------------------


def check_family(config: Mapping[str, Any], model: str) -> Family:
    """The family of a config.json, if its computation is ours.

    Args:
        config: the file's content.
        model: its name, for the message.

    Raises:
        ConfigError: it is of no supported family, or a key asks for something else.
    """
    found = list(problems(config))
    if found:
        raise ConfigError(
            f"{model} would not be computed as its authors do: {'; '.join(found)}. "
            "Give another model, or a server's url"
        )
    return FAMILIES[config["model_type"]]


def problems(config: Mapping[str, Any]) -> Iterator[str]:
    """What of a config.json is not ours to compute: what was expected and what came."""
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        yield f"model_type must be one of {', '.join(FAMILIES)}, not {kind!r:.60}"
        return
    names = config.get("architectures")
    if names != [family.architecture]:
        yield f"architectures must be [{family.architecture}] with {kind}, not {names!r:.60}"
    for key, value in config.items():
        problem = _problem(family, key, value)
        if problem is not None:
            yield f"{key} {problem}"
    for name in ("rope_scaling", "rope_parameters"):
        yield from _rope_problems(name, config.get(name), by_type=family.ropes_by_type)


def _problem(family: Family, key: str, value: Any) -> str | None:
    if key == "is_causal":
        return None if value in (None, True) else f"must be true, not {value!r:.60}"
    if key == "partial_rotary_factor":
        return None if value in (None, 1) else f"must be 1, not {value!r:.60}"
    if key == "quantization_config":
        return "must be absent: quantized weights are not read" if value else None
    if key in ("hidden_act", "hidden_activation") and key in family.follows:
        known = value is None or value in ACTIVATIONS
        return None if known else f"must be one of {', '.join(ACTIVATIONS)}, not {value!r:.60}"
    if key == "auto_map":
        code = value.get("AutoModelForCausalLM") if isinstance(value, dict) else value
        return f"names code of the checkpoint's own ({code!r:.60}), never run" if code else None
    if key == "sliding_window" and key in family.follows:
        fits = value is None or (type(value) is int and value > 0)
        return None if fits else f"must be a number of tokens or null, not {value!r:.60}"
    if key == "layer_types" and value:
        allowed = {FULL, SLIDING} if key in family.follows else {FULL}
        other = [one for one in value if one not in allowed]
        wanted = " or ".join(sorted(allowed))
        return f"must be {wanted} each, not {other[0]!r:.60}" if other else None
    if key in EVERYWHERE | family.follows | WITHOUT_EFFECT or key.startswith("_"):
        return None
    if value in (None, False, 0, "", [], {}):  # switched off
        return None
    return f"is unknown to {family.name} and must be absent or off, not {value!r:.60}"


def _rope_problems(name: str, ropes: Any, *, by_type: bool = False) -> Iterator[str]:
    """What is wrong with `rope_scaling` or `rope_parameters`; `by_type`: they may be nested."""
    if ropes is None:
        return
    if not isinstance(ropes, Mapping):
        yield f"{name} must be a mapping, not {ropes!r:.60}"
        return
    nested = {key: ropes[key] for key in (FULL, SLIDING) if by_type and key in ropes}
    for kind, inner in nested.items():
        yield from _rope_problems(f"{name}.{kind}", inner)
    kind = ropes.get("rope_type", ropes.get("type", "default"))
    if kind not in ROPES:
        yield f"{name}.rope_type must be one of {', '.join(ROPES)}, not {kind!r:.60}"
    for key, value in ropes.items():
        if key == "partial_rotary_factor" and value in (None, 1):
            continue
        if key not in _ROPE_KEYS and key not in nested and value not in (None, False, [], {}):
            yield f"{name}.{key} is unknown and must be absent, not {value!r:.60}"


# What the layer is to do -------------------------------------------------------------------


class AttentionKind(NamedTuple):
    """How a layer attends.

    `rope` names the table its queries and keys are rotated by (None: they are not), `window` is
    how many tokens it sees, the newest included (None: all).
    """

    rope: str | None = FULL
    window: int | None = None
