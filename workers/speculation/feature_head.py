"""Feature drafters: one decoder layer between the target's own embedding and head.

A feature is what the target's head reads: the normed end of its last layer. The drafter guesses
the feature f_t behind token x_t from the one before and the token that was drawn from it,
(f_{t-1}, x_t), since a feature alone does not say which of its tokens was drawn (EAGLE, Li et al.
2401.15077). Its guess takes the feature's place one token further, and the target's head makes
the draft law of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from workers.model.layer import Projection
from workers.model.target import ModelOutput, Target
from workers.model.tree import Tree

Variant = Literal["fspad", "eagle2"]
VARIANTS: tuple[Variant, ...] = ("fspad", "eagle2")
SAMPLER = 2
"""Width of FSPAD's feature sampler, as a multiple of the feature's."""


class Head(nn.Module):
    """What is trained of a drafter; `model` is the target's, whose layer and norm it is made of.

    `eagle2` fuses embedding and feature, runs the layer, and its output is both the guess and
    what the target's head reads. `fspad` (2408.15562) differs in two places:

    * feature sampling: the embedding opens gates in a wider image of the feature, which moves the
      feature towards what the drawn token made of it, before both are fused;
    * partial alignment: the guess and what the head reads are two images of the output, so that
      regressing the feature and matching the law share the layer without being tied.

    The ideas are the paper's; the form of both, and the norm behind the layer, are ours.

    It begins as `eagle2` exactly. That has as many parameters: what `fspad` spends on both, it
    has in a wider feed-forward part.
    """

    def __init__(self, model: Any, variant: Variant) -> None:
        super().__init__()
        config = deepcopy(model.config)
        width, layer, norm = config.hidden_size, type(model.model.layers[0]), type(model.model.norm)
        self.variant, self.width, self.vocabulary = variant, width, config.vocab_size
        if variant == "eagle2":
            config.intermediate_size += round((3 * SAMPLER + 2) * width / 3)
        config._attn_implementation = "sdpa"
        self.fuse = nn.Linear(2 * width, width, bias=False)
        self.layer = layer(config, 0)
        self.norm = norm(width, eps=config.rms_norm_eps)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=width**-0.5)
        if variant == "fspad":
            self.gate = nn.Linear(width, SAMPLER * width, bias=False)
            self.up = nn.Linear(width, SAMPLER * width, bias=False)
            self.down = nn.Linear(SAMPLER * width, width, bias=False)
            self.guessed = nn.Linear(width, width, bias=False)
            self.read = nn.Linear(width, width, bias=False)
            nn.init.zeros_(self.down.weight)
            nn.init.eye_(self.guessed.weight)
            nn.init.eye_(self.read.weight)

    def enter(self, embedding: Tensor, feature: Tensor) -> Tensor:
        """What the layer reads of x_t's embedding and f_{t-1}; all [..., width]."""
        if self.variant == "fspad":
            gate = functional.silu(self.gate(embedding))
            feature = feature + self.down(gate * self.up(feature))
        entered: Tensor = self.fuse(torch.cat((embedding, feature), -1))
        return entered

    def guess(self, output: Tensor) -> Tensor:
        """The feature f_t, of the layer's normed output."""
        return self.guessed(output) if self.variant == "fspad" else output

    def confide(self, output: Tensor) -> Tensor:
        """What the target's head is to read for the law behind x_t."""
        return self.read(output) if self.variant == "fspad" else output

    def save(self, folder: Path) -> None:
        """Write weights in bfloat16, and of what kind they are."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {k: v.detach().to("cpu", torch.bfloat16) for k, v in self.state_dict().items()}
        save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self._kind(), indent=2) + "\n")

    def _kind(self) -> dict[str, Any]:
        return {"drafter": self.variant, "width": self.width, "vocabulary": self.vocabulary}

    @classmethod
    def load(cls, model: Any, variant: Variant, folder: Path) -> Head:
        """The head of a folder, on the device and in the type of its target `model`.

        Raises:
            ValueError: there is none, or one of another variant or for another target.
        """
        try:
            kind = json.loads((folder / "config.json").read_text())
            state = load_file(folder / "model.safetensors")
        except (OSError, json.JSONDecodeError, SafetensorError) as error:
            raise ValueError(
                f"{folder} holds no {variant} head for the target (`baton train {variant}` "
                f"makes one): {error}"
            ) from error
        head = cls(model, variant)
        if kind != head._kind():
            raise ValueError(f"{folder} is for {kind}, and {head._kind()} is asked for")
        try:
            head.load_state_dict(state)
        except RuntimeError as error:
            what = " ".join(str(error).split())
            raise ValueError(f"{folder} does not fit the target: {what}") from error
        weight = model.model.embed_tokens.weight
        return head.to(weight.device, weight.dtype).eval().requires_grad_(False)


class Ahead(Target):
    """A head as the model that a `Drafter` runs.

    Place j of its cache belongs to token x_j, as in the target's, and is read with the feature
    before it (zero at the very beginning). The nodes of a round's first pass are committed: their
    features are the target's own, which its cache remembers. Deeper ones have their parent's
    guess.
    """

    def __init__(self, head: Head, target: Target) -> None:
        target.remember(len(target.layers))
        for part in head.children():
            if isinstance(part, nn.Linear):
                Projection(part)  # lays its weights out as products with one vector read them
        ours = SimpleNamespace(
            embed_tokens=SimpleNamespace(weight=target.embedding),
            norm=head.norm,
            layers=[head.layer],
            rotary_emb=target.model.model.rotary_emb,
        )
        model = SimpleNamespace(
            model=ours,
            config=target.model.config,
            lm_head=lambda output: target.head(head.confide(output)),
        )
        super().__init__(
            model, slots=target.cache.slots, max_len=target.max_len, vocabulary=target.vocabulary
        )
        self.drafter, self.features = head, target.cache
        self._guesses, self._read = torch.empty(0), [0]  # of the last pass, [rows, n, width]

    def forward(
        self,
        slots: Sequence[int],
        trees: Sequence[Tree],
        *,
        skip: Sequence[int] | None = None,
        num_logits: int | None = None,
        **_: Any,
    ) -> ModelOutput:
        done = list(skip or [0] * len(slots))
        fresh = [tree.tokens[read:] for tree, read in zip(trees, done, strict=True)]
        n = max(map(len, fresh))
        embedding = self.embed([ids + [0] * (n - len(ids)) for ids in fresh])
        feature = self._guessed(trees, done, n) if any(done) else self._true(slots, n)
        states = self.drafter.enter(embedding, feature)
        result = super().forward(
            slots, trees, skip=skip, num_logits=num_logits, states=states, hidden=(1,)
        )
        self._guesses, self._read = self.drafter.guess(result.hidden[1]), done
        return result

    def _true(self, slots: Sequence[int], n: int) -> Tensor:
        """The features before n committed tokens of each slot."""
        assert self.features.states is not None
        rows = torch.tensor(slots, device=self.device)[:, None]
        starts = torch.tensor([self.cache.lengths[slot] for slot in slots], device=self.device)
        before = starts[:, None] + torch.arange(n, device=self.device) - 1
        return self.features.states[rows, before.clamp(min=0)] * (before >= 0)[..., None]

    def _guessed(self, trees: Sequence[Tree], done: list[int], n: int) -> Tensor:
        """What the last pass guessed behind the parents of the new nodes."""
        parents = [
            [parent - read for parent in tree.parents[new:]]
            for tree, new, read in zip(trees, done, self._read, strict=True)
        ]
        places = torch.tensor([p + [0] * (n - len(p)) for p in parents], device=self.device)
        rows = torch.arange(len(trees), device=self.device)[:, None]
        return self._guesses[rows, places]
