"""A model with a tree mask and a preallocated cache.

A pass runs decoder layers of our own (`layer.py`): what transformers' modules add around the
arithmetic (masks, cache wrappers, output classes, launches) costs more than the arithmetic of a
small model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from workers.model.cache import KVCache
from workers.model.early_exit import Adapter, EarlyExitHead
from workers.model.families import AttentionKind
from workers.model.layer import Ragged
from workers.model.network import Network
from workers.model.placement import CHUNK, Placement, View
from workers.model.sampling import is_nan
from workers.model.shapes import layer_shapes, parameter_count
from workers.model.transfer import on_device
from workers.model.tree import Tree

FREE = 4  # tokens of padding in a pass, whose products a CPU makes while it reads the weights
SKIPPING = 2_000_000
"""Multiplications that take a CPU as long as a layer takes to pass over padding by indices."""
SPARE = 128  # cache entries beyond `max_len`, for the rejected part of a draft


@dataclass(slots=True)
class ModelOutput:
    """One pass: logits [rows, n, vocabulary], and the hidden states [rows, n, width] it ends with.

    They are the input of the next layer, or of the head.
    """

    logits: Tensor
    hidden: Tensor | None = None


class PromptChunk(NamedTuple):
    """The next tokens of a prompt that one pass takes; `final`: the prompt ends with them."""

    slot: int
    tokens: list[int]
    num_logits: int
    final: bool


class Target:
    """The model that scores drafts. A draft model is another `Target`, with another cache.

    Args:
        max_len: longest sequence, at most the config's `rope_limit`.
        vocabulary: size of the tokenizer; logits of padded rows of the head are cut off.
        encode: from a text to ids, for a method that adds a prompt.
    """

    def __init__(
        self,
        model: Network,
        *,
        slots: int,
        max_len: int,
        vocabulary: int | None = None,
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        config = model.config
        self.model, self.max_len = model, max_len
        self.device, self.dtype = model.embedding.device, model.dtype
        self.embedding, self.layers = model.embedding, model.layers
        self.norm, self.lm_head = model.norm, model.head
        scale = config.embedding_scale
        if config.family.scaled_embedding:  # in the type of the weights, as its authors do
            scale = self.embedding.new_tensor(scale).item()
        self._embedding_scale, self._logits_divisor = scale, config.logits_scaling
        self.vocabulary, self.encode = vocabulary or config.vocab_size, encode
        self.passes = 0  # those that reach the last layer
        self._free_padding = max(FREE, SKIPPING // parameter_count(layer_shapes(config)))
        self.early_exit: EarlyExitHead | None = None
        capacity = max_len + SPARE
        self.cache = KVCache(
            len(self.layers),
            slots,
            config.num_key_value_heads,
            capacity,
            config.head_dim,
            device=self.device,
            dtype=self.dtype,
        )
        groups = config.num_attention_heads // config.num_key_value_heads
        kinds = [layer.kind for layer in self.layers]
        self.placement = Placement(config, capacity, self.device, self.dtype, groups, kinds)

    def add_early_exit(self, adapter: Adapter) -> None:
        """Let passes end at the adapter's layer; before anything is cached.

        From then on every token that reaches that layer leaves the adapter's keys and values in
        the cache too. Methods may share an adapter; another than the first is a ValueError.
        """
        if self.early_exit is None:
            self.early_exit = EarlyExitHead(adapter, self.cache.add_layer())
        elif not self.early_exit.adapter.equals(adapter):
            raise ValueError(
                f"a model has one early exit, and another method has it at {self.exit_layer}"
            )

    @property
    def exit_layer(self) -> int:
        """The layer before which a pass may end with logits; -1 without an adapter."""
        return -1 if self.early_exit is None else self.early_exit.layer

    def forward(
        self,
        slots: Sequence[int],
        trees: Sequence[Tree],
        *,
        skip: Sequence[int] | None = None,
        num_logits: int | Sequence[int] | None = None,
        states: Tensor | None = None,
        layers: tuple[int, int | None] = (0, None),
    ) -> ModelOutput:
        """One pass over one tree per slot; writes the cache after each slot's length.

        Nothing is committed: `cache.commit` does that. Shorter trees are padded at the end; the
        logits there are to be ignored.

        Args:
            slots: ascending, one per tree.
            skip: how many first nodes of each tree are in the cache from an earlier pass, though
                not committed; this pass runs the others, and its logits are theirs.
            num_logits: only the logits of that many last nodes (0: none). A sequence says it for
                each tree; the padding does not count, and all logits lie in one row, tree by tree.
            states: residual stream [rows, n, width] to enter layer `layers[0]` with.
            layers: half-open range of layers to run; logits need the last one, or an early
                exit after it.
        """
        skips = skip or [0] * len(slots)
        fresh = [tree.tokens[done:] for tree, done in zip(trees, skips, strict=True)]
        n = max(map(len, fresh))
        lengths = self.cache.lengths
        starts = [lengths[slot] + done for slot, done in zip(slots, skips, strict=True)]
        first, stop = layers[0], layers[1] if layers[1] is not None else len(self.layers)
        entries, views = self.placement(starts, skips, trees, n)
        self.cache.map_slots(slots, starts, entries, n)
        whole = states is None and layers == (0, None)
        ragged = self._ragged([*map(len, fresh)], n) if whole else None
        x = states
        if ragged is not None:
            x = self.embed([[*chain.from_iterable(fresh)]])[0]
        elif x is None:
            padded = [tokens + [0] * (n - len(tokens)) for tokens in fresh]
            x = self.embed(padded)
        for index in range(first, stop):
            if self.early_exit is not None and first < index == self.exit_layer:
                self.early_exit.update_cache(x, views, self.cache)
            x = self.layers[index](x, views, self.cache, ragged)
        if stop < len(self.layers):
            assert num_logits is None or isinstance(num_logits, int)
            wanted = n if num_logits is None else num_logits
            return ModelOutput(self._early_logits(x, stop, views, wanted), x)
        self.passes += 1
        if ragged is not None and num_logits is None:
            return ModelOutput(ragged.pad(self._logits(self.norm(x)[None])[0]))
        if ragged is not None:
            x = ragged.pad(x)
        if self.cache.hidden_states is not None:
            x = self.norm(x)
            self.cache.update_hidden_states(x)
            x = _last(x, fresh, num_logits)
        else:
            x = self.norm(_last(x, fresh, num_logits))
        return ModelOutput(self._logits(x), x)

    def _ragged(self, lengths: Sequence[int], n: int) -> Ragged | None:
        """How products skip the padding of rows; None if they are as quick with it."""
        padding = n * len(lengths) - sum(lengths)
        alone = self.early_exit is None and self.cache.hidden_states is None  # which want padding
        if not alone or padding <= self._free_padding or self.device.type != "cpu":
            return None
        return Ragged.of(lengths, n, self.device)

    def _early_logits(
        self, x: Tensor, stop: int, views: Mapping[AttentionKind, View], num_logits: int
    ) -> Tensor:
        """Logits of the last nodes of a pass that ends before the last layer; none elsewhere."""
        if self.early_exit is None or stop != self.exit_layer:
            return x[:, :0]
        if num_logits == 0:
            self.early_exit.update_cache(x, views, self.cache)
            return x[:, :0]
        return self._logits(self.early_exit(x, views, self.cache)[:, -num_logits:])

    def embed(self, tokens: list[list[int]]) -> Tensor:
        """Embeddings [rows, n, width] of token ids."""
        x = embedding(on_device(tokens, self.device), self.embedding).to(self.dtype)
        return x if self._embedding_scale == 1 else x * self._embedding_scale

    def _logits(self, x: Tensor) -> Tensor:
        """Logits [rows, n, vocabulary] of the head's input [rows, n, width]."""
        rows, n, width = x.shape
        logits = self.lm_head(x.reshape(rows * n, width))
        if self._logits_divisor != 1:
            logits = logits / self._logits_divisor
        return logits.view(rows, n, logits.shape[-1])[..., : self.vocabulary]

    @torch.inference_mode()
    def extend_all(self, chunks: Sequence[PromptChunk]) -> list[ModelOutput]:
        """Run and commit tokens after the lengths of several slots, in one pass.

        Returns of each chunk, in the order given, the logits of its last `num_logits` tokens.
        """
        ordered = sorted(chunks, key=lambda chunk: chunk.slot)
        trees = [Tree.chain(chunk.tokens) for chunk in ordered]
        wanted = [chunk.num_logits for chunk in ordered]
        logits = self.forward([chunk.slot for chunk in ordered], trees, num_logits=wanted).logits
        outputs = {}
        for chunk, own in zip(ordered, logits.split(wanted, dim=1), strict=True):
            self.cache.lengths[chunk.slot] += len(chunk.tokens)
            outputs[chunk.slot] = ModelOutput(own)
        return [outputs[chunk.slot] for chunk in chunks]

    def next_chunk(self, slot: int, ids: Sequence[int], *, num_logits: int = 1) -> PromptChunk:
        """The next chunk of `ids` that the slot lacks; wanted: logits of the last `num_logits`."""
        start = self.cache.lengths[slot]
        end = min(start + CHUNK, len(ids))
        wanted = max(0, end - max(start, len(ids) - num_logits))
        return PromptChunk(slot, list(ids[start:end]), wanted, final=end == len(ids))

    def has_nan(self, slot: int, count: int) -> bool:
        """Whether a pass left a NaN at the newest `count` cached tokens of a slot; one transfer."""
        # A token that is NaN in any layer is so in the last.
        end, last = self.cache.lengths[slot], 2 * len(self.layers)
        return is_nan(self.cache.data[last - 2 : last, slot, :, end - count : end])

    def prefill(self, slot: int, ids: Sequence[int], *, num_logits: int = 1) -> ModelOutput:
        """Cache all of `ids` that the slot lacks, which is at least one token, chunk by chunk.

        Returns the logits of the last `num_logits` tokens (which must not be cached before).
        """
        logits: list[Tensor] = []
        while True:
            chunk = self.next_chunk(slot, ids, num_logits=num_logits)
            [output] = self.extend_all([chunk])
            if chunk.num_logits:
                logits.append(output.logits)
            if chunk.final:
                return ModelOutput(torch.cat(logits, 1) if len(logits) > 1 else output.logits)


def _last(
    x: Tensor, fresh: Sequence[Sequence[int]], num_logits: int | Sequence[int] | None
) -> Tensor:
    """Of [rows, n, width] the places whose logits are wanted (see `Target.forward`)."""
    if num_logits is None:
        return x
    if isinstance(num_logits, int):
        return x[:, x.shape[1] - num_logits :]
    if len(num_logits) == 1:
        return x[:, len(fresh[0]) - num_logits[0] :]
    parts = [
        row[len(tokens) - wanted : len(tokens)]
        for row, tokens, wanted in zip(x, fresh, num_logits, strict=True)
    ]
    return torch.cat(parts)[None]
