"""Feature drafters: one decoder layer between the target's own embedding and head.

A feature is the input of the target's language-model head: the output of its final norm. The
drafter predicts the feature f_t after token x_t from the feature before and the token drawn from
it, (f_{t-1}, x_t), since a feature alone does not determine the drawn token (EAGLE, Li et al.
2401.15077). The prediction replaces the feature at the next token, and the target's head turns it
into the draft distribution.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from workers.model.config import ModelConfig
from workers.model.layer import Layer, RMSNorm
from workers.model.linear import Linear
from workers.model.network import Network
from workers.model.shapes import Read, Shape, below, layer_shapes
from workers.model.target import ModelOutput, Target
from workers.model.tree import Tree

SAMPLER = 2
"""Width of the feature sampler, as a multiple of the feature's."""


class FeatureMaps:
    """What a head computes around its layer, in service and in training; all are [..., width].

    EAGLE's fuses embedding and feature and runs the layer; its output is both the predicted
    feature and the input of the target's head. FSPAD's (2408.15562) differs in two places:

    * feature sampling: before both are fused, the embedding gates a wider projection of the
      feature, which adds to the feature what depends on the drawn token;
    * partial alignment: the predicted feature and the head's input are two projections of the
      output, so that regressing the feature and matching the distribution share the layer but not
      the output.

    The ideas are the paper's; the form of both, and the norm after the layer, are ours.
    """

    fuse: Callable[[Tensor], Tensor]
    gate: Callable[[Tensor], Tensor]
    up: Callable[[Tensor], Tensor]
    down: Callable[[Tensor], Tensor]
    guessed: Callable[[Tensor], Tensor]
    read: Callable[[Tensor], Tensor]

    def layer_input(self, embedding: Tensor, feature: Tensor) -> Tensor:
        """Return the layer's input from x_t's embedding and f_{t-1}."""
        feature = feature + self.down(functional.silu(self.gate(embedding)) * self.up(feature))
        return self.fuse(torch.cat((embedding, feature), -1))

    def predicted_feature(self, output: Tensor) -> Tensor:
        """Return the feature f_t, from the layer's normed output."""
        return self.guessed(output)

    def lm_head_input(self, output: Tensor) -> Tensor:
        """Return the input of the target's head for the distribution after x_t."""
        return self.read(output)


class FeatureHead(FeatureMaps):
    """The trained part of a feature drafter; its maps take [tokens, width]."""

    def __init__(self, config: ModelConfig, weight: Read) -> None:
        self.fuse, self.gate, self.up, self.down, self.guessed, self.read = (
            Linear([weight(f"{name}.weight")]) for name in _maps(config)
        )
        self.layer = Layer(config, 0, below(weight, "layer."))
        self.norm = RMSNorm.of(weight("norm.weight"), config)

    @classmethod
    def load(cls, folder: Path, network: Network) -> FeatureHead:
        """Load the head in a folder, on the device and in the dtype of the target's network.

        Raises:
            ValueError: there is none, or it is of another kind or for another target.
        """
        wanted, shapes = head_kind(network.config), head_shapes(network.config)
        try:
            kind = json.loads((folder / "config.json").read_text())
            state = load_file(folder / "model.safetensors")
        except (OSError, json.JSONDecodeError, SafetensorError) as error:
            raise ValueError(
                f"{folder} holds no fspad head for the target (`baton lab train fspad` makes one): "
                f"{error}"
            ) from error
        if kind != wanted:
            raise ValueError(f"{folder} is for {kind}, and the target needs {wanted}")
        stored = {name: tuple(one.shape) for name, one in state.items()}
        if different := sorted({name for name, _ in shapes.items() ^ stored.items()}):
            name = different[0]
            raise ValueError(
                f"{folder} does not fit the target: {name} is {stored.get(name)}, "
                f"expected {shapes.get(name)}"
            )
        device, dtype = network.embedding.device, network.dtype
        return cls(network.config, lambda name: state[name].to(device, dtype))


def head_kind(config: ModelConfig) -> dict[str, Any]:
    """What the config.json of a head for a target with this config says.

    Raises:
        ValueError: a head cannot serve the target.
    """
    config.check_plain("a feature head")
    return {"drafter": "fspad", "width": config.hidden_size, "vocabulary": config.vocab_size}


def head_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The weights of a head for a target with this config."""
    return {
        **{f"{name}.weight": shape for name, shape in _maps(config).items()},
        **{f"layer.{name}": shape for name, shape in layer_shapes(config).items()},
        "norm.weight": (config.hidden_size,),
    }


def _maps(config: ModelConfig) -> dict[str, Shape]:
    """Outputs and inputs of the maps of a head, in the order in which it has them."""
    width, wide = config.hidden_size, SAMPLER * config.hidden_size
    return {
        "fuse": (width, 2 * width), "gate": (wide, width), "up": (wide, width),
        "down": (width, wide), "guessed": (width, width), "read": (width, width),
    }  # fmt: skip


class FeatureDrafter(Target):
    """A feature head as the model that a `Drafter` runs.

    Entry j of its cache belongs to token x_j, as in the target's cache. A token runs with the
    feature before it (zero at the first token). The nodes of a step's first pass are committed, so
    their features are the target's own, from its cache. Deeper nodes use their parent's prediction.
    """

    def __init__(self, head: FeatureHead, target: Target) -> None:
        target.cache.add_hidden_states(target.embedding.shape[1])
        network = Network(
            target.model.config,
            target.dtype,
            target.embedding,
            [head.layer],
            head.norm,
            lambda output: target.lm_head(head.lm_head_input(output)),
        )
        super().__init__(
            network, slots=target.cache.slots, max_len=target.max_len, vocabulary=target.vocabulary
        )
        self.feature_head, self.target_cache = head, target.cache
        self._predicted, self._skipped = torch.empty(0), [0]  # of the last pass; [rows, n, width]

    def forward(
        self,
        slots: Sequence[int],
        trees: Sequence[Tree],
        *,
        skip: Sequence[int] | None = None,
        num_logits: int | Sequence[int] | None = None,
        **_: Any,
    ) -> ModelOutput:
        done = list(skip or [0] * len(slots))
        fresh = [tree.tokens[read:] for tree, read in zip(trees, done, strict=True)]
        n = max(map(len, fresh))
        embedding = self.embed([ids + [0] * (n - len(ids)) for ids in fresh])
        feature = self._predictions(trees, done, n) if any(done) else self._features(slots, n)
        states = self.feature_head.layer_input(embedding.flatten(0, 1), feature.flatten(0, 1))
        states = states.view(embedding.shape)
        result = super().forward(slots, trees, skip=skip, num_logits=num_logits, states=states)
        assert result.hidden is not None
        predicted = self.feature_head.predicted_feature(result.hidden.flatten(0, 1))
        self._predicted = predicted.view(result.hidden.shape)
        self._skipped = done
        return result

    def _features(self, slots: Sequence[int], n: int) -> Tensor:
        """Return the features before n committed tokens of each slot."""
        assert self.target_cache.hidden_states is not None
        rows = torch.tensor(slots, device=self.device)[:, None]
        starts = torch.tensor([self.cache.lengths[slot] for slot in slots], device=self.device)
        before = starts[:, None] + torch.arange(n, device=self.device) - 1
        return self.target_cache.hidden_states[rows, before.clamp(min=0)] * (before >= 0)[..., None]

    def _predictions(self, trees: Sequence[Tree], done: list[int], n: int) -> Tensor:
        """Return the features that the last pass predicted after the parents of the new nodes."""
        parents = [
            [parent - read for parent in tree.parents[new:]]
            for tree, new, read in zip(trees, done, self._skipped, strict=True)
        ]
        nodes = torch.tensor([p + [0] * (n - len(p)) for p in parents], device=self.device)
        rows = torch.arange(len(trees), device=self.device)[:, None]
        return self._predicted[rows, nodes]
