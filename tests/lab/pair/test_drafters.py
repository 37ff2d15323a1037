"""Drafters learn from the large model's chains."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from deploy.lab.pair import chains as chains_module
from deploy.lab.pair import recipe
from deploy.lab.pair.batches import collate
from deploy.lab.pair.chains import document, in_turn, write_chains
from deploy.lab.pair.features import TrainableHead, loss, train_head
from deploy.lab.pair.harvest import Author
from deploy.lab.pair.kangaroo import Distillation, belongs
from deploy.lab.pair.training import Schedule
from deploy.lab.pair.vocabulary import ASSISTANT, CLOSE, END, THINK, USER
from deploy.lab.stock import stock
from orchestrator.errors import ConfigError
from tests.workers.conftest import make_model, make_tokenizer, save
from workers.embedded.checkpoints import MODELS
from workers.engine.loading import load_model
from workers.model.early_exit import Adapter
from workers.speculation.feature_head import FeatureHead
from workers.speculation.kangaroo import FOLDER

LARGE = MODELS / "large"
SHORT = Schedule(tokens=20_000, batch_tokens=512, warmup=5)


def quiet(_: str) -> None: ...


def read(path: Path) -> list[tuple[list[int], list[int]]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = make_tokenizer()
    return save(tmp_path_factory.mktemp("large"), tokenizer, make_model(vocabulary=len(tokenizer)))


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Texts that repeat themselves, so that there is something to learn from few."""
    rng, folder = random.Random(0), tmp_path_factory.mktemp("chains")
    paths = (folder / "greedy.gz", folder / "sampled.gz")
    for path in paths:
        with gzip.open(path, "wt") as file:
            for _ in range(8):
                prompt = [rng.randrange(300) for _ in range(4)]
                file.write(json.dumps([prompt, prompt * 6]) + "\n")
    return paths


def test_chains_are_whole_greedy_answers(tmp_path: Path) -> None:
    author = Author(LARGE)
    write_chains(LARGE, tmp_path / "chains.gz", 6, 0, 0.0, quiet)
    found = read(tmp_path / "chains.gz")
    assert 4 <= len(found) <= 6
    for prompt, reply in found:
        question, answer = author.tokenizer.decode(prompt), author.tokenizer.decode(reply)
        assert question.startswith(USER)
        assert question.endswith(END + ASSISTANT + THINK)
        assert answer.count(CLOSE) == 1
        assert answer.endswith(END)
    ((prompt, reply), *_) = found
    ids = stock(LARGE).generate(torch.tensor([prompt]), max_new_tokens=256, do_sample=False)
    assert ids[0].tolist() == prompt + reply


def test_only_replies_are_learnt() -> None:
    doc = document([1, 2, 3], [4, 5])
    assert doc.tokens == [1, 2, 3, 4, 5]
    assert doc.targets == [-100, -100, 4, 5, -100]
    assert doc.weights == [0, 0, 1, 1, 0]
    assert len({len(part) for part in (doc.tokens, doc.positions, doc.branches, doc.flags)}) == 1
    batch = collate([doc, document([7], [8])], 6)
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5, 0], [7, 8, 0, 0, 0, 0]]
    assert batch.at.tolist() == [2, 3, 6]
    assert batch.count == 7


def test_files_of_chains_take_turns(chains: tuple[Path, ...], tmp_path: Path) -> None:
    source = in_turn(chains, 0)
    drawn = [tuple(next(source).tokens) for _ in range(16)]
    greedy = {tuple(prompt + reply) for prompt, reply in read(chains[0])}
    assert [tokens in greedy for tokens in drawn] == [True, False] * 8
    empty = tmp_path / "chains.gz"
    with gzip.open(empty, "wt"):
        pass
    with pytest.raises(ValueError, match="holds no chains"):
        next(in_turn([empty], 0))


def test_a_head_learns_and_is_saved(large: Path, chains: tuple[Path, ...], tmp_path: Path) -> None:
    train_head(large, chains, tmp_path, SHORT, log=quiet)
    model, source = stock(large), in_turn(chains, 0)
    batch = collate([next(source) for _ in range(16)], 32)
    torch.manual_seed(0)
    untrained, trained = TrainableHead(model), TrainableHead(model)
    trained.load_state_dict(load_file(tmp_path / "model.safetensors"))
    with torch.no_grad():
        before, after = (loss(head, model, batch.tokens, batch.at) for head in (untrained, trained))
    assert after < 0.7 * before
    FeatureHead.load(tmp_path, load_model(str(large)))


def test_the_loss_is_zero_for_the_features_themselves() -> None:
    """An untrained head whose output is the feature: each step is measured against it."""
    model = make_model()
    head = TrainableHead(model)
    batch = collate([document([1, 2, 3], [4, 5, 6])], 8)
    truth = model.model(batch.tokens).last_hidden_state
    head.norm.forward = lambda _: truth  # type: ignore[method-assign]
    found = loss(head, model, batch.tokens, batch.at, 2).item()
    assert found == pytest.approx(0, abs=1e-6)


def test_an_adapter_s_loss_is_the_cross_entropy_of_each_token() -> None:
    distillation = Distillation(make_model(layers=3), 1)
    model, expected = distillation.model, list[torch.Tensor]()
    chains = [([1, 2, 3], [4, 5]), ([9], [8, 7, 6])]
    for prompt, reply in chains:  # an untrained adapter hands on the shallow layer
        with torch.no_grad():
            out = model.model(torch.tensor([prompt + reply[:-1]]), output_hidden_states=True)
            shallow = model.lm_head(model.model.norm(out.hidden_states[1]))[0].log_softmax(-1)
            target = model.lm_head(out.last_hidden_state)[0].softmax(-1)
        expected.append(-(target * shallow).sum(-1)[len(prompt) - 1 :])
    batch = collate([document(*chain) for chain in chains], 8)
    found = distillation.loss(batch).item()
    assert found == pytest.approx(torch.cat(expected).mean().item(), rel=1e-5)


def test_drafters_of_the_published_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains_module, "CHAINS", 12)
    for stage in ("kangaroo", "fspad"):
        monkeypatch.setitem(recipe.SCHEDULES, stage, SHORT)
        recipe.run(stage, tmp_path, tokens=15_000, log=quiet)
    model = stock(LARGE)
    network = load_model(str(LARGE))
    FeatureHead.load(tmp_path / "fspad", network)
    untrained, trained = Distillation(model), Distillation(model)
    adapter = Adapter.load(tmp_path / "kangaroo", network, exit_layer=3)
    trained.adapter.load_state_dict(adapter.state_dict())
    documents = [document(*chain) for chain in read(tmp_path / "chains.jsonl.gz")][:4]
    batch = collate(documents, 256)
    with torch.no_grad():
        assert trained.loss(batch) < 0.8 * untrained.loss(batch)
    monkeypatch.setattr(recipe, "MODELS", tmp_path / "shipped")
    with pytest.raises(ConfigError, match="trained on other weights"):
        recipe.run("publish", tmp_path)  # no large model is there
    assert belongs(tmp_path / "kangaroo", LARGE)


def test_the_shipped_adapter_is_the_shipped_model_s() -> None:
    assert belongs(LARGE / FOLDER, LARGE)
