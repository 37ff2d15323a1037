"""Turns a model's scores of ids into a `Verification`: ids as texts, or as ends of the text."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import cast

from orchestrator.types import (
    ENDED,
    Author,
    Finish,
    LikelyToken,
    Segment,
    Transcript,
    Usage,
    Verification,
)
from orchestrator.worker import Call
from workers.text.detokenizer import token_texts
from workers.text.ends import held_back
from workers.text.prompt import PromptRenderer


@dataclass(eq=False, slots=True)
class Scores:
    """The scores of a prompt that `workers.backend.Scoring` asks for, in natural logarithms."""

    nll: list[float] = field(default_factory=list)  # negative log-likelihoods of k ids
    choices: list[int] = field(default_factory=list)  # at their places and after them, k + 1
    logprobs: list[float] = field(default_factory=list)  # of these, as they were drawn
    ending: float = inf  # negative log-likelihood that the text ends after the k ids
    top: list[list[tuple[int, float]]] = field(default_factory=list)  # the likeliest, k + 1 rows
    labels: list[float] = field(default_factory=list)  # log-probabilities after the prompt
    usage: Usage = field(default_factory=Usage)

    def give(self, token: int) -> None:
        """Put a certain token before the others: the first of all, which nothing precedes."""
        self.nll.insert(0, 0.0)
        self.choices.insert(0, token)
        self.logprobs.insert(0, 0.0)
        if self.top:
            self.top.insert(0, [(token, 0.0)])


def finish_token_ids(
    prompts: PromptRenderer,
    stop_token_ids: Collection[int],
    transcript: Transcript,
    segment: Segment | None,
) -> frozenset[int]:
    """Return the `stop_token_ids` that express the finish of `segment`, if a model ended it."""
    stop_token_ids = prompts.ends(stop_token_ids, transcript)
    closes = set() if transcript.closed else {prompts.tokenizer.close_id} - {None}
    meaning = {"think_end": stop_token_ids & closes, "eos": stop_token_ids - closes}
    return meaning.get(segment.finish, frozenset()) if segment else frozenset()


def verification(
    output: Scores,
    call: Call,
    segment: Segment,
    prompts: PromptRenderer,
    stop_token_ids: Collection[int],
    ms: float,
) -> Verification:
    """Return the scores of `segment` after the transcript of `call`, with texts."""
    stop_token_ids = prompts.ends(stop_token_ids, call.transcript)
    thinking, tokenizer = not call.transcript.closed, prompts.tokenizer
    author, stops = cast("Author", call.author), tokenizer.stops(thinking)
    options: list[Segment] = []
    unfinished_bytes = prompts.unfinished(call.transcript)
    tokens = prompts.segment(segment)
    likely = output.top or [[] for _ in output.choices]
    known = range(len(tokenizer.pieces))  # a model's padded head has ids beyond these
    shown = [
        [i for i in (choice, *(i for i, _ in row)) if i in known]
        for choice, row in zip(output.choices, likely, strict=True)
    ]
    pieces, texts = token_texts(tokenizer.pieces, tokens, shown, unfinished_bytes)
    named = [dict(zip(ids, row, strict=True)) for ids, row in zip(shown, texts, strict=True)]
    for token, here, logprob in zip(output.choices, named, output.logprobs, strict=True):
        text = here.get(token, "")
        option = Segment(author, text, (token,), (logprob,), tokenizer.hash)
        if token in stop_token_ids:
            closes = thinking and token == tokenizer.close_id
            finish: Finish = "think_end" if closes else "eos"
            option = Segment(author, "", tokenizer=tokenizer.hash, finish=finish)
        elif token not in known or held_back(text, stops) or any(stop in text for stop, _ in stops):
            # An unknown id, or one that may begin a marker of several tokens: no text to commit.
            option = Segment(author, "", tokenizer=tokenizer.hash, finish="doubt")
        options.append(option)
    return Verification(
        tuple(output.nll),
        tuple(output.choices),
        output.usage,
        ms,
        tuple(pieces),
        tuple(options),
        output.ending if segment.finish in ENDED else None,
        tuple(output.logprobs),
        tuple(
            tuple(
                LikelyToken(token, "" if ends else here[token], logprob, ends)
                for token, logprob in row
                if token in here
                for ends in [token in stop_token_ids]
            )
            for row, here in zip(output.top, named, strict=bool(output.top))
        ),
    )
