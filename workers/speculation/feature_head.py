"""Feature drafters: one decoder layer between the target's own embedding and head.

A feature is the input of the target's language-model head: the output of its final norm. The
drafter predicts the feature f_t after token x_t from the feature before and the token drawn from
it, (f_{t-1}, x_t), since a feature alone does not determine the drawn token (EAGLE, Li et al.
2401.15077). The prediction replaces the feature at the next token, and the target's head turns it
into the draft distribution.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from workers.model.families import Computation
from workers.model.linear import fuse
from workers.model.target import ModelOutput, Target
from workers.model.tree import Tree

SAMPLER = 2
"""Width of the feature sampler, as a multiple of the feature's."""


class FeatureHead(nn.Module):
    """The trained part of a feature drafter; `model` is the target's, for its layer and norm.

    EAGLE's fuses embedding and feature and runs the layer; its output is both the predicted
    feature and the input of the target's head. FSPAD's (2408.15562) differs in two places:

    * feature sampling: before both are fused, the embedding gates a wider projection of the
      feature, which adds to the feature what depends on the drawn token;
    * partial alignment: the predicted feature and the head's input are two projections of the
      output, so that regressing the feature and matching the distribution share the layer but not
      the output.

    The ideas are the paper's; the form of both, and the norm after the layer, are ours. An
    untrained head equals EAGLE's.

    Raises:
        ValueError: a head cannot serve the model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        Computation.of(model.config).check_plain("a feature head")
        config = model.config
        width, layer, norm = config.hidden_size, type(model.model.layers[0]), type(model.model.norm)
        self.width, self.vocabulary = width, config.vocab_size
        self.fuse = nn.Linear(2 * width, width, bias=False)
        self.layer = layer(config, 0)
        self.norm = norm(width, eps=config.rms_norm_eps)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=width**-0.5)
        self.gate = nn.Linear(width, SAMPLER * width, bias=False)
        self.up = nn.Linear(width, SAMPLER * width, bias=False)
        self.down = nn.Linear(SAMPLER * width, width, bias=False)
        self.guessed = nn.Linear(width, width, bias=False)
        self.read = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.down.weight)
        nn.init.eye_(self.guessed.weight)
        nn.init.eye_(self.read.weight)

    def layer_input(self, embedding: Tensor, feature: Tensor) -> Tensor:
        """Return the layer's input from x_t's embedding and f_{t-1}; all are [..., width]."""
        gate = functional.silu(self.gate(embedding))
        feature = feature + self.down(gate * self.up(feature))
        fused: Tensor = self.fuse(torch.cat((embedding, feature), -1))
        return fused

    def predicted_feature(self, output: Tensor) -> Tensor:
        """Return the feature f_t, from the layer's normed output."""
        feature: Tensor = self.guessed(output)
        return feature

    def lm_head_input(self, output: Tensor) -> Tensor:
        """Return the input of the target's head for the distribution after x_t."""
        wanted: Tensor = self.read(output)
        return wanted

    def save(self, folder: Path) -> None:
        """Write the weights in bfloat16, with the sizes."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {k: v.detach().to("cpu", torch.bfloat16) for k, v in self.state_dict().items()}
        save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self._kind(), indent=2) + "\n")

    def _kind(self) -> dict[str, Any]:
        return {"drafter": "fspad", "width": self.width, "vocabulary": self.vocabulary}

    @classmethod
    def load(cls, model: Any, folder: Path) -> FeatureHead:
        """Load the head in a folder, on the device and in the dtype of its target `model`.

        Raises:
            ValueError: there is none, or it is of another kind or for another target.
        """
        try:
            kind = json.loads((folder / "config.json").read_text())
            state = load_file(folder / "model.safetensors")
        except (OSError, json.JSONDecodeError, SafetensorError) as error:
            raise ValueError(
                f"{folder} holds no fspad head for the target (`baton lab train fspad` makes one): "
                f"{error}"
            ) from error
        head = cls(model)
        if kind != head._kind():
            raise ValueError(f"{folder} is for {kind}, and the target needs {head._kind()}")
        try:
            head.load_state_dict(state)
        except RuntimeError as error:
            what = " ".join(str(error).split())
            raise ValueError(f"{folder} does not fit the target: {what}") from error
        weight = model.model.norm.weight
        return head.to(weight.device, weight.dtype).eval().requires_grad_(False)


class FeatureDrafter(Target):
    """A feature head as the model that a `Drafter` runs.

    Entry j of its cache belongs to token x_j, as in the target's cache. A token runs with the
    feature before it (zero at the first token). The nodes of a step's first pass are committed, so
    their features are the target's own, from its cache. Deeper nodes use their parent's prediction.
    """

    def __init__(self, head: FeatureHead, target: Target) -> None:
        target.cache.add_hidden_states(target.embedding.shape[1])
        for part in head.children():
            if isinstance(part, nn.Linear):
                fuse([part], "weight")  # in the fastest layout
        ours = SimpleNamespace(
            embed_tokens=SimpleNamespace(weight=target.embedding),
            norm=head.norm,
            layers=[head.layer],
        )
        model = SimpleNamespace(
            model=ours,
            config=target.model.config,
            lm_head=lambda output: target.lm_head(head.lm_head_input(output)),
        )
        super().__init__(
            model, slots=target.cache.slots, max_len=target.max_len, vocabulary=target.vocabulary
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
        states = self.feature_head.layer_input(embedding, feature)
        result = super().forward(slots, trees, skip=skip, num_logits=num_logits, states=states)
        assert result.hidden is not None
        self._predicted = self.feature_head.predicted_feature(result.hidden)
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
