"""Ways in which speculation goes wrong that are known from elsewhere and tested nowhere else.

Ties and half precision, heads of different padding, what a cache cannot roll back, and a stop
string that ends where the room does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.lab.pair.generation import generate
from orchestrator.errors import ConfigError
from orchestrator.types import Sampling, StopCriteria
from tests.workers.conftest import make_model, make_tokenizer, save
from tests.workers.engine.local import ask, run
from tests.workers.speculation.loops import DRAFTS, decoder
from tests.workers.speculation.test_methods import LOSSLESS
from workers.engine.loading import load
from workers.speculation.decode import Decoder

PROMPTS = [[5, 9, 2, 7], [1, 2, 3], [8] * 20, [30, 20, 10, 5, 4, 3, 2], [11, 12]]


def among_prompts(model: Any, draft: Any, method: str, options: dict[str, Any]) -> Decoder:
    return decoder(method, options, slots=len(PROMPTS), network=model, draft=draft)


@LOSSLESS
def test_of_equal_logits_the_first_token_is_taken(method: str, options: dict[str, Any]) -> None:
    """Bit-equal logits: every path breaks the tie alike, or texts part for ever."""
    model = make_model()
    twins = torch.arange(400) // 2 * 2  # rows 2k and 2k + 1 of the head are one
    model.lm_head.weight.copy_(model.lm_head.weight[twins])
    draft = make_model(**DRAFTS["other"])
    plain = generate(among_prompts(model, draft, "vanilla", {}), PROMPTS, 12)
    assert all(token % 2 == 0 for output in plain for token in output)
    assert generate(among_prompts(model, draft, method, options), PROMPTS, 12) == plain


@LOSSLESS
def test_half_precision_parts_at_near_ties_alone(method: str, options: dict[str, Any]) -> None:
    """A pass over several tokens rounds as one over a single token does not."""
    model, draft = make_model().bfloat16(), make_model(**DRAFTS["other"]).bfloat16()
    outputs = generate(among_prompts(model, draft, method, options), PROMPTS, 12)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].float()
        top = logits.max(-1).values
        taken = logits.gather(1, torch.tensor(output)[:, None]).squeeze(1)
        # Teacher-forced on what was emitted: nowhere is another token likelier than rounding says.
        assert bool((top - taken <= 0.05 * logits.abs().amax(-1)).all())


def padded(model: Any, rows: int) -> Any:
    """More rows of the embedding and the head, which would win every argmax if they were seen."""
    made = make_model(
        layers=model.config.num_hidden_layers, width=model.config.hidden_size, vocabulary=400 + rows
    )
    state = dict(model.state_dict())
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        more = 50 * torch.randn(rows, state[name].shape[1])
        state[name] = torch.cat((state[name], more))
    made.load_state_dict(state)
    return made


@LOSSLESS
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.2, seed=5)])
def test_rows_of_padding_are_never_seen(
    method: str, options: dict[str, Any], sampling: Sampling
) -> None:
    """Heads of one family are padded to different sizes, the target's as well as the draft's."""
    torch.manual_seed(0)
    model, draft = make_model(), make_model(**DRAFTS["other"])
    expected = generate(among_prompts(model, draft, method, options), PROMPTS, 8, sampling=sampling)
    for ours, theirs in ((24, 0), (8, 64)):
        loop = among_prompts(padded(model, ours), padded(draft, theirs), method, options)
        assert generate(loop, PROMPTS, 8, sampling=sampling) == expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer_types": ["full_attention", "linear_attention"]}, "not 'linear_attention'"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not read"),
    ],
)
def test_what_cannot_be_rolled_back_or_read_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    """Recurrent states are overwritten by a rejected draft; a layer reads weights as they are."""
    tokenizer = make_tokenizer()
    folder = save(tmp_path, tokenizer, make_model("qwen3", vocabulary=len(tokenizer)))
    file = folder / "config.json"
    config = {k: v for k, v in json.loads(file.read_text()).items() if k != "layer_types"}
    file.write_text(json.dumps({**config, **change}))
    with pytest.raises(ConfigError, match=said):
        load(folder)


async def test_a_stop_string_goes_before_the_cap(checkpoint: Path) -> None:
    """Both fall on one token, inside a block: the text ended, it was not cut off."""
    speculation = {"method": "chain", "draft": str(checkpoint), "gamma": 5}
    worker = load(checkpoint, speculation=speculation, rows=1, max_len=200)

    try:
        whole = (await run(worker, ask(), StopCriteria(20))).segment
        pieces = [worker.tokenizer.decode([token]) for token in whole.tokens]
        seen = [at for at in range(2, 20) if pieces[at].isprintable() and pieces[at]]
        at = next(at for at in seen if whole.text.index(pieces[at]) == len("".join(pieces[:at])))
        stopped = await run(worker, ask(), StopCriteria(at + 1, stop=(pieces[at],)))
        assert stopped.segment.finish == "stop"
        assert stopped.segment.text == whole.text[: whole.text.index(pieces[at])]
        # What lies behind the stop in the block has left nothing: the text goes on as it would.
        again = (await run(worker, ask(), StopCriteria(20))).segment
        assert (again.tokens, again.finish) == (whole.tokens, whole.finish)
    finally:
        worker.close()
