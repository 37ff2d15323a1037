"""From a model's scores of ids to a `Verification`: the ids as text, and as ends of the text."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from orchestrator.types import Author, Finish, Segment, Transcript, Usage, Verification
from orchestrator.worker import Call
from workers.text.detokenizer import held_back, token_texts
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer import Tokenizer

ENDED: tuple[Finish, ...] = ("think_end", "eos")
"""The finishes by which a model itself ends a text."""


@dataclass(eq=False, slots=True)
class ScoreOutput:
    """A pass over k ids: the negative log-likelihood of each, k + 1 choices with log-probabilities.

    `ending` is the negative log-likelihood of the ids, taken together, that end the text there.
    """

    nll: list[float]
    choices: list[int]
    logprobs: list[float]
    ending: float


def finish_token_ids(
    tokenizer: Tokenizer,
    stop_token_ids: Collection[int],
    transcript: Transcript,
    segment: Segment | None,
) -> frozenset[int]:
    """Those of a model's `stop_token_ids` that stand for the finish of `segment`.

    Empty where a model did not end it, or where there is no segment.
    """
    closes = set() if transcript.closed else {tokenizer.close_id} - {None}
    finish = None if segment is None else segment.finish
    if finish == "think_end":
        return frozenset(i for i in stop_token_ids if i in closes)
    return (
        frozenset(i for i in stop_token_ids if i not in closes) if finish == "eos" else frozenset()
    )


def verification(
    output: ScoreOutput,
    call: Call,
    segment: Segment,
    prompts: PromptRenderer,
    stop_token_ids: Collection[int],
    usage: Usage,
    ms: float,
) -> Verification:
    """The scores on `segment` behind the transcript of `call`, with its texts.

    `stop_token_ids` are the ids that a model may choose and that are never text.
    """
    thinking, tokenizer = not call.transcript.closed, prompts.tokenizer
    author, stops = cast("Author", call.author), tokenizer.stops(thinking)
    options: list[Segment] = []
    unfinished_bytes = prompts.unfinished(call.transcript)
    tokens = prompts.segment(segment)
    pieces, texts = token_texts(tokenizer.pieces, tokens, output.choices, unfinished_bytes)
    for token, text, logprob in zip(output.choices, texts, output.logprobs, strict=True):
        option = Segment(author, text, (token,), (logprob,), tokenizer.hash)
        if token in stop_token_ids:
            closes = thinking and token == tokenizer.close_id
            finish: Finish = "think_end" if closes else "eos"
            option = Segment(author, "", tokenizer=tokenizer.hash, finish=finish)
        elif held_back(text, stops) or any(stop in text for stop, _ in stops):
            # It may begin the marker of several tokens that ends the phase: no text to commit.
            option = Segment(author, "", tokenizer=tokenizer.hash, finish="doubt")
        options.append(option)
    return Verification(
        tuple(output.nll),
        tuple(output.choices),
        usage,
        ms,
        tuple(pieces),
        tuple(options),
        output.ending if segment.finish in ENDED else None,
        tuple(output.logprobs),
    )
