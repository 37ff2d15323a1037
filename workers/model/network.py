"""A checkpoint as what computes: its layers, made of its weights. It holds no cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.heap import give_back
from workers.model.config import ModelConfig
from workers.model.layer import Layer, RMSNorm
from workers.model.linear import Linear
from workers.model.packed import FOUR_BITS, Packing, computation
from workers.model.shapes import EMBEDDING, HEAD, LAYER, NORM, Read, below


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A causal model.

    `head` takes [tokens, width]; `folder` says where the model came from, since drafters may lie
    there.
    """

    config: ModelConfig
    dtype: torch.dtype  # of the computation; weights may take fewer bits
    embedding: Tensor
    layers: Sequence[Layer]
    norm: RMSNorm
    head: Callable[[Tensor], Tensor]
    folder: str = ""

    @classmethod
    def build(
        cls, config: ModelConfig, read: Read, packing: Packing | None = None, folder: str = ""
    ) -> Network:
        """Read the weights layer by layer, and pack each layer before the next is read.

        Norms and biases are of the computation's type. The embedding stays as it is; if weights
        have 4 bits, the head has 8.
        """

        def typed(name: str) -> Tensor:
            weight = read(name)
            if packing is None or weight.dim() > 1:
                return weight
            return weight.to(computation(packing))

        embedding, tied = read(EMBEDDING), config.tie_word_embeddings
        layers = []
        for index in range(config.num_hidden_layers):
            layers.append(Layer(config, index, below(typed, LAYER.format(index)), packing))
            give_back()  # what the layer took before it was joined or packed
        norm, last = typed(NORM), embedding if tied else read(HEAD)
        head = Linear([last], packing="int8" if packing in FOUR_BITS else packing)
        if tied and head.packed is None:
            embedding = head.weight.t()  # one tensor, laid out for the product
        return cls(config, norm.dtype, embedding, layers, RMSNorm.of(norm, config), head, folder)
