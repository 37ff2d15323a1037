"""Kangaroo: what is drafted and when it ends, what is never computed twice, and its adapter."""

from __future__ import annotations

import json
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from deploy.lab.pair.generation import generate
from deploy.lab.pair.kangaroo import TrainableAdapter
from orchestrator.errors import ConfigError
from orchestrator.types import Sampling
from tests.workers.conftest import config_of, make_adapter, make_model, network_of
from tests.workers.speculation.exact import agrees, doubting, enumerate_all, random_laws
from tests.workers.speculation.loops import begin, decoder, stock_tokens, tiny
from workers.engine.loading import load
from workers.model.early_exit import CONFIG, WEIGHTS, Adapter, AdapterShape
from workers.model.layer import Layer
from workers.model.placement import rotary_table
from workers.model.target import Target
from workers.model.tree import Row
from workers.speculation.decode import Decoder
from workers.speculation.kangaroo import Kangaroo

PROMPTS = [[5, 9, 2, 7], [8] * 20, [1, 2, 3], [300, 20, 10, 5, 4, 3, 2]]


def kangaroo(network: Any = None, *, slots: int = 6, **options: Any) -> Decoder:
    network = tiny(layers=3) if network is None else network
    return decoder("kangaroo", options, slots=slots, max_len=120, network=network)


def obvious_model() -> Any:
    """Layers behind the first add nothing, so an adapter that adds nothing is never wrong."""
    model = make_model(layers=3)
    for layer in model.model.layers[1:]:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    return model


def oracle(folder: Path, model: Any) -> str:
    config = config_of(model)
    adapter = TrainableAdapter(AdapterShape.of(config, 1), config.rms_norm_eps)
    with torch.no_grad():
        adapter.out.weight.zero_()
        adapter.after.weight.copy_(model.model.norm.weight)
    adapter.save(folder)
    return str(folder)


# Drafting --------------------------------------------------------------------------------


@pytest.mark.parametrize("exit_layer", [1, 2])
@pytest.mark.parametrize("threshold", [0, 0.3, 1])
def test_tokens_are_those_of_transformers_wherever_both_exits_are(
    exit_layer: int, threshold: float
) -> None:
    loop = kangaroo(adapter=make_adapter(exit_layer), threshold=threshold, gamma=5)
    assert generate(loop, PROMPTS, 20) == stock_tokens(tiny(layers=3), PROMPTS, 20)


def test_a_draft_ends_behind_the_first_doubtful_token() -> None:
    """Drafts of one round beside the adapter run over the whole prefix at once."""
    loop = kangaroo(gamma=5, threshold=0.3, slots=40)
    generator = torch.Generator().manual_seed(3)
    for slot in range(40):
        ids = torch.randint(0, 400, (4 + slot % 3,), generator=generator).tolist()
        begin(loop, slot, ids, room=3 if slot < 4 else 90)
    with torch.inference_mode():
        plan = loop.method.draft(loop.rows)
    assert len({len(tree) for tree in plan.trees}) > 3
    assert loop.target.early_exit is not None
    model, adapter = tiny(layers=3), loop.target.early_exit.adapter
    for row, tree in zip(plan.rows, plan.trees, strict=True):
        assert len(tree) <= row.remaining_tokens  # with the token that ends the round
        for depth in range(1, len(tree)):
            law = alone(model, adapter, row.ids + tree.tokens[1:depth])
            assert tree.tokens[depth] == int(law.argmax())
            if float(law.max()) < 0.3:
                assert len(tree) == depth + 1
                break
        else:
            assert len(tree) == min(6, row.remaining_tokens)


def alone(model: Any, adapter: Any, ids: list[int]) -> Tensor:
    """The adapter's law behind some tokens, without any cache."""
    with torch.inference_mode():
        out = model.model(torch.tensor([ids]), output_hidden_states=True)
        states = out.hidden_states[adapter.shape.exit_layer]
        rotary = rotary_table(config_of(model), torch.arange(len(ids))[None], states.dtype)
        read = TrainableAdapter.forward(adapter, states, rotary)  # of what is served, too
        return model.lm_head(read)[0, -1].softmax(-1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", [1, 2])
def test_drafts_have_the_law_that_the_proof_takes_for_granted(seed: int) -> None:
    count, depth, threshold = 3000, 3, 0.6
    laws = random_laws(random.Random(seed), 3, depth)
    method = kangaroo(gamma=depth, threshold=threshold).method
    sizes = []

    def shallow(slots: Any, trees: Any, *, skip: Any, num_logits: Any, layers: Any) -> Any:
        assert layers == (0, 1)
        sizes.append(len(trees))
        rows = [[float(p) for p in laws.get(tuple(tree.tokens[1:]), laws[()])] for tree in trees]
        logits = torch.tensor(rows)[:, None].log()
        return SimpleNamespace(logits=logits, hidden=torch.zeros(len(trees), 1, 4))

    method.target = SimpleNamespace(forward=shallow)  # type: ignore[assignment]
    rows = [Row(i, [5, 6, 7, 8], Sampling(1.0), 100_000 * seed + i) for i in range(count)]
    trees = method.draft(rows).trees
    assert sizes == sorted(sizes, reverse=True)  # rows that are done leave
    reference = doubting(depth, Fraction(threshold))
    exact = enumerate_all(lambda script: tuple(reference(laws, script).tokens[1:]))
    counts = Counter(tuple(tree.tokens[1:]) for tree in trees)
    assert set(counts) <= set(exact)
    agrees([counts[tokens] for tokens in exact], [float(exact[tokens]) for tokens in exact])
    for tree in trees[:20]:
        assert tree.is_chain
        for node in range(len(tree) - 1):
            law = torch.tensor([float(p) for p in laws[tuple(tree.tokens[1 : node + 1])]])
            assert torch.allclose(tree.probs[node], law, atol=1e-6)


# What is computed ------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, top_p=0.9, seed=2)])
def test_an_adapter_that_is_never_wrong_is_always_accepted(
    tmp_path: Path, sampling: Sampling
) -> None:
    model = obvious_model()
    loop = kangaroo(model, adapter=oracle(tmp_path, model), threshold=0, gamma=4)
    generate(loop, PROMPTS[:1], 26, sampling=sampling)
    assert loop.target.passes == 1 + 5  # the prompt, then five tokens a round


def test_every_layer_runs_once_for_every_drafted_token() -> None:
    loop = kangaroo(gamma=3, threshold=0)
    seen: Counter[int] = Counter()

    def counted(layer: Layer) -> Any:
        def run(x: Tensor, *rest: Any) -> Tensor:
            seen[layer.attention.cache_layer] += x.shape[1]
            return layer(x, *rest)

        return run

    loop.target.layers = [counted(layer) for layer in loop.target.layers]
    begin(loop, 0, PROMPTS[0])
    seen.clear()
    loop.step(loop.rows)
    assert seen == {0: 4, 1: 4, 2: 4}


@pytest.mark.parametrize("feed_forward", [0, 40])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_adapter_reads_through_the_cache_what_it_reads_at_once(
    family: str, feed_forward: int
) -> None:
    adapter = make_adapter(feed_forward=feed_forward)
    model = make_model(family, layers=3)
    loop = kangaroo(model, adapter=adapter, gamma=3, threshold=0)
    generate(loop, PROMPTS, 9, sampling=Sampling(1.0, seed=4))
    target = loop.target
    assert target.early_exit is not None
    assert len(target.cache.data) == 2 * (3 + 1)
    for slot in range(len(PROMPTS)):
        length = target.cache.lengths[slot]
        ids = target.cache.ids[slot]
        tree = loop.method.draft([Row(slot, ids[: length + 1], Sampling(1.0), 1)]).trees[0]
        law = alone(model, target.early_exit.adapter, ids[: length + 1])
        assert torch.allclose(tree.probs[0], law, atol=1e-4)


def test_a_copied_prefix_has_the_exit_layers_too() -> None:
    loop = kangaroo(gamma=3, threshold=0)
    generate(loop, PROMPTS[:1], 12)
    cache = loop.target.cache
    cache.copy(0, 4, length := cache.lengths[0])
    assert torch.equal(cache.data[:, 4, :, :length], cache.data[:, 0, :, :length])


def test_passes_that_end_early_are_no_passes_of_the_target() -> None:
    target = Target(network_of(make_model(layers=3)), slots=1, max_len=64)
    assert target.exit_layer == -1
    target.add_early_exit(Adapter.load(Path(make_adapter()), target.model))
    row = Row(0, [3, 4], Sampling(), 0)
    tree = [Kangaroo.__mro__[1](target).draft([row]).trees[0]]  # the newest token alone
    with torch.inference_mode():
        assert target.forward([0], tree, layers=(0, 2)).logits.shape[1] == 0
        assert target.forward([0], tree, layers=(0, 1), num_logits=0).logits.shape[1] == 0
        assert target.forward([0], tree, layers=(0, 1)).logits.shape == (1, 1, 400)
    assert target.passes == 0


# The adapter's folder --------------------------------------------------------------------


def test_an_adapter_is_stored_and_loaded(tmp_path: Path) -> None:
    model = network_of(make_model(layers=3))
    stored = TrainableAdapter.load(Path(make_adapter(2)), model)
    stored.save(tmp_path / "a", target="abc")
    again = Adapter.load(tmp_path / "a", model, exit_layer=2)
    for one, other in zip(stored.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    assert json.loads((tmp_path / "a" / CONFIG).read_text())["target"] == "abc"


def test_an_adapter_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no adapter in .*: `baton lab train kangaroo` makes"):
        kangaroo(adapter=str(tmp_path))
    with pytest.raises(ValueError, match="was trained for exit_layer 1, not 2"):
        kangaroo(exit_layer=2)
    with pytest.raises(ValueError, match="exit_layer must be from 1 to 1, not 2"):
        kangaroo(make_model(layers=2), adapter=make_adapter(2))
    with pytest.raises(ValueError, match=r"width=64.*the model needs .*width=32"):
        kangaroo(adapter=make_adapter(1, width=64))
    TrainableAdapter.load(Path(make_adapter()), network_of(make_model())).save(tmp_path)
    told = (tmp_path / CONFIG).read_text()
    (tmp_path / CONFIG).write_text(told.replace('"feed_forward": 0', '"feed_forward": -8'))
    with pytest.raises(ValueError, match="feed_forward must be a width or 0, not -8"):
        kangaroo(adapter=str(tmp_path))
    (tmp_path / CONFIG).write_text(told.replace('"feed_forward": 0', '"feed_forward": 8'))
    with pytest.raises(ValueError, match="cannot read the adapter"):
        kangaroo(adapter=str(tmp_path))
    (tmp_path / WEIGHTS).write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="cannot read the adapter"):
        kangaroo(adapter=str(tmp_path))
    (tmp_path / CONFIG).write_text("{}")
    with pytest.raises(ValueError, match="cannot read the adapter"):
        kangaroo(adapter=str(tmp_path))


def test_a_checkpoint_without_an_adapter_says_what_to_do(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"speculation kangaroo: there is no adapter in .*tiny"):
        load(checkpoint, speculation={"method": "kangaroo"})


def test_an_adapter_beside_the_weights_is_found(checkpoint: Path, tmp_path: Path) -> None:
    for path in checkpoint.iterdir():
        (tmp_path / path.name).symlink_to(path)
    model = network_of(make_model("qwen3"))
    TrainableAdapter.load(Path(make_adapter()), model).save(tmp_path / "kangaroo")
    worker = load(tmp_path, speculation={"method": "kangaroo", "exit_layer": 1})
    worker.close()
    assert worker.backend.engine.decoder.target.exit_layer == 1


def test_methods_share_the_one_early_exit_of_a_model() -> None:
    loop = kangaroo()
    target = loop.target
    layers = len(target.cache.data)
    again = Kangaroo(target, adapter=make_adapter())
    assert len(target.cache.data) == layers
    head = target.early_exit
    assert head is not None
    held = head.attention.qkv.weight.untyped_storage().data_ptr()
    assert head.adapter.query.weight.untyped_storage().data_ptr() == held  # weights are held once
    both = Decoder(target, {"kangaroo": loop.method, "again": again})
    made = generate(both, [[5, 9, 2, 7]] * 2, 12, methods=[None, "again"])
    assert made == [generate(kangaroo(), [[5, 9, 2, 7]], 12)[0]] * 2
    for layer in (target.exit_layer, target.exit_layer + 1):  # other weights, another place
        other = Adapter(AdapterShape.of(target.model.config, exit_layer=layer), 1e-6)
        with pytest.raises(ValueError, match="one early exit"):
            target.add_early_exit(other)
