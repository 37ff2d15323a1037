"""A transformers model with a tree mask and a preallocated cache.

A pass runs the model's decoder layers with operations of our own (`layer.py`) on its weights: what
transformers' modules and `forward` add around the arithmetic (building masks, cache wrappers,
output classes, launches) costs more than the arithmetic of a small model.

Layout follows Miao et al. (SpecInfer, 2305.09781): node i of a tree attends to the committed
prefix, its ancestors and itself; its position is the length of the prefix plus its *depth*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from workers.model.cache import KVCache
from workers.model.early_exit import Adapter, EarlyExitHead
from workers.model.layer import Layer, RMSNorm, Rotary, half_split
from workers.model.linear import FusedLinear
from workers.model.tree import Tree

CHUNK = 512  # most tokens of one row in one pass
SPARE = 128  # cache entries beyond `max_len`, for the rejected part of a draft


@dataclass(slots=True)
class ModelOutput:
    """Of one pass: logits [rows, n, vocabulary], and the requested hidden states by layer."""

    logits: Tensor
    hidden: dict[int, Tensor] = field(default_factory=dict)


class Target:
    """The model that scores drafts. A draft model is another `Target`, with a cache of its own.

    Args:
        model: `LlamaForCausalLM`, `Qwen2ForCausalLM` or `Qwen3ForCausalLM`, on its device.
        slots: how many sequences the cache holds.
        max_len: longest sequence.
        vocabulary: size of the tokenizer; logits of padded rows of the head are cut off.
        encode: from a text to ids, for a method with a prompt of its own.
    """

    def __init__(
        self,
        model: Any,
        *,
        slots: int,
        max_len: int,
        vocabulary: int | None = None,
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        base, config = model.model, model.config
        weight = base.embed_tokens.weight
        self.device, self.dtype, self.max_len = weight.device, weight.dtype, max_len
        self.model, self.norm, self.lm_head = model, RMSNorm.of(base.norm), lm_head_of(model)
        self.embedding = base.embed_tokens.weight  # tied weights as `lm_head_of` laid them out
        self.vocabulary, self.encode = vocabulary or config.vocab_size, encode
        self.passes = 0  # those that reach the last layer
        self.early_exit: EarlyExitHead | None = None
        self._cached_layer: int | None = None
        head_size = getattr(config, "head_dim", None)
        head_size = head_size or config.hidden_size // config.num_attention_heads
        with torch.no_grad():
            self.layers = [Layer(layer) for layer in base.layers]
            capacity = max_len + SPARE
            self.cache = KVCache(
                len(self.layers),
                slots,
                config.num_key_value_heads,
                capacity,
                head_size,
                device=self.device,
                dtype=self.dtype,
            )
            self._columns = torch.arange(capacity, device=self.device)
            probe = torch.zeros(1, device=self.device, dtype=self.dtype)
            self._rotary = half_split(*base.rotary_emb(probe, self._columns[None]))
            # Row i is the causal mask of the i-th of n new tokens; a window that begins further
            # left has a longer prefix, so a chain's mask is a view of this one.
            chunk = min(CHUNK, capacity)
            offset = torch.arange(capacity + chunk, device=self.device) - capacity
            visible = offset[None] <= torch.arange(chunk, device=self.device)[:, None]
            self._causal = self._additive(visible)

    def add_early_exit(self, adapter: Adapter) -> None:
        """Let passes end at the adapter's layer; before anything is cached.

        From then on every token that reaches that layer leaves the adapter's keys and values in
        the cache too, so a slot's length holds for them as well. Methods may share an adapter:
        equal ones count as one.

        Raises:
            ValueError: there is another adapter already.
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

    def cache_hidden_states(self, layer: int) -> None:
        """Cache the input of a layer with every token, in `cache.hidden_states`.

        The number of layers stands for the final norm's output, as in `forward`. To be called
        before anything is cached.
        """
        self._cached_layer = layer
        self.cache.add_hidden_states(self.embedding.shape[1])

    def forward(
        self,
        slots: Sequence[int],
        trees: Sequence[Tree],
        *,
        skip: Sequence[int] | None = None,
        num_logits: int | None = None,
        states: Tensor | None = None,
        layers: tuple[int, int | None] = (0, None),
        hidden: Sequence[int] = (),
    ) -> ModelOutput:
        """One pass over one tree per slot; writes the cache behind each slot's length.

        Nothing is committed: `cache.commit` does that. Shorter trees are padded at the end; the
        logits there are to be ignored.

        Args:
            slots: ascending, one per tree.
            skip: how many first nodes of each tree are in the cache from an earlier pass, though
                not committed; this pass runs the others, and its logits are theirs.
            num_logits: only the logits of that many last nodes (0: none).
            states: residual stream [rows, n, width] to enter layer `layers[0]` with.
            layers: half-open range of layers to run; logits need the last one, or an early
                exit behind it.
            hidden: layers whose *input* is wanted; the number of layers stands for the final
                norm's output.
        """
        skips = skip or [0] * len(slots)
        fresh = [tree.tokens[done:] for tree, done in zip(trees, skips, strict=True)]
        rows, n = len(slots), max(map(len, fresh))
        lengths = self.cache.lengths
        starts = [lengths[slot] + done for slot, done in zip(slots, skips, strict=True)]
        chains = all(tree.is_chain for tree in trees)
        first, stop = layers[0], layers[1] if layers[1] is not None else len(self.layers)
        if rows == 1 and chains and n <= len(self._causal):
            start = starts[0]
            cosines, sines = (table.narrow(2, start, n) for table in self._rotary)
            rotary, entries = (cosines, sines), None
            # Without a mask, sdpa takes n > 1 queries as the causal square from position 0.
            mask = None if n == 1 or start == 0 else self._causal_mask(start, n)
        else:
            positions, entries, mask = self._tree_mask(starts, skips, trees, n, chains)
            cosines, sines = (table[0, 0][positions] for table in self._rotary)
            rotary = cosines.unsqueeze(1), sines.unsqueeze(1)
        self.cache.map_slots(slots, starts, entries, n)
        x = states
        if x is None:
            padded = [tokens + [0] * (n - len(tokens)) for tokens in fresh]
            x = self.embed(padded)
        hidden_states: dict[int, Tensor] = {}
        for index in range(first, stop):
            if index in hidden:
                hidden_states[index] = x
            if self.early_exit is not None and first < index == self.exit_layer:
                self.early_exit.attention.update_cache(x, rotary, self.cache)
            if index == self._cached_layer:
                self.cache.update_hidden_states(x)
            x = self.layers[index](x, rotary, mask, self.cache)
        if stop < len(self.layers):
            hidden_states[stop] = x
            return ModelOutput(
                self._early_logits(x, stop, rotary, mask, n if num_logits is None else num_logits),
                hidden_states,
            )
        self.passes += 1
        if stop == self._cached_layer:
            x = self.norm(x)
            self.cache.update_hidden_states(x)
            x = x if num_logits is None else x[:, n - num_logits :]
        else:
            x = self.norm(x if num_logits is None else x[:, n - num_logits :])
        if stop in hidden:
            hidden_states[stop] = x
        return ModelOutput(self._logits(x), hidden_states)

    def _early_logits(
        self,
        x: Tensor,
        stop: int,
        rotary: Rotary,
        mask: Tensor | None,
        num_logits: int,
    ) -> Tensor:
        """Logits of the last nodes of a pass that ends before the last layer; none elsewhere."""
        if self.early_exit is None or stop != self.exit_layer:
            return x[:, :0]
        if num_logits == 0:
            self.early_exit.attention.update_cache(x, rotary, self.cache)
            return x[:, :0]
        x = self.early_exit(x, rotary, mask, self.cache)[:, -num_logits:]
        return self._logits(x)

    def embed(self, tokens: list[list[int]]) -> Tensor:
        """Embeddings [rows, n, width] of token ids."""
        return embedding(torch.tensor(tokens, device=self.device), self.embedding)

    def _logits(self, x: Tensor) -> Tensor:
        """Logits [rows, n, vocabulary] of the head's input [rows, n, width]."""
        rows, n, width = x.shape
        logits = self.lm_head(x.reshape(rows * n, width))
        return logits.view(rows, n, logits.shape[-1])[..., : self.vocabulary]

    def extend(self, slot: int, tokens: Sequence[int], *, num_logits: int = 1) -> ModelOutput:
        """Run and commit tokens behind a slot's length, in one pass."""
        output = self.forward([slot], [Tree.chain(list(tokens))], num_logits=num_logits)
        self.cache.lengths[slot] += len(tokens)
        return output

    @torch.inference_mode()
    def prefill_chunk(
        self, slot: int, ids: Sequence[int], *, num_logits: int = 1, chunk: int = CHUNK
    ) -> ModelOutput | None:
        """Cache one chunk of the part of `ids` that the slot lacks.

        Returns None while more is missing, and with the final chunk the logits of the last
        `num_logits` tokens (which must not be cached before).
        """
        missing = ids[self.cache.lengths[slot] :]
        chunk = max(chunk, num_logits)
        if len(missing) > chunk:
            # The final chunk must hold all the tokens whose logits are wanted.
            self.extend(slot, missing[: min(chunk, len(missing) - num_logits)], num_logits=0)
            return None
        return self.extend(slot, missing, num_logits=num_logits)

    def prefill(self, slot: int, ids: Sequence[int], *, num_logits: int = 1) -> ModelOutput:
        """Cache all of `ids` that the slot lacks, which is at least one token."""
        while (output := self.prefill_chunk(slot, ids, num_logits=num_logits)) is None:
            pass
        return output

    def _additive(self, visible: Tensor) -> Tensor:
        """0 where visible, else minus infinity."""
        mask = torch.zeros(visible.shape, device=self.device, dtype=self.dtype)
        return mask.masked_fill_(~visible, -torch.inf)

    def _causal_mask(self, start: int, n: int) -> Tensor:
        """Mask [1, 1, n, start + n] of n chained tokens behind `start` cached ones."""
        capacity = self.cache.capacity
        view = self._causal[:n, capacity - start : capacity + n][None, None]
        # CUDA's kernels need aligned rows, which a window at any place does not give.
        return view if view.device.type == "cpu" else view.contiguous()

    def _tree_mask(
        self,
        starts: list[int],
        skips: Sequence[int],
        trees: Sequence[Tree],
        n: int,
        chains: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Positions [rows, n], cache entries [rows, n] and mask [rows, 1, n, end] of any trees."""
        start = torch.tensor(starts, device=self.device)[:, None]
        entries = start + self._columns[:n]
        columns = self._columns[: max(starts) + n]
        if chains:
            return entries, entries, self._additive(columns <= entries[:, :, None])[:, None]
        nodes = max(skips) + n
        width = (nodes + 7) // 8
        depths, packed = [], bytearray()
        for tree, done in zip(trees, skips, strict=True):
            depth, bits = tree.ancestor_masks()
            padding = range(len(tree), done + n)  # attends to itself, for a finite softmax
            depths.append(depth[done:] + [0] * len(padding))
            for number in (*bits[done:], *(1 << node for node in padding)):
                packed += number.to_bytes(width, "little")
        bits_of_rows = np.frombuffer(packed, np.uint8).reshape(len(trees), n, width)
        ancestors = torch.from_numpy(np.unpackbits(bits_of_rows, axis=-1, bitorder="little"))
        base = start - torch.tensor(skips, device=self.device)[:, None]  # the committed prefix
        node = columns - base  # of each column; negative in the prefix
        in_tree = ancestors.to(self.device).gather(
            2, node.clamp(0, 8 * width - 1)[:, None].expand(-1, n, -1)
        )
        visible = (in_tree > 0) & (node < nodes)[:, None] | (node < 0)[:, None]
        return (
            base + torch.tensor(depths, device=self.device),
            entries,
            self._additive(visible)[:, None],
        )


def lm_head_of(model: Any) -> Callable[[Tensor], Tensor]:
    """The head as a function of [tokens, width]; tied weights stay tied."""
    head, embedded = model.lm_head, model.model.embed_tokens
    if not isinstance(head, nn.Linear):
        return head  # type: ignore[no-any-return]
    tied = embedded.weight is head.weight
    linear = FusedLinear(head)
    if tied:
        embedded.weight = head.weight
    return linear
