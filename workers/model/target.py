"""A transformers model under a tree mask and a preallocated cache.

The pass runs the model's decoder layers by operations of our own (`layer.py`), on its weights, and
its own head: what transformers' modules and `forward` add around the arithmetic (mask making, cache
wrappers, output classes, launches) costs more than the arithmetic of a small model.

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

from workers.model.cache import Cache
from workers.model.early_exit import Adapter, Exit
from workers.model.layer import Layer, Norm, Projection, half_split
from workers.model.tree import Tree

CHUNK = 512  # most tokens of one row in one pass
SPARE = 128  # cache room behind the context for the rejected part of a draft


@dataclass(slots=True)
class ModelOutput:
    """Answer of one pass: logits [rows, n, vocabulary], and hidden states by layer on request."""

    logits: Tensor
    hidden: dict[int, Tensor] = field(default_factory=dict)


class Target:
    """The model that verifies; drafters wrap their models in it too.

    Args:
        model: `LlamaForCausalLM`, `Qwen2ForCausalLM` or `Qwen3ForCausalLM`, on its device.
        slots: how many sequences the cache holds.
        max_len: longest sequence.
        vocabulary: real size of the tokenizer; padded rows of the head are never seen.
        encode: from a text to ids, for a method that puts words of its own before the model.
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
        self.model, self.norm, self.head = model, Norm.of(base.norm), head_of(model)
        self.embedding = base.embed_tokens.weight  # of a tied model what the head has made of it
        self.vocabulary, self.encode = vocabulary or config.vocab_size, encode
        self.passes = 0  # those that reach the last layer
        self.exit: Exit | None = None
        self._remembered: int | None = None
        head_size = getattr(config, "head_dim", None)
        head_size = head_size or config.hidden_size // config.num_attention_heads
        with torch.no_grad():
            self.layers = [Layer(layer) for layer in base.layers]
            capacity = max_len + SPARE
            self.cache = Cache(
                len(self.layers),
                slots,
                config.num_key_value_heads,
                capacity,
                head_size,
                device=self.device,
                dtype=self.dtype,
            )
            everywhere = torch.arange(capacity, device=self.device)
            probe = torch.zeros(1, device=self.device, dtype=self.dtype)
            self._rotary = half_split(*base.rotary_emb(probe, everywhere[None]))
            self._columns = everywhere
            # Row i of the strip is the causal mask of the i-th of n new tokens; moving the left
            # edge moves the length of the prefix, so a chain's mask is a view.
            chunk = min(CHUNK, capacity)
            offset = torch.arange(capacity + chunk, device=self.device) - capacity
            seen = offset[None] <= torch.arange(chunk, device=self.device)[:, None]
            self._strip = self._additive(seen)

    def exit_by(self, adapter: Adapter) -> None:
        """Let passes end at the adapter's layer; before anything is cached.

        From then on every token that reaches that layer leaves the adapter's keys and values in
        the cache too, so a slot's length is theirs as well.

        Methods may share an adapter: one that says the same as the first stands for it.

        Raises:
            ValueError: passes end by another adapter already.
        """
        if self.exit is None:
            self.exit = Exit(adapter, self.cache.add_layer())
        elif not self.exit.adapter.equals(adapter):
            raise ValueError(
                f"a model has one early exit, and another method has it at {self.exit_layer}"
            )

    @property
    def exit_layer(self) -> int:
        """Where a pass may end with logits before the last layer; -1 without an adapter."""
        return -1 if self.exit is None else self.exit.layer

    def remember(self, layer: int) -> None:
        """Keep the input of a layer with every cached token, in `cache.states`.

        The number of layers stands for the normed end, as in `forward`. To be called before
        anything is read.
        """
        self._remembered = layer
        self.cache.add_states(self.embedding.shape[1])

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

        Nothing is committed: `cache.keep` does that. Shorter trees are padded at the end and
        their padded logits are to be ignored.

        Args:
            slots: ascending, one per tree.
            skip: how many first nodes of each tree an earlier pass has read, uncommitted as they
                are; this pass reads the others, and its logits are theirs.
            num_logits: only the logits of that many last nodes (0: none).
            states: residual stream [rows, n, width] to enter layer `layers[0]` with.
            layers: half-open range of layers to run; logits need the last one, or an early
                exit behind it.
            hidden: layers whose *input* is wanted; the number of layers asks for the normed end.
        """
        skips = skip or [0] * len(slots)
        fresh = [tree.tokens[done:] for tree, done in zip(trees, skips, strict=True)]
        rows, n = len(slots), max(map(len, fresh))
        lengths = self.cache.lengths
        starts = [lengths[slot] + done for slot, done in zip(slots, skips, strict=True)]
        chains = all(tree.is_chain for tree in trees)
        first, stop = layers[0], layers[1] if layers[1] is not None else len(self.layers)
        if rows == 1 and chains and n <= len(self._strip):
            start = starts[0]
            cosines, sines = (table.narrow(2, start, n) for table in self._rotary)
            rotary, places = (cosines, sines), None
            # Without a mask, sdpa takes n > 1 queries as the causal square from position 0.
            mask = None if n == 1 or start == 0 else self._view(start, n)
        else:
            positions, places, mask = self._plan(starts, skips, trees, n, chains)
            cosines, sines = (table[0, 0][positions] for table in self._rotary)
            rotary = cosines.unsqueeze(1), sines.unsqueeze(1)
        self.cache.map_slots(slots, starts, places, n)
        x = states
        if x is None:
            padded = [tokens + [0] * (n - len(tokens)) for tokens in fresh]
            x = self.embed(padded)
        taken: dict[int, Tensor] = {}
        for index in range(first, stop):
            if index in hidden:
                taken[index] = x
            if self.exit is not None and first < index == self.exit_layer:
                self.exit.attention.note(x, rotary, self.cache)
            if index == self._remembered:
                self.cache.update_states(x)
            x = self.layers[index](x, rotary, mask, self.cache)
        if stop < len(self.layers):
            taken[stop] = x
            return ModelOutput(
                self._early(x, stop, rotary, mask, n if num_logits is None else num_logits), taken
            )
        self.passes += 1
        if stop == self._remembered:
            x = self.norm(x)
            self.cache.update_states(x)
            x = x if num_logits is None else x[:, n - num_logits :]
        else:
            x = self.norm(x if num_logits is None else x[:, n - num_logits :])
        if stop in hidden:
            taken[stop] = x
        return ModelOutput(self._logits(x), taken)

    def _early(
        self,
        x: Tensor,
        stop: int,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        num_logits: int,
    ) -> Tensor:
        """Logits of the last nodes of a pass that ends before the last layer, if it may."""
        if self.exit is None or stop != self.exit_layer:
            return x[:, :0]
        if num_logits == 0:
            self.exit.attention.note(x, rotary, self.cache)
            return x[:, :0]
        x = self.exit(x, rotary, mask, self.cache)[:, -num_logits:]
        return self._logits(x)

    def embed(self, tokens: list[list[int]]) -> Tensor:
        """[rows, n, width] of token ids."""
        return embedding(torch.tensor(tokens, device=self.device), self.embedding)

    def _logits(self, x: Tensor) -> Tensor:
        """[rows, n, vocabulary] of what the head is to read."""
        rows, n, width = x.shape
        logits = self.head(x.reshape(rows * n, width))
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

    def _additive(self, seen: Tensor) -> Tensor:
        mask = torch.zeros(seen.shape, device=self.device, dtype=self.dtype)
        return mask.masked_fill_(~seen, -torch.inf)

    def _view(self, start: int, n: int) -> Tensor:
        """Mask [1, 1, n, start + n] of n chained tokens behind `start` cached ones."""
        capacity = self.cache.capacity
        view = self._strip[:n, capacity - start : capacity + n][None, None]
        # CUDA's kernels want aligned rows, which an arbitrary left edge does not give.
        return view if view.device.type == "cpu" else view.contiguous()

    def _plan(
        self,
        starts: list[int],
        skips: Sequence[int],
        trees: Sequence[Tree],
        n: int,
        chains: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Positions and cache places [rows, n], and the mask [rows, 1, n, end] of any trees."""
        start = torch.tensor(starts, device=self.device)[:, None]
        places = start + self._columns[:n]
        columns = self._columns[: max(starts) + n]
        if chains:
            return places, places, self._additive(columns <= places[:, :, None])[:, None]
        nodes = max(skips) + n
        width = (nodes + 7) // 8
        depths, kin = [], bytearray()
        for tree, done in zip(trees, skips, strict=True):
            depth, bits = tree.kin()
            padding = range(len(tree), done + n)  # it sees itself, so that its softmax exists
            depths.append(depth[done:] + [0] * len(padding))
            for number in (*bits[done:], *(1 << node for node in padding)):
                kin += number.to_bytes(width, "little")
        packed = np.frombuffer(kin, np.uint8).reshape(len(trees), n, width)
        related = torch.from_numpy(np.unpackbits(packed, axis=-1, bitorder="little"))
        base = start - torch.tensor(skips, device=self.device)[:, None]  # the committed prefix
        inside = columns - base  # node that a column belongs to, negative in the prefix
        of_tree = related.to(self.device).gather(
            2, inside.clamp(0, 8 * width - 1)[:, None].expand(-1, n, -1)
        )
        seen = (of_tree > 0) & (inside < nodes)[:, None] | (inside < 0)[:, None]
        return (
            base + torch.tensor(depths, device=self.device),
            places,
            self._additive(seen)[:, None],
        )


def head_of(model: Any) -> Callable[[Tensor], Tensor]:
    """The head as a function of states [places, width]; tied weights stay tied."""
    head, embedded = model.lm_head, model.model.embed_tokens
    if not isinstance(head, nn.Linear):
        return head  # type: ignore[no-any-return]
    tied = embedded.weight is head.weight
    projection = Projection(head)
    if tied:
        embedded.weight = head.weight
    return projection
