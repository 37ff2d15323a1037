"""The types that the whole system shares, small and frozen.

A *transcript* is the chain of thought so far: the question, the accepted *segments* of the thought,
whether the thought is closed, and the segments of the answer. It never holds drafts. Control
tokens (chat markup, the opening and closing of the thought) are structure here, never text: only
a worker turns them into token ids, so no text that a user or a model writes can imitate them. A
marker that a model mentions in its text is text.

If no model of the pair has a thought, the transcript has none either: it is closed from the start,
and the models write the answer together. Then its `thought` is advice by one model (`turns`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass

from orchestrator.persistent import PersistentSequence
from orchestrator.validation import refuse_truth

Number = Annotated[float, BeforeValidator(refuse_truth)]
Price = Annotated[Number, Field(ge=0)]
Role = Literal["system", "user", "assistant", "tool", "tools", "prompt"]
"""The author of a message. "tool": a tool's result. "tools", only first: lists the tools that may
be called (OpenAI's JSON). "prompt": a text that is continued as it is, with no chat template."""
Author = Literal["small", "large", "policy"]
Finish = Literal["until", "stop", "length", "think_end", "eos", "doubt"]
"""Why a generation ended: a delimiter of its criteria (kept in the text), a client's stop string
(cut off), the token cap, the model's end of thought (in an answer: of a thought that continued
there), its end of turn, or doubt (low confidence)."""
ENDED: tuple[Finish, ...] = ("think_end", "eos")
"""The finishes by which a model itself ends a text."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool; `arguments` is the JSON of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ArgumentFormat:
    """How a model writes each argument of a call: before NAME middle VALUE after.

    A string is written as it is, every other value as JSON, or perhaps as a Python literal
    (`python`). `other` replaces `middle` before a value that is no string, if the model
    distinguishes them. `quotes` are around a string that holds markup, if the model writes any.
    """

    before: str
    middle: str
    after: str
    other: str = ""
    python: bool = False
    quotes: tuple[str, str] | None = None

    @property
    def begins_at_lines(self) -> bool:
        """Whether each argument begins on a new line."""
        return self.after.endswith("\n")


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a model writes calls of tools: before NAME middle ARGUMENTS after.

    `between` is between the arguments of one call and the name of the next; None: the model makes
    one call a turn. `ID` marks the call's id, nine letters and digits, and `COUNT` its number.
    `text_arguments`: the chat template wants arguments as JSON text, not as an object. `each`:
    arguments are written one by one; None: as one JSON object.
    """

    ID: ClassVar[str] = "\0"
    COUNT: ClassVar[str] = "\1"

    before: str
    middle: str
    after: str
    between: str | None = None
    text_arguments: bool = False
    each: ArgumentFormat | None = None

    @property
    def markup(self) -> str:
        """All markup around names and arguments."""
        each = self.each
        around = (each.before, each.middle, each.other, each.after) if each else ()
        parts = (self.before, self.middle, self.after, self.between or "", *around)
        return re.sub(f"[{self.ID}{self.COUNT}]", "", "".join(parts))

    @property
    def trigger(self) -> str:
        """The markup that begins every call; empty if a call is a JSON object and nothing else."""
        return re.split(rf"[\s{{{self.ID}]", self.before.lstrip(), maxsplit=1)[0]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of the conversation, or a prompt, which may come as `tokens`: ids of the worker's
    vocabulary.

    An assistant's turn may have `calls`, after some `reasoning`; a tool's result has the `call_id`
    of its call, and maybe the tool's `name`.
    """

    role: Role
    content: str
    tokens: tuple[int, ...] | None = None
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must match, by any model; a thought is free.

    kind: "json_schema" (a JSON Schema, `source` its JSON), "regex", "grammar" (a grammar in Lark's
    notation), or "tools" (calls of tools in the form of the model that writes them; `source` is the
    JSON of what `orchestrator.grammar.tool_rules` makes).
    exact: whether the answer is shown as it is, so that no extra white space may precede it.
    """

    kind: Literal["json_schema", "regex", "grammar", "tools"]
    source: str
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy; top_k 0 and top_p 1 mean off.

    `seed` makes a call reproducible in any batch; None draws a new one.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the argmax is taken; below 1e-5 a softmax is a point mass anyway."""
        return self.temperature < 1e-5


GREEDY = Sampling()


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PartialSampling:
    """Sampling of a request or a deployment file; None leaves a field to the next default.

    The order is: the request, the deployment file, the large model's checkpoint
    (`generation_config.json`).
    """

    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None  # 0 is greedy
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None  # 1 is off
    top_k: Annotated[int, BeforeValidator(refuse_truth), Field(ge=0, lt=2**31)] | None = None

    @property
    def is_complete(self) -> bool:
        return None not in (self.temperature, self.top_p, self.top_k)

    def over(self, default: Sampling) -> Sampling:
        """Fill missing fields from the default."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return replace(default, **given)


@dataclass(frozen=True, slots=True)
class StopCriteria:
    """When one generation ends.

    `until`: delimiters that end it and stay in the text (matched on text, whole tokens are kept);
    one inside a code block, a formula or a table, or after a colon, does not end it.
    `stop`: strings that end it and are cut off. `min_confidence`: end before the first token whose
    top probability is below it (finish "doubt"). The model's end of thought (while thinking) and
    end of turn always end it, and are in neither text nor tokens; with `ignore_eos` an end of turn
    is a token like any other, but without text. Before `min_tokens` tokens no end of turn is
    written, and no string of `stop` begins.
    """

    max_tokens: int
    until: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    min_confidence: float = 0.0
    ignore_eos: bool = False
    min_tokens: int = 0

    def after(self, tokens: int) -> StopCriteria:
        """Return the criteria for the rest of a generation that has this many tokens."""
        left, least = self.max_tokens - tokens, max(0, self.min_tokens - tokens)
        return replace(self, max_tokens=left, min_tokens=least)


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of text by one author.

    `tokens` are the author's token ids of exactly this text and `tokenizer` the hash of the
    vocabulary they belong to; text inserted by a policy has neither. `logprobs` are natural logs
    of each token's probability under the distribution it was drawn from, one per token.
    """

    author: Author
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    tokenizer: str = ""
    finish: Finish = "until"

    def __add__(self, rest: Segment) -> Segment:
        """Join two segments; the finish is the second's, and there are log-probabilities if both
        have those of all their tokens."""
        tokens, logprobs = self.tokens + rest.tokens, self.logprobs + rest.logprobs
        return replace(
            rest,
            text=self.text + rest.text,
            tokens=tokens,
            logprobs=logprobs if len(logprobs) == len(tokens) else (),
        )


class Segments(PersistentSequence[Segment]):
    """The accepted segments of a phase; reading its properties costs only what is new."""

    __slots__ = ()

    @property
    def tokens(self) -> int:
        """How many tokens they have (each author's own count)."""
        return self.fold(_count_tokens, 0)

    @property
    def is_blank(self) -> bool:
        """Whether there is no text but white space."""
        return self.fold(_stay_blank, True)

    def text(self, start: int = 0) -> str:
        """Return their text, from segment `start` on."""
        return "".join(segment.text for segment in self[start:])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle field by field: that costs a fraction of pickling the objects."""
        names = [spec.name for spec in fields(Segment)]
        return _of_fields, tuple([getattr(segment, name) for segment in self] for name in names)


def _of_fields(*values: Any) -> Segments:
    return Segments(map(Segment, *values))


def _count_tokens(count: int, segment: Segment) -> int:
    return count + len(segment.tokens)


def _stay_blank(blank: bool, segment: Segment) -> bool:
    return blank and not segment.text.strip()


def _after_thought(found: tuple[int, int], segment: Segment) -> tuple[int, int]:
    """Count the segments, and those up to the last that ends with the thought."""
    count = found[0] + 1
    return count, count if segment.finish == "think_end" else found[1]


NO_SEGMENTS = Segments()


@dataclass(frozen=True, slots=True)
class Transcript:
    """A question and the chain of thought accepted so far.

    The models share its `chain`: the thought, or the answer if they have no thought.
    """

    messages: tuple[Message, ...]
    thought: Segments = NO_SEGMENTS
    answer: Segments = NO_SEGMENTS
    thinking: bool = True  # there is a thought; without one the transcript is closed from the start
    closed: bool = False  # the thought has ended; what follows is the answer
    forced: bool = False  # no model closed the thought: a budget or a loop did
    done: bool = False  # the answer has ended
    finish: Literal["stop", "length"] = "stop"  # why it ended, in OpenAI's words
    # How many ends of the thought and the turn a model wrote: one token each, in no segment.
    # Only a count, so it is not compared.
    ends: int = field(default=0, compare=False)
    effort: str = ""  # how hard to think (`orchestrator.efforts`); empty: as the template says

    @property
    def chain(self) -> Segments:
        """The accepted segments that the models share."""
        return self.thought if self.thinking else self.answer

    @property
    def turns(self) -> tuple[Message, ...]:
        """The messages that a model reads before it writes: advice is one of them."""
        if self.thinking or not self.thought:
            return self.messages
        return (*self.messages, Message("user", self.thought.text()))

    @property
    def is_open(self) -> bool:
        """Whether the chain still grows."""
        return not (self.closed if self.thinking else self.done)

    @property
    def text(self) -> str:
        """The accepted chain, as one string."""
        return self.chain.text()

    def without_thought(self) -> Transcript:
        """Return this transcript for models that have no thought: the answer begins at once."""
        return replace(self, thinking=False, closed=True)

    @property
    def begins_answer(self) -> bool:
        """Whether the next text begins an answer, so that white space at its start is not shown."""
        continued = bool(self.messages) and self.messages[0].role == "prompt"
        return self.closed and not continued and not self.reply.strip()

    @property
    def reply_start(self) -> int:
        """The index of the answer's first segment after a thought that continued in it. That
        thought's last segment has the finish "think_end"."""
        return self.answer.fold(_after_thought, (0, 0))[1] if self.thinking else 0

    @property
    def reply(self) -> str:
        """The answer's text, without a thought that continued in it."""
        return self.answer.text(self.reply_start)

    @property
    def phase(self) -> Segments:
        """The accepted segments of the current phase."""
        return self.answer if self.closed else self.thought

    @property
    def last(self) -> Segment | None:
        """The newest segment of the current phase."""
        return self.phase[-1] if self.phase else None

    def continues(self, other: Transcript) -> bool:
        """Return whether this is `other`, maybe with more segments in the current phase."""
        count = len(other.phase)
        return self.closed == other.closed and self.phase.shared(other.phase) == count

    def extend(self, segment: Segment) -> Transcript:
        """Return this transcript with one more accepted segment in the current phase."""
        if self.closed:
            return replace(self, answer=self.answer.plus(segment))
        return replace(self, thought=self.thought.plus(segment))


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of one worker call, in tokens of that worker."""

    prompt: int = 0  # length of the whole prefix
    cached: int = 0  # of these, found in the worker's cache
    generated: int = 0
    passes: int = 0  # forward passes of the worker's model that served this call
    adopted: int = 0  # of the generated tokens, those that had been run ahead


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origins of a generation's tokens in speculative decoding.

    `origins` is a letter for each token of its segment:

        a   accepted: the draft had it
        r   recovered: the model's own, in place of a rejected draft
        b   bonus: the model's own, after a draft that it accepted whole
        -   plain: nothing was drafted for this place
        ?   unknown: another replica made it, or a stop string cut it

    `lengths` counts the characters (code points) that each token adds to the segment's text.
    `rejected` lists the places of recovered tokens, each with the drafts there (several if the
    draft is a tree). `drafted_at[i]` counts the rounds in which the draft reached position i + 1,
    `accepted_at[i]` those in which the model accepted it there.
    """

    origins: str
    lengths: tuple[int, ...]
    rejected: tuple[tuple[int, tuple[str, ...]], ...] = ()
    drafted_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()

    @classmethod
    def unknown(cls, segment: Segment) -> Provenance:
        """Return a segment's provenance if nothing is known about its tokens."""
        count = len(segment.tokens)
        return cls("?" * count, (*[0] * (count - 1), len(segment.text)) if count else ())

    def __add__(self, rest: Provenance) -> Provenance:
        """Join the provenances of two consecutive segments."""
        begun = len(self.origins)
        return Provenance(
            self.origins + rest.origins,
            self.lengths + rest.lengths,
            self.rejected + tuple((begun + place, drafts) for place, drafts in rest.rejected),
            added(self.drafted_at, rest.drafted_at),
            added(self.accepted_at, rest.accepted_at),
        )


def joined_provenance(
    first: Segment, known: Provenance | None, rest: Segment, more: Provenance | None
) -> Provenance | None:
    """Join the provenances of two consecutive segments; None means unknown."""
    if known is None and more is None:
        return None
    return (known or Provenance.unknown(first)) + (more or Provenance.unknown(rest))


def added(counts: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    """Add counts by position; the shorter ones count as 0 beyond their end."""
    return tuple(map(sum, zip_longest(counts, more, fillvalue=0)))


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation.

    `thinks`: whether the worker's model marks a thought. `calls`: how it writes calls, if the
    transcript has tools. `closing`: the words by which its family ends a thought early, if it knows
    any. `provenance`: None if nothing was drafted, or the worker cannot tell.
    """

    segment: Segment
    usage: Usage = Usage()
    ms: float = 0.0
    thinks: bool = True
    calls: CallFormat | None = None
    provenance: Provenance | None = field(default=None, compare=False)
    closing: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class LabelQuery:
    """A side conversation after a transcript, and single-token labels that compete for a position.

    The model reads the transcript with its chain left open, then `turns`, then begins its reply
    with `lead_in`; the labels compete for the next position. `likeliest`: only which token is
    the likeliest counts, so a worker that knows no probabilities may answer with a point mass.
    `nll`: the same pass also gives the negative log-likelihood of the transcript's last segment
    and of its end.
    """

    turns: tuple[Message, ...]
    lead_in: str
    labels: tuple[str, ...]
    likeliest: bool = False
    nll: bool = False


@dataclass(frozen=True, slots=True)
class Classification:
    """The distribution over a query's labels at one forced position.

    `probabilities` sum to 1 over the labels, in their order; `outside` is the probability
    mass that the model put on everything else before normalising. `nll` and `ending` are those of
    the transcript's last segment, as in `Verification`, if the query wants them.
    """

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    outside: float = 0.0
    usage: Usage = Usage()
    ms: float = 0.0
    nll: tuple[float, ...] | None = None
    ending: float | None = None


@dataclass(frozen=True, slots=True)
class LikelyToken:
    """One of the likeliest tokens at a position, with the text that it would add and its
    log-probability (natural log, at temperature 1); `ends`: it would end the text, and add nothing.
    """

    token: int
    text: str
    logprob: float
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Verification:
    """How likely a worker finds k tokens that another wrote.

    `nll[i]` is the negative log-likelihood (natural log) of token i given what precedes it;
    `choices[i]` the worker's own choice there, k + 1 of them: the last follows all k tokens.

    A worker that writes text also gives the text of the ids, for a policy without a tokenizer:
    `pieces[i]` is the text that token i adds, `options[i]` is choice i as a segment of one token.
    That segment has no token, and the finish "think_end" or "eos", if the choice ends the phase;
    "doubt" if it may begin a marker of several tokens, or is no token of the worker's tokenizer:
    only a generation shows. A character that lies across tokens, or across segments, belongs to the
    one that completes it: accepted texts add up to the text of the accepted ids wherever a segment
    is cut. `ending` is the negative log-likelihood of the end that the segment claims; None if it
    claims none. `logprobs` are those of the choices. `top`: the likeliest tokens at each of the
    k + 1 positions, likeliest first, as many as were asked for, without those that are no token of
    the tokenizer.
    """

    nll: tuple[float, ...]
    choices: tuple[int, ...]
    usage: Usage = Usage()
    ms: float = 0.0
    pieces: tuple[str, ...] = ()
    options: tuple[Segment, ...] = ()
    ending: float | None = None
    logprobs: tuple[float, ...] = ()
    top: tuple[tuple[LikelyToken, ...], ...] = ()

    def split(self, segment: Segment, count: int) -> tuple[Segment, Segment]:
        """Split the verified segment after `count` tokens; the second part has its finish."""
        parts = (slice(count), slice(count, None))
        first, rest = (
            replace(
                segment,
                text="".join(self.pieces[part]),
                tokens=segment.tokens[part],
                logprobs=segment.logprobs[part],
            )
            for part in parts
        )
        return replace(first, finish="until"), rest


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the steps that users see: a draft, a rewrite, or a text inserted by a policy.

    `given_up`: the policy accepted it, but the cap that cut the thought left no room for an answer
    after it. So it is not `accepted`.
    """

    author: Author
    text: str
    accepted: bool
    tokens: int
    ms: float
    score: float | None = None
    phase: Literal["thought", "answer", "advice"] = "thought"
    given_up: bool = False


def chain_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the steps of the thought; if there is none, all steps, which are the answer's."""
    return [step for step in steps if step.phase == "thought"] or list(steps)


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TokenPrices:
    """Money per million tokens, in the currency of a policy's `max_cost`.

    small, large: tokens that the model generates.
    prompt: prompt tokens that either model computes, without those in its cache.
    """

    small: Price = 0.0
    large: Price = 0.0
    prompt: Price = 0.0

    @property
    def all_free(self) -> bool:
        return not (self.small or self.large or self.prompt)

    def of(self, small_tokens: int, large_tokens: int, prompt_tokens: int) -> float:
        generated = small_tokens * self.small + large_tokens * self.large
        return (generated + prompt_tokens * self.prompt) / 1e6


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one request.

    `max_tokens` caps thought and answer together; `deadline_s` is wall time from the start of the
    request; `stop` are strings that end the answer; without `thinking` there is no thought at all;
    with `ignore_eos` only a cap or a stop string ends the answer, and before `min_tokens` tokens of
    both only a cap does; the answer matches `constraint`. With `complete` a worker's failure ends
    the request, even if the policy could do without the call. `effort` is how hard to think, for
    templates that have levels (`orchestrator.efforts`); empty: as they say. (The policy's `budget`
    caps the thought alone, its `max_cost` the cost of the large model's part at these `prices`.)
    """

    max_tokens: int = 2048
    deadline_s: float | None = None
    stop: tuple[str, ...] = field(default=())
    thinking: bool = True
    ignore_eos: bool = False
    min_tokens: int = 0
    constraint: Constraint | None = None
    complete: bool = False
    effort: str = ""
    prices: TokenPrices | None = None
