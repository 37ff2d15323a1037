"""From scores of ids to texts: ids that no tokenizer has, and those that end a text."""

from __future__ import annotations

from orchestrator.http.apis.scores import ScoredSegment
from orchestrator.types import Message, Segment, Transcript, Verification
from orchestrator.worker import Call
from workers.text.prompt import PromptRenderer
from workers.text.verification import Scores, verification

TRANSCRIPT = Transcript((Message("user", "What is 12 + 34?"),)).without_thought()


def scored(prompts: PromptRenderer, choice: int, likely: list[tuple[int, float]]) -> Verification:
    """Scores of an empty answer, behind which the model chose `choice`."""
    output = Scores([], [choice], [-0.5], 0.0, [likely])
    call = Call("request", TRANSCRIPT, "small")
    stop_token_ids = prompts.tokenizer.ends
    return verification(output, call, Segment("small", ""), prompts, stop_token_ids, 1.0)


def test_rows_of_a_padded_head_are_no_tokens(prompts: PromptRenderer) -> None:
    """Qwen's heads have 151,936 rows for fewer tokens, and servers do not cut them."""
    (four,) = prompts.tokenizer.encode("4")
    beyond = len(prompts.tokenizer.pieces)
    found = scored(prompts, four, [(four, -0.5), (beyond, -2.0), (-1, -3.0)])
    assert [(one.token, one.text, one.logprob) for one in found.top[0]] == [(four, "4", -0.5)]
    chosen = scored(prompts, beyond, [(beyond, -0.5), (four, -2.0)])
    assert [one.token for one in chosen.top[0]] == [four]
    assert (chosen.choices, chosen.options[0].text) == ((beyond,), "")
    assert (chosen.options[0].finish, chosen.options[0].tokens) == ("doubt", ())


def test_an_end_of_the_text_adds_nothing_to_it(prompts: PromptRenderer) -> None:
    tokenizer = prompts.tokenizer
    assert tokenizer.eos_id is not None
    (four,) = tokenizer.encode("4")
    found = scored(prompts, four, [(four, -0.5), (tokenizer.eos_id, -1.0)])
    assert [(one.text, one.ends) for one in found.top[0]] == [("4", False), ("", True)]
    segment = Segment("small", "4", (four,), (-0.5,), tokenizer.hash)
    behind = Verification((0.5,), (four, four), pieces=("4",), logprobs=(-0.5, 0), top=found.top)
    ((_, likely),) = ScoredSegment(segment, behind).tokens()
    assert [one.name for one in likely] == ["4", f"token_id:{tokenizer.eos_id}"]
