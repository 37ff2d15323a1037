"""The adapter of Kangaroo (2404.18911, section 3.1): the target's first layers learn to draft.

The target is frozen. Its own chains, greedy and sampled, run through it, and at every token of a
reply the adapter, which reads the residual stream behind the first few layers, learns the target's
distribution by the cross-entropy between the two. That is what drafting needs: the mean overlap of
both distributions is the acceptance rate at temperature 1, and how often their likeliest tokens
agree is that rate at temperature 0. Both are measured on greedy chains that training never saw.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

from deploy.lab.pair.batches import TrainingDocument, collate
from deploy.lab.pair.chains import in_turn, read_chains
from deploy.lab.pair.fit import fit
from deploy.lab.pair.progress import Progress, load_state, save_state
from workers.engine.loading import load_model
from workers.model.early_exit import CONFIG, WEIGHTS, Adapter, AdapterShape
from workers.model.layer import attend, rotate
from workers.model.placement import Rotary, rotary_table

EXIT_LAYER = 3
"""Of the embedded model's twelve layers."""
FEED_FORWARD = 352
"""Inner width of that part of the adapter, as in a layer of the model; 0 would be the paper's."""
MEASURED = 64
"""Chains that training leaves out; the first of the file."""


@dataclass(frozen=True, slots=True)
class AdapterRecipe:
    """How an adapter is trained: AdamW, a warm-up, and a linear decay at the end."""

    tokens: int = 11_000_000
    minutes: float | None = None
    learning_rate: float = 3e-3
    warmup: int = 40  # steps
    decay: float = 0.5  # last share of progress, linear to 0
    batch_tokens: int = 4096  # padding included
    clip: float = 1.0
    seed: int = 0
    checkpoint_minutes: float = 3.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Chances that one drafted token is accepted, and the loss, as means over tokens.

    `overlap` at temperature 1, `agreement` at 0.
    """

    overlap: float
    agreement: float
    loss: float


class TrainableAdapter(Adapter):
    """The adapter as a module of torch's, over whole texts."""

    def forward(self, states: Tensor, rotary: Rotary) -> Tensor:
        """Hidden states [rows, n, width] of whole texts to the head's input, [rows, n, width]."""
        inner = self.before(states)
        query, key, value = (
            part(inner).unflatten(-1, (-1, self.shape.head_size)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = attend(rotate(query, rotary), rotate(key, rotary), value, None)
        stream = states + self.out(mixed.transpose(1, 2).flatten(2))
        if self.shape.feed_forward:
            inner = self.between(stream)
            stream = stream + self.down(silu(self.gate(inner)) * self.up(inner))
        lm_head_input: Tensor = self.after(stream)
        return lm_head_input

    def save(self, folder: Path, **notes: Any) -> None:
        """Write the folder, in bfloat16; `notes` are stored beside the shape for information."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            name: tensor.to("cpu", torch.bfloat16, copy=True).contiguous()
            for name, tensor in self.state_dict().items()
        }
        save_file(state, folder / WEIGHTS, {"format": "pt"})
        text = json.dumps({"shape": asdict(self.shape), **notes}, indent=2)
        (folder / CONFIG).write_text(text + "\n")


class Distillation:
    """A frozen target and the adapter that learns from it; `weights`: the target's fingerprint."""

    def __init__(
        self,
        model: Any,
        exit_layer: int,
        weights: str = "",
        seed: int = 0,
        feed_forward: int = FEED_FORWARD,
    ) -> None:
        torch.manual_seed(seed)
        self.model, self.exit_layer, self.weights = model, exit_layer, weights
        shape = AdapterShape.of(model.config, exit_layer, feed_forward)
        adapter = TrainableAdapter(shape, model.config.rms_norm_eps).to(model.device)
        with torch.no_grad():  # the start: the target's norm and head on the shallow layer
            adapter.out.weight.zero_()
            if feed_forward:
                adapter.down.weight.zero_()
            adapter.after.weight.copy_(model.model.norm.weight)
        self.adapter = adapter

    @classmethod
    def on(
        cls, checkpoint: Path, exit_layer: int, init_from: Path | None = None, seed: int = 0
    ) -> Distillation:
        """A distillation of a checkpoint, from an adapter's folder or from scratch.

        Raises:
            ValueError: an exit layer that the target lacks, an adapter that does not fit.
        """
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = load_model(str(checkpoint), device=device, dtype=torch.float32)
        weights = fingerprint(checkpoint)
        if init_from is None:
            return cls(model, exit_layer, weights, seed)
        first = Adapter.load(init_from, model, exit_layer)
        distillation = cls(model, exit_layer, weights, seed, first.shape.feed_forward)
        distillation.adapter.load_state_dict(first.state_dict())
        return distillation

    def log_probs(
        self, documents: Sequence[TrainingDocument], length: int
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities [tokens, vocabulary] of the adapter and of the target."""
        batch = collate(documents, length, torch.float32, str(self.model.device))
        with torch.no_grad():
            out = self.model.model(batch.tokens, output_hidden_states=True, use_cache=False)
            states = out.hidden_states[self.exit_layer]
            places = torch.arange(length, device=states.device)[None]
            rotary = rotary_table(self.model.model.rotary_emb, places, states.dtype)
            final = out.last_hidden_state.flatten(0, 1)[batch.at]
            target = self.model.lm_head(final).log_softmax(-1)
        draft = self.adapter(states, rotary).flatten(0, 1)[batch.at]
        return self.model.lm_head(draft).log_softmax(-1), target


def rates(draft: Tensor, target: Tensor) -> Tensor:
    """Overlap, agreement and cross-entropy as sums over tokens, [3].

    draft, target: log-probabilities [tokens, vocabulary].
    """
    with torch.no_grad():
        overlap = torch.minimum(draft, target).exp().sum()
        agreement = (draft.argmax(-1) == target.argmax(-1)).sum()
        return torch.stack((overlap, agreement.float(), -(target.exp() * draft).sum()))


@torch.no_grad()
def measure(distillation: Distillation, documents: Sequence[TrainingDocument]) -> Rates:
    """The adapter's rates on whole documents, in batches of similar length."""
    sums, count = torch.zeros(3), 0
    ordered = sorted(documents, key=lambda document: len(document.tokens))
    for i in range(0, len(ordered), 16):
        chosen = ordered[i : i + 16]
        draft, target = distillation.log_probs(chosen, len(chosen[-1].tokens))
        sums, count = sums + rates(draft, target).cpu(), count + len(draft)
    return Rates(*(sums / max(count, 1)).tolist())


def train_adapter(
    distillation: Distillation,
    chains: Sequence[Path],
    out: Path,
    recipe: AdapterRecipe,
    *,
    resume: bool = False,
    log: Callable[[str], None] = print,
) -> Rates:
    """Train into the folder `out`, which then holds an adapter and `state.pt` to resume from.

    Chains of the files are learnt in turn. The first few of each file are left out; those of the
    first file are measured, and their rates are returned and written into the adapter's
    configuration.

    Raises:
        ValueError: too few chains, or a state to resume from that is of another distillation.
    """
    progress = Progress(recipe)
    adapter, device = distillation.adapter, distillation.model.device
    held_back = read_chains(chains[0])[:MEASURED]
    if len(held_back) < MEASURED:
        raise ValueError(f"{chains[0]}: expected at least {MEASURED} chains, got {len(held_back)}")
    optimizer = torch.optim.AdamW(adapter.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    belongs_to = {"shape": asdict(adapter.shape), "target": distillation.weights}
    if resume and (state := load_state(out, device)) is not None:
        if any(state.get(name) != value for name, value in belongs_to.items()):
            raise ValueError(
                f"{out} holds the training of another exit layer or shape, or on other weights:"
                " train into another folder, or without --resume"
            )
        adapter.load_state_dict(state["adapter"])
        optimizer.load_state_dict(state["optimizer"])
        progress.resume(state)
    sums, count = torch.zeros(3, device=device), 0

    def loss_of(documents: Sequence[TrainingDocument], length: int) -> Tensor:
        nonlocal sums, count
        draft, target = distillation.log_probs(documents, length)
        sums, count = sums + rates(draft, target), count + len(draft)
        return -(target.exp() * draft).sum(-1).mean()

    def figures() -> str:
        nonlocal sums, count
        overlap, agreement, cost = (sums / count).tolist()
        sums, count = torch.zeros_like(sums), 0
        return f"overlap {overlap:.3f} agreement {agreement:.3f} loss {cost:.4f}"

    def save(**measurement: Any) -> None:
        adapter.save(out, target=distillation.weights, **measurement)
        state = {"adapter": adapter.state_dict(), "optimizer": optimizer.state_dict()}
        save_state(out, progress.state() | state | belongs_to)

    # A resumed run takes the chains in another order.
    source = in_turn(chains, recipe.seed + progress.step, skip=MEASURED)
    fit(
        adapter, [(optimizer, recipe.learning_rate)], source, loss_of, recipe, progress,
        figures=figures, save=save, log=log,
    )  # fmt: skip
    measured = measure(distillation, held_back)
    save(measured=asdict(measured))
    log(json.dumps({"exit_layer": distillation.exit_layer} | asdict(measured)))
    return measured


def fingerprint(checkpoint: Path) -> str:
    """SHA-256 of a checkpoint's weights: an adapter belongs to those it was trained on."""
    digest = hashlib.sha256()
    for path in sorted(checkpoint.glob("*.safetensors")):
        with path.open("rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def belongs(adapter: Path, checkpoint: Path) -> bool:
    """Whether a folder holds an adapter that was trained on these very weights."""
    config = adapter / CONFIG
    if not config.is_file() or not (adapter / WEIGHTS).is_file():
        return False
    return bool(json.loads(config.read_text()).get("target") == fingerprint(checkpoint))
