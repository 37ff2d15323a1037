"""A checkpoint's config as its layers need it, read without transformers.

Importing a config class of transformers 5 imports compilers and distributed tensors: 2 s and 100 MB
in each process. `families.yaml` has what a config.json may leave out; a test compares the outcome
with transformers' classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, ValidationError

from workers.model.families import (
    DEFAULTS,
    EVERYWHERE,
    FAMILIES,
    FULL,
    SLIDING,
    AttentionKind,
    Family,
)

_OF_ALL = {"model_type", "eos_token_id"}  # beside what families follow
_PRETRAINED = ("llama3", "yarn", "longrope")
"""Ropes that need the length of pretraining; without it, it is the longest text."""


class ModelConfig(BaseModel):
    """A model of one of `FAMILIES`, by transformers' names.

    `rope_parameters` holds one rope, or one for each type of layer if the family has several.
    """

    model_config = ConfigDict(protected_namespaces=())

    model_type: str
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    max_position_embeddings: PositiveInt
    rms_norm_eps: PositiveFloat
    hidden_act: str
    tie_word_embeddings: bool
    rope_parameters: dict[str, Any]
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: PositiveInt | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 0
    sliding_window_pattern: PositiveInt = 1
    layer_types: list[str] | None = None
    no_rope_layer_interval: PositiveInt = 1
    no_rope_layers: list[int] | None = None
    embedding_multiplier: float = 1.0
    attention_multiplier: float | None = None
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    query_pre_attn_scalar: float | None = None
    eos_token_id: int | list[int] | None = None

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Self:
        """Complete the content of a config.json that passed `check_family`.

        Raises:
            ValueError: a value is missing or of another type, or keys contradict each other.
        """
        family = FAMILIES[written["model_type"]]
        defaults = DEFAULTS[family.kind]
        keys = _OF_ALL | EVERYWHERE | family.follows | defaults.keys()
        said = {**defaults, **{key: value for key, value in written.items() if key in keys}}
        said["hidden_act"] = said.get("hidden_activation") or said["hidden_act"]
        heads, width = said.get("num_attention_heads"), said.get("hidden_size")
        if said.get("num_key_value_heads") is None:
            said["num_key_value_heads"] = heads
        if said.get("head_dim") is None and type(heads) is type(width) is int and heads > 0:
            said["head_dim"] = width // heads
        said["rope_parameters"] = _ropes(said) if family.ropes_by_type else _rope(said)
        try:
            config = cls.model_validate(said)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"{place}: {first['msg']}, not {first['input']!r:.60}") from error
        return config.model_copy(update=config._by_layer())

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    def written(self) -> dict[str, Any]:
        """The config.json of it, with the keys that its family follows."""
        keys = _OF_ALL | EVERYWHERE | self.family.follows
        said = {key: value for key, value in self.model_dump().items() if key in keys}
        if "hidden_activation" in self.family.follows:
            said["hidden_activation"] = self.hidden_act
        return {**said, "architectures": [self.family.architecture]}

    def _by_layer(self) -> dict[str, Any]:
        """What layers differ in, as the families' authors say it in short.

        Raises:
            ValueError: keys contradict each other.
        """
        layers = range(self.num_hidden_layers)
        window, types, rotated = self.sliding_window, self.layer_types, self.no_rope_layers
        follows = self.family.follows
        if "no_rope_layers" in follows:
            every = self.no_rope_layer_interval
            rotated = rotated or [int((layer + 1) % every != 0) for layer in layers]
            windowed = self.use_sliding_window and window is not None
            types = types or [SLIDING if windowed and not one else FULL for one in rotated]
        elif "use_sliding_window" in follows:
            window = window if self.use_sliding_window else None
            first = len(layers) if window is None else self.max_window_layers
            types = types or [SLIDING if layer >= first else FULL for layer in layers]
        elif "sliding_window_pattern" in follows:
            every = self.sliding_window_pattern
            types = types or [SLIDING if (layer + 1) % every else FULL for layer in layers]
        types = types or [SLIDING if window else FULL] * len(layers)
        for name, each in (("no_rope_layers", rotated), ("layer_types", types)):
            if each and len(each) < len(layers):
                raise ValueError(f"{name} must have an entry for each of {len(layers)} layers")
        if SLIDING in types and window is None:
            raise ValueError(f"layer_types has {SLIDING}, which needs a sliding_window, not null")
        return {"sliding_window": window, "layer_types": types, "no_rope_layers": rotated}

    def attention(self, layer: int) -> AttentionKind:
        """How a layer attends."""
        assert self.layer_types is not None
        kind = self.layer_types[layer]
        rotates = self.no_rope_layers is None or self.no_rope_layers[layer]
        rope = kind if self.family.ropes_by_type else FULL
        window = self.sliding_window if kind == SLIDING else None
        return AttentionKind(rope if rotates else None, window)

    def check_plain(self, what: str) -> None:
        """That a part trained for the target's stream and attention fits: `what` names it.

        Raises:
            ValueError: layers differ in how they attend, or something is scaled.
        """
        kinds = {self.attention(layer) for layer in range(self.num_hidden_layers)}
        scales = (self.embedding_scale, self.residual_multiplier, self.logits_scaling)
        if kinds != {AttentionKind()} or scales != (1.0, 1.0, 1.0) or self.family.post_norms:
            raise ValueError(
                f"{what} needs a model whose layers all attend to the whole text, with one rope "
                f"and without scales, and this {self.family.name} is none: use another method"
            )

    @property
    def embedding_scale(self) -> float:
        """What embeddings are multiplied by."""
        width: float = self.hidden_size**0.5
        return width if self.family.scaled_embedding else self.embedding_multiplier

    @property
    def attention_scale(self) -> float:
        """What products of queries and keys are multiplied by."""
        if self.attention_multiplier is not None:
            return self.attention_multiplier
        scale: float = (self.query_pre_attn_scalar or self.head_dim) ** -0.5
        return scale

    @property
    def rope_limit(self) -> int | None:
        """How many positions the rotary tables are fixed for; None: all there are.

        A dynamic table stretches with the text beyond `max_position_embeddings`, and longrope's is
        another one beyond the length of pretraining: keys that are cached already would be wrong.
        """
        ropes = self.rope_parameters
        limits = [
            self.max_position_embeddings
            if rope["rope_type"] == "dynamic"
            else rope["original_max_position_embeddings"]
            for rope in (ropes, *(ropes.get(kind) or {} for kind in (FULL, SLIDING)))
            if rope.get("rope_type") in ("dynamic", "longrope")
        ]
        return min(limits, default=None)

    @property
    def longest_text(self) -> int:
        """How many tokens the model can be given as its authors meant it."""
        return min(self.max_position_embeddings, self.rope_limit or self.max_position_embeddings)


def _rope(said: Mapping[str, Any]) -> dict[str, Any]:
    given = said.get("rope_scaling") or said.get("rope_parameters") or {}
    rope = _complete(given, said["rope_theta"], said)
    length = said.get("original_max_position_embeddings")
    if length is not None and rope["rope_type"] in _PRETRAINED:
        rope["original_max_position_embeddings"] = length
    return rope


def _ropes(said: Mapping[str, Any]) -> dict[str, Any]:
    given = said.get("rope_parameters") or {}
    full = {"rope_type": "default", **(given.get(FULL) or {}), **(said.get("rope_scaling") or {})}
    return {
        FULL: _complete(full, said["rope_theta"], said),
        SLIDING: _complete(given.get(SLIDING) or {}, said["rope_local_base_freq"], said),
    }


def _complete(given: Mapping[str, Any], theta: Any, said: Mapping[str, Any]) -> dict[str, Any]:
    kind = given.get("rope_type", given.get("type", "default"))
    rope = {"rope_theta": theta, **given, "rope_type": kind}
    if kind in _PRETRAINED:
        rope.setdefault("original_max_position_embeddings", said["max_position_embeddings"])
    return rope
