"""From what a model thinks of ids to a `Verification`: what the ids mean as text and as ends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from orchestrator.types import Author, Finish, Segment, Transcript, Usage, Verification
from orchestrator.worker import Call
from workers.text.detokenizer import cuts
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer import Tokenizer

ENDED: tuple[Finish, ...] = ("think_end", "eos")
"""The finishes by which a model itself ends a text."""


@dataclass(eq=False, slots=True)
class ScoreOutput:
    """What a pass says of k ids: surprise at each, k + 1 choices and their log-probabilities.

    `ending` is the surprise at any of the ids that end the text behind them.
    """

    nll: list[float]
    choices: list[int]
    logprobs: list[float]
    ending: float


def endings(
    tokenizer: Tokenizer, ends: Collection[int], transcript: Transcript, segment: Segment | None
) -> frozenset[int]:
    """Those of `ends`, a model's ids that are never text, by which `segment` claims to end.

    None where it claims no end, or where there is no segment.
    """
    closes = set() if transcript.closed else {tokenizer.close_id}
    finish = None if segment is None else segment.finish
    if finish == "think_end":
        return frozenset(i for i in ends if i in closes)
    return frozenset(i for i in ends if i not in closes) if finish == "eos" else frozenset()


def verification(
    output: ScoreOutput,
    call: Call,
    segment: Segment,
    prompts: PromptRenderer,
    ends: Collection[int],
    usage: Usage,
    ms: float,
) -> Verification:
    """The scores on `segment` behind the transcript of `call`, with its texts.

    `ends` are the ids that a model may choose and that are never text.
    """
    thinking, tokenizer = not call.transcript.closed, prompts.tokenizer
    pieces: list[str] = []
    options: list[Segment] = []
    # Where the end of a thought is spelled in plain tokens, no single choice can be told
    # from the beginning of one: then there are ids, and no text to commit.
    if not thinking or tokenizer.close_id is not None:
        begun = prompts.unfinished(call.transcript)
        tokens = prompts.segment(segment)
        pieces, texts = cuts(tokenizer.pieces, tokens, output.choices, begun)
        for token, text, logprob in zip(output.choices, texts, output.logprobs, strict=True):
            option = Segment(
                cast("Author", call.author), text, (token,), (logprob,), tokenizer.hash
            )
            if token in ends:
                closes = thinking and token == tokenizer.close_id
                finish: Finish = "think_end" if closes else "eos"
                option = Segment(option.author, "", tokenizer=tokenizer.hash, finish=finish)
            options.append(option)
    return Verification(
        tuple(output.nll),
        tuple(output.choices),
        usage,
        ms,
        tuple(pieces),
        tuple(options),
        output.ending if segment.finish in ENDED else None,
    )
