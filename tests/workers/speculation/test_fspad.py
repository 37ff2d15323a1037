"""The feature drafter: what it reads, what it holds, and what it refuses.

Tokens, laws and service are tested with all methods in `test_methods.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from deploy.lab.pair.features import TrainableHead, unroll
from orchestrator.types import Sampling
from tests.workers.conftest import FAMILIES, make_model, network_of, save_head
from tests.workers.speculation.loops import decoder
from workers.model.target import Target
from workers.model.tree import Row, Tree
from workers.speculation.decode import Decoder
from workers.speculation.feature_head import FeatureDrafter, FeatureHead
from workers.speculation.fspad import Fspad

PROMPTS = [[5, 9, 2, 7], [8] * 12, [1, 2, 3]]


def start(loop: Decoder, slot: int, prompt: list[int], temperature: float) -> Row:
    """Make a prompt a row, from what its slot holds of it on."""
    row = Row(slot, list(prompt), Sampling(temperature), slot)
    loop.target.cache.truncate(slot, row.ids, len(row.ids) - 1)
    loop.join(row, loop.target.prefill(slot, row.ids))
    return row


def in_line(loop: Decoder) -> None:
    """Features and the drafter's cache are what reading all committed tokens anew would give."""
    ahead: Any = loop.method.drafter.model  # type: ignore[attr-defined]
    for row in loop.rows:
        length = loop.target.cache.lengths[row.slot]
        assert length == len(row.ids) - 1
        fresh = Target(loop.target.model, slots=1, max_len=64)
        anew = FeatureDrafter(ahead.feature_head, fresh)
        with torch.inference_mode():
            fresh.prefill(0, row.ids[:length])
            drafted = ahead.cache.lengths[row.slot]
            anew.prefill(0, row.ids[:drafted])
        features, expected = loop.target.cache.hidden_states, fresh.cache.hidden_states
        assert features is not None
        assert expected is not None
        assert torch.allclose(features[row.slot, :length], expected[0, :length], atol=1e-4)
        held = ahead.cache.data[:, row.slot, :, :drafted]
        assert torch.allclose(held, anew.cache.data[:, 0, :, :drafted], atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_committed_tokens_have_the_features_of_the_target(
    monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """In rows of unequal length, also after others joined, left, and took over their slot."""
    monkeypatch.setattr("workers.model.target.CHUNK", 5)
    loop = decoder("fspad", {"depth": 4, "width": 3, "nodes": 7}, slots=6)
    first = start(loop, 0, PROMPTS[0], temperature)
    loop.step(loop.rows)
    start(loop, 2, PROMPTS[1], temperature)
    start(loop, 3, PROMPTS[2], temperature)
    for _ in range(2):
        loop.step(loop.rows)
        in_line(loop)
    ahead = loop.method.drafter.model  # type: ignore[attr-defined]
    # Behind by the tokens of the last round only.
    assert all(1 <= len(row.ids) - ahead.cache.lengths[row.slot] <= 5 for row in loop.rows)
    loop.leave(first)
    prefix = first.ids[: loop.target.cache.lengths[0]]
    loop.target.cache.copy(0, 5, len(prefix))
    loop.method.copy(0, 5, len(prefix))
    start(loop, 5, [*prefix, 77, 78], temperature)  # goes on from a copy
    start(loop, 0, [*prefix[:6], 99, 98, 97], temperature)  # from a part of what its slot holds
    for _ in range(2):
        loop.step(loop.rows)
        in_line(loop)


@pytest.mark.parametrize("family", FAMILIES)
def test_service_drafts_what_training_unrolls(tmp_path: Path, family: str) -> None:
    """Level k of a tree is step k of training: same inputs, same places, same keys."""
    model = make_model(family)
    target = Target(network_of(model), slots=2, max_len=64)
    save_head(tmp_path, model)
    ahead = FeatureDrafter(FeatureHead.load(tmp_path, target.model), target)
    head = TrainableHead(model)
    head.load_state_dict(load_file(tmp_path / "model.safetensors"))
    ids = [5, 9, 2, 7, 1, 3, 8]
    tensor = torch.tensor([ids])
    with torch.inference_mode():
        features = model.model(tensor).last_hidden_state
        steps = list(unroll(head, model, tensor, features, 3))
        expected = [model.lm_head(head.lm_head_input(step)) for step in steps]
        root = 4
        target.prefill(1, ids[:root])
        ahead.prefill(1, ids[:2])
        read = len(ids[2 : root + 1])
        first = ahead.forward([1], [Tree.chain(ids[2 : root + 1])])
        assert torch.allclose(first.logits[0], expected[0][0, 2 : root + 1], atol=1e-4)
        # Below the root: a stranger first, so that parents do not simply stand in line.
        tree = Tree([*ids[2 : root + 1], 44, ids[root + 1]], [-1, 0, 1, 2, 2])
        second = ahead.forward([1], [tree], skip=[read])
        assert torch.allclose(second.logits[0, 1], expected[1][0, root + 1], atol=1e-4)
        deeper = Tree([*tree.tokens, ids[root + 2]], [*tree.parents, 4])
        third = ahead.forward([1], [deeper], skip=[read + 2])
        assert torch.allclose(third.logits[0, 0], expected[2][0, root + 2], atol=1e-4)


# The head --------------------------------------------------------------------------------


def test_an_untrained_head_is_that_of_eagle() -> None:
    head = TrainableHead(make_model())
    embedding, feature = torch.randn(2, 3, 32)
    fused = head.fuse(torch.cat((embedding, feature), -1))
    assert torch.equal(head.layer_input(embedding, feature), fused)
    assert torch.allclose(head.predicted_feature(feature), feature)
    assert torch.allclose(head.lm_head_input(feature), feature)


def test_the_token_moves_the_feature() -> None:
    head = TrainableHead(make_model())
    torch.nn.init.normal_(head.down.weight)
    head.fuse.weight.data[:, :32] = 0  # what is left comes through the feature
    one, other, feature = torch.randn(3, 32)
    assert not torch.allclose(head.layer_input(one, feature), head.layer_input(other, feature))
    assert torch.count_nonzero(head.layer_input(one, 0 * feature)) == 0


def test_what_is_no_head_for_this_target_is_refused(tmp_path: Path) -> None:
    target = Target(network_of(make_model()), slots=1, max_len=64)
    with pytest.raises(ValueError, match="head must name a folder: the target was not"):
        Fspad(target)
    with pytest.raises(ValueError, match=r"no fspad head .*`baton lab train fspad` makes one"):
        Fspad(target, head=str(tmp_path / "none"))
    save_head(tmp_path, make_model())
    other = Target(network_of(make_model(width=64)), slots=1, max_len=64)
    with pytest.raises(ValueError, match=r"'width': 32.*the target needs .*'width': 64"):
        Fspad(other, head=str(tmp_path))
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("fspad", "eagle"))
    with pytest.raises(ValueError, match=r"'drafter': 'eagle'.* and .*'drafter': 'fspad'"):
        Fspad(target, head=str(tmp_path))
    save_head(tmp_path, make_model("qwen3"))
    with pytest.raises(ValueError, match=r"does not fit the target: .*k_norm.*, expected None"):
        Fspad(target, head=str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match="no fspad head for the target"):
        Fspad(target, head=str(tmp_path))
