"""Training of the feature drafter (`workers/speculation/feature_head.py`).

The large model is frozen and reads its answers, half of them greedy and half sampled at temperature
1. After each token the head learns the model's feature (smooth L1) and its distribution
(Kullback-Leibler divergence through the frozen head), weighted as by EAGLE (2401.15077: 1 and 0.1).

In service a predicted feature rests on predicted ones. So the head is unrolled: step k reads the
predictions of step k - 1 instead of features, and later steps count less (the training-time test of
EAGLE-3, 2503.01840, where EAGLE adds noise to the features).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from deploy.lab.pair.batches import Batch
from deploy.lab.pair.chains import in_turn
from deploy.lab.pair.training import Schedule, fit
from deploy.lab.stock import stock
from workers.model.config import ModelConfig
from workers.speculation.feature_head import SAMPLER, FeatureMaps, head_kind

SCHEDULE = Schedule(tokens=3_000_000, seed=1)
STEPS = 3  # unrolled
FADING = 0.8  # weight of a step, relative to the one before
FEATURE_WEIGHT, DIVERGENCE_WEIGHT = 1.0, 0.1


class TrainableHead(FeatureMaps, nn.Module):
    """A feature head with a layer and a norm of `model`'s kind. Untrained it is EAGLE's."""

    fuse: nn.Linear
    down: nn.Linear
    guessed: nn.Linear
    read: nn.Linear

    def __init__(self, model: Any) -> None:
        super().__init__()
        config = model.config
        width, layer, norm = config.hidden_size, type(model.model.layers[0]), type(model.model.norm)
        self.kind = head_kind(ModelConfig.read(config.to_dict()))
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

    def save(self, folder: Path) -> None:
        """Write the weights in bfloat16, with the sizes."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {k: v.detach().to("cpu", torch.bfloat16) for k, v in self.state_dict().items()}
        save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.kind, indent=2) + "\n")


def train_head(
    large: Path,
    chains: Sequence[Path],
    out: Path,
    schedule: Schedule,
    log: Callable[[str], None] = print,
) -> None:
    """Train a head for the model in `large` into the folder `out`."""
    model = stock(large)
    torch.manual_seed(schedule.seed)
    head = TrainableHead(model)
    matrices: list[Tensor] = [one for one in head.parameters() if one.dim() == 2]

    def loss_of(batch: Batch) -> Tensor:
        return loss(head, model, batch.tokens, batch.at)

    fit(head, matrices, in_turn(chains, schedule.seed), loss_of, schedule, log)
    head.save(out)


def loss(head: TrainableHead, model: Any, ids: Tensor, at: Tensor, steps: int = STEPS) -> Tensor:
    """The head's loss at the flat positions `at` of ids, [rows, n]."""
    with torch.no_grad():
        features = model.model(ids).last_hidden_state
        wanted = features.flatten(0, 1)[at]
        target = model.lm_head(wanted).log_softmax(-1)
    total, weights = torch.zeros(()), 0.0
    for step, output in enumerate(unroll(head, model, ids, features, steps)):
        at_targets = output.flatten(0, 1)[at]
        draft = model.lm_head(head.lm_head_input(at_targets)).log_softmax(-1)
        feature_loss = functional.smooth_l1_loss(head.predicted_feature(at_targets), wanted)
        divergence = functional.kl_div(draft, target, reduction="batchmean", log_target=True)
        weight = FADING**step
        total = total + weight * (FEATURE_WEIGHT * feature_loss + DIVERGENCE_WEIGHT * divergence)
        weights += weight
    return total / weights


def unroll(
    head: TrainableHead, model: Any, ids: Tensor, features: Tensor, steps: int
) -> Iterator[Tensor]:
    """Normed outputs [rows, n, width] of the head, each step on the predictions of the one before.

    At step k, place t stands for a node k levels below the tree's root t - k: it sees what the
    first step read up to the root, one place of each step between, and itself.
    """
    n = ids.shape[1]
    embedding = model.model.embed_tokens(ids)
    place = torch.arange(n, device=ids.device)
    rotary = model.model.rotary_emb(embedding, place[None])
    behind = place[:, None] - place[None]  # distance from a place to a key before it
    keys = _Keys()
    for step in range(steps):
        before = functional.pad(features, (0, 0, 1, 0))[:, :-1]
        # Each step hides one more of the first step's keys; later steps see one place of each.
        first = behind >= step
        between = [behind == step - k for k in range(1, step + 1)]
        seen = torch.cat((first, *between), 1)
        mask = torch.zeros(seen.shape, device=ids.device).masked_fill(~seen, -torch.inf)
        output = head.layer(
            head.layer_input(embedding, before), attention_mask=mask[None, None],
            past_key_values=keys, position_embeddings=rotary,
        )  # fmt: skip
        output = head.norm(output)
        yield output
        features = head.predicted_feature(output)


class _Keys:
    """A cache that holds the keys and values of all steps so far."""

    def __init__(self) -> None:
        self._steps: list[tuple[Tensor, Tensor]] = []

    def update(self, keys: Tensor, values: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        self._steps.append((keys, values))
        return torch.cat([k for k, _ in self._steps], 2), torch.cat([v for _, v in self._steps], 2)
