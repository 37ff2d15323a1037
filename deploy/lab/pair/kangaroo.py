"""The adapter of Kangaroo (2404.18911, section 3.1): the large model's first layers learn to draft.

The large model is frozen and reads its chains, greedy and sampled. At every token of a reply the
adapter reads the residual stream after the first layers and learns the model's distribution by the
cross-entropy between the two.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

from deploy.lab.pair.batches import Batch
from deploy.lab.pair.chains import in_turn
from deploy.lab.pair.training import Schedule, fit
from deploy.lab.stock import stock
from workers.model.config import ModelConfig
from workers.model.early_exit import CONFIG, WEIGHTS, Adapter, AdapterShape
from workers.model.layer import attend, rotate
from workers.model.placement import Rotary, rotary_table

SCHEDULE = Schedule(tokens=11_000_000)
EXIT_LAYER = 3
"""One of the embedded model's twelve layers."""
FEED_FORWARD = 352
"""Inner width of that part of the adapter, as in a layer of the model; the paper has none."""


class TrainableAdapter(Adapter):
    """The adapter as a torch module, over whole texts."""

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

    def save(self, folder: Path, target: str = "") -> None:
        """Write the folder, in bfloat16; `target` is the fingerprint of the large model."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            name: tensor.to("cpu", torch.bfloat16, copy=True).contiguous()
            for name, tensor in self.state_dict().items()
        }
        save_file(state, folder / WEIGHTS, {"format": "pt"})
        text = json.dumps({"shape": asdict(self.shape), "target": target}, indent=2)
        (folder / CONFIG).write_text(text + "\n")


class Distillation:
    """A frozen model and the adapter that learns from it."""

    def __init__(self, model: Any, exit_layer: int = EXIT_LAYER, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model, self.exit_layer = model, exit_layer
        self.config = ModelConfig.read(model.config.to_dict())
        shape = AdapterShape.of(self.config, exit_layer, FEED_FORWARD)
        self.adapter = adapter = TrainableAdapter(shape, self.config.rms_norm_eps)
        with torch.no_grad():  # the start: the model's norm and head on the shallow layer
            adapter.out.weight.zero_()
            adapter.down.weight.zero_()
            adapter.after.weight.copy_(model.model.norm.weight)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy of the adapter's distribution against the model's, a mean over tokens."""
        with torch.no_grad():
            out = self.model.model(batch.tokens, output_hidden_states=True, use_cache=False)
            states = out.hidden_states[self.exit_layer]
            places = torch.arange(batch.tokens.shape[1])[None]
            rotary = rotary_table(self.config, places, states.dtype)
            target = self.model.lm_head(out.last_hidden_state.flatten(0, 1)[batch.at]).softmax(-1)
        draft = self.model.lm_head(self.adapter(states, rotary).flatten(0, 1)[batch.at])
        mean: Tensor = -(target * draft.log_softmax(-1)).sum(-1).mean()
        return mean


def train_adapter(
    large: Path,
    chains: Sequence[Path],
    out: Path,
    schedule: Schedule,
    log: Callable[[str], None] = print,
) -> None:
    """Train an adapter for the model in `large` into the folder `out`."""
    model = stock(large)
    distillation = Distillation(model, seed=schedule.seed)
    adapter, documents = distillation.adapter, in_turn(chains, schedule.seed)
    fit(adapter, [], documents, distillation.loss, schedule, log)
    adapter.save(out, fingerprint(large))


def fingerprint(checkpoint: Path) -> str:
    """SHA-256 of a checkpoint's weights: an adapter belongs to those it was trained on."""
    digest = hashlib.sha256()
    for path in sorted(checkpoint.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def belongs(adapter: Path, checkpoint: Path) -> bool:
    """Whether the folder `adapter` holds an adapter that was trained on these weights."""
    return bool(json.loads((adapter / CONFIG).read_text())["target"] == fingerprint(checkpoint))
