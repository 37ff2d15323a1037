"""Training of the feature drafters (`workers/speculation/feature_head.py`): FSPAD and its ablation.

The target is frozen. It reads its own answers, half of them greedy and half sampled at
temperature 1, and the head learns two things behind each token: the target's feature (smooth L1)
and its distribution (Kullback-Leibler divergence through the frozen head). Both variants weight
them as EAGLE does (2401.15077: 1 and 0.1).

In service a predicted feature rests on predicted ones. So the head is unrolled: step k reads the
predictions of step k - 1 in the place of features, and later steps count less (the training-time
test of EAGLE-3, 2503.01840, where EAGLE adds noise to the features).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from deploy.lab.pair.batches import TrainingDocument, collate
from deploy.lab.pair.chains import fresh_chains, in_turn
from deploy.lab.pair.fit import fit
from deploy.lab.pair.progress import Progress, load_state, save_state
from workers.engine.loading import load_model
from workers.speculation.feature_head import FeatureHead, Variant

CHAINS = 8_000
"""Problems whose greedy and whose sampled answers a head learns from, each."""


@dataclass(frozen=True)
class HeadRecipe:
    """Everything that defines a run. Both variants share all but the name."""

    variant: Variant
    tokens: int = 3_000_000
    minutes: float | None = None  # wall-clock cap
    steps: int = 3  # unrolled
    fading: float = 0.8  # weight of a step, relative to the one before
    feature_weight: float = 1.0
    divergence_weight: float = 0.1
    muon_lr: float = 6e-3
    adam_lr: float = 3e-3
    clip: float = 1.0
    warmup: int = 40  # optimizer steps
    decay: float = 0.5  # last share of progress, linear to 0
    batch_tokens: int = 4096
    seed: int = 0
    checkpoint_minutes: float = 3.0


def own_chains(large: Path, runs: Path, log: Callable[[str], None] = print) -> tuple[Path, ...]:
    """The target's own answers, greedy and sampled; written once for these weights."""
    paths = (runs / "own-greedy.jsonl.gz", runs / "own-sampled.jsonl.gz")
    for temperature, path in enumerate(paths):
        fresh_chains(large, path, CHAINS, 3 + temperature, log, temperature=float(temperature))
    return paths


def train_head(
    recipe: HeadRecipe,
    large: Path,
    chains: tuple[Path, ...],
    out: Path,
    resume: bool = False,
    init_from: Path | None = None,
    log: Callable[[str], None] = print,
) -> Path:
    """Train a head for the model in `large` and return `out`, which also holds `state.pt`."""
    progress = Progress(recipe)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(str(large), device=device, dtype="float32")
    torch.manual_seed(recipe.seed)
    head = FeatureHead(model, recipe.variant).to(device)
    if init_from is not None:
        head.load_state_dict(FeatureHead.load(model, recipe.variant, init_from).state_dict())
    matrices = [p for p in head.parameters() if p.dim() == 2]
    others = [p for p in head.parameters() if p.dim() != 2]
    muon = torch.optim.Muon(matrices, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
    if resume and (state := load_state(out, device)) is not None:
        head.load_state_dict(state["head"])
        for optimizer, saved in zip((muon, adam), state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        progress.resume(state)
    size = sum(p.numel() for p in head.parameters())
    log(f"{recipe.variant}: {size} parameters, seed {recipe.seed}, {recipe.steps} steps unrolled")
    last = torch.zeros(1 + recipe.steps)  # loss, and each step's agreement

    def loss_of(documents: Sequence[TrainingDocument], length: int) -> Tensor:
        nonlocal last
        batch = collate(documents, length, torch.float32, device)
        loss, agreement = losses(head, model, batch.tokens, batch.at, recipe)
        last = torch.cat((loss.detach()[None], agreement))
        return loss

    def figures() -> str:
        loss, *agreement = last.tolist()
        return f"loss {loss:.4f} agreed {' '.join(f'{share:.3f}' for share in agreement)}"

    def save() -> None:
        head.save(out)
        state = {"head": head.state_dict(), "optimizers": [muon.state_dict(), adam.state_dict()]}
        save_state(out, progress.state() | state)

    # A resumed run draws its texts in another order.
    source = in_turn(chains, recipe.seed + progress.step)
    fit(
        head, [(muon, recipe.muon_lr), (adam, recipe.adam_lr)], source, loss_of, recipe, progress,
        figures=figures, save=save, log=log,
    )  # fmt: skip
    return out


def losses(
    head: FeatureHead, model: Any, ids: Tensor, at: Tensor, recipe: HeadRecipe
) -> tuple[Tensor, Tensor]:
    """The loss at the flat positions `at`, and each step's share of tokens where the head's
    likeliest token is the target's.
    """
    with torch.no_grad():
        features = model.model(ids).last_hidden_state
        wanted = features.flatten(0, 1)[at]
        target = model.lm_head(wanted).log_softmax(-1)
    total, weights, agreement = features.new_zeros(()), 0.0, []
    for step, output in enumerate(unroll(head, model, ids, features, recipe.steps)):
        at_targets = output.flatten(0, 1)[at]
        draft = model.lm_head(head.lm_head_input(at_targets)).log_softmax(-1)
        feature_loss = functional.smooth_l1_loss(head.predicted_feature(at_targets), wanted)
        divergence = functional.kl_div(draft, target, reduction="batchmean", log_target=True)
        weight = recipe.fading**step
        total = total + weight * (
            recipe.feature_weight * feature_loss + recipe.divergence_weight * divergence
        )
        weights += weight
        agreement.append((draft.argmax(-1) == target.argmax(-1)).float().mean())
    return total / weights, torch.stack(agreement)


def unroll(
    head: FeatureHead, model: Any, ids: Tensor, features: Tensor, steps: int
) -> Iterator[Tensor]:
    """Normed outputs [rows, n, width] of the head, each step on the predictions of the one before.

    At step k, place t stands for a node k levels below the tree's root t - k: it sees what the
    first step read up to the root, one place of each step between, and itself.
    """
    n = ids.shape[1]
    embedding = model.model.embed_tokens(ids)
    place = torch.arange(n, device=ids.device)
    rotary = model.model.rotary_emb(embedding, place[None])
    behind = place[:, None] - place[None]  # how far a key lies behind the place that looks
    keys = _Keys()
    for step in range(steps):
        before = functional.pad(features, (0, 0, 1, 0))[:, :-1]
        # The first step's keys move out of sight, every other step's lie as far behind as it ran.
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
    """The keys and values of all steps so far, in the place of a cache."""

    def __init__(self) -> None:
        self._steps: list[tuple[Tensor, Tensor]] = []

    def update(self, keys: Tensor, values: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        self._steps.append((keys, values))
        return torch.cat([k for k, _ in self._steps], 2), torch.cat([v for _, v in self._steps], 2)
