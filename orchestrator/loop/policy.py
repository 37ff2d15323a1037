"""Base of the policies: typed parameters and a script. Thresholds are here, never in a worker."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from orchestrator.loop.actions import Script, WorkerName
from orchestrator.types import Transcript


class Policy(BaseModel):
    """Base of every policy; a subclass is one paper, its fields are the paper's parameters.

    An instance has parameters only, since many requests share it. The state of one request is in
    local variables of its `solve`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    workers: ClassVar[frozenset[WorkerName]] = frozenset({"small", "large"})
    calibrated: ClassVar[str | None] = None
    """The field that trades accuracy for cost: `baton calibrate` sets it, within its bounds."""

    budget: int | None = Field(
        default=None, ge=1, description="cap on accepted thinking tokens; then an answer is forced"
    )
    soft_budget: FiniteFloat | None = Field(
        default=None,
        gt=0,
        le=1,
        description="share of `budget` (or of max_tokens) after which the thought is closed at the "
        "end of a step",
    )
    closing: str = Field(
        default="",
        max_length=1024,
        description="words at the end of a thought that a budget or a loop closes; auto: those "
        "that the large model's family knows, if any",
    )
    max_large_tokens: int | None = Field(
        default=None,
        ge=0,
        description="cap on the tokens that the large model generates for the thought; then the "
        "small one continues alone",
    )
    max_cost: FiniteFloat | None = Field(
        default=None,
        ge=0,
        description="cap on the request's cost, at the service's prices; then the small model "
        "continues the thought alone",
    )
    answer_reserve: int = Field(
        default=64,
        ge=0,
        description="tokens at the end of a thought that max_tokens cuts, given up for an answer; "
        "at most half of max_tokens",
    )

    @property
    def called(self) -> frozenset[WorkerName]:
        """The workers that a request needs: the small one too if spending is capped."""
        capped = self.max_large_tokens is not None or self.max_cost is not None
        return self.workers | {"small"} if capped else self.workers

    def within(self, budget: int | None) -> Self:
        """Return this policy with a `budget` of at most this; None: its own."""
        if budget is None or (self.budget is not None and self.budget <= budget):
            return self
        return self.model_copy(update={"budget": budget})

    @property
    def one_vocabulary(self) -> bool:
        """Whether one model gets the other's token ids, so that both need the same tokenizer."""
        return False

    @abstractmethod
    def solve(self, transcript: Transcript) -> Script[None]:
        """Write the thought and the answer: a generator that yields actions and gets results.

        A policy does no I/O. It yields an action, the driver (`solve` in solve.py, a replay, a
        test) carries it out and sends the result back, to which `yield from action` evaluates:

            def solve(self, transcript: Transcript) -> Script[None]:
                step = StopCriteria(512, until=("\\n\\n",))
                while transcript.is_open:
                    try:
                        # A draft: the client sees nothing of it.
                        draft = yield from Generate("small", transcript, step)
                        # A judgement: the large model reads the draft, then answers by one digit.
                        digits = yield from Classify(
                            "large", transcript.extend(draft.segment), (QUESTION,), "", ("0", "1")
                        )
                        accepted = digits.probabilities[1] >= self.threshold
                    except WorkerError:  # one of them failed: continue without this draft
                        accepted = False
                    if accepted:
                        # Now the client sees it, and the transcript has grown by a segment.
                        transcript = yield from Accept(transcript, draft.segment)
                    else:
                        # Generation that is accepted as it is made: the client sees each token.
                        transcript = yield from Write("large", transcript, step)
                while not transcript.done:  # the chain has ended; the answer follows
                    transcript = yield from Write("large", transcript, StopCriteria(2048))

        An action's type gives its result: a `Generation` for `Generate`, a `Classification` for
        `Classify`, the longer `Transcript` for `Accept`, `Write` and `Close`.

        The driver decides when a phase is over: the resulting transcript is no longer `is_open`
        when the model ended its thought or the budget was used up, and `done` when the answer has
        ended (both at once if the models of the pair have no thought). The driver cuts a generation
        to the rest of the budget, so criteria may ask for more.

        A worker's failure is raised at the action: a `WorkerError`, or one of its kinds
        (`Unsupported`: this pair can never do it), or `ContextLengthExceeded` if the transcript
        has outgrown a worker's context. Catch it, or let it end the request; if nothing catches a
        `ContextLengthExceeded`, the thought ends with "length", and the first worker that has room
        left writes the answer. When the client hangs up, the generator is closed
        (`GeneratorExit`) and its `finally` blocks run; nothing can be yielded from them.

        What a policy may not do:

        - extend a transcript other than the last result: text that was streamed stays;
        - extend a transcript that is `done`, or return before it is;
        - yield more than `MAX_IDLE` actions in a row that add nothing to the transcript;
        - read a clock, draw random numbers or await: a replay must yield the same actions.
          Randomness comes from the request's sampling.

        `policies/specreason.py` is a real one, with its loop in `policies/steps.py`.
        """
