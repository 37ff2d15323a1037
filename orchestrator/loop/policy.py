"""What a policy is: typed parameters and a script. Thresholds live here, never in a worker."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from orchestrator.loop.actions import Script, WorkerName
from orchestrator.types import Transcript


class Policy(BaseModel):
    """Base of every policy; a subclass is one paper, its fields are the paper's parameters.

    An instance holds parameters only, and many requests share it: what belongs to one request are
    local variables of its `solve`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    workers: ClassVar[frozenset[WorkerName]] = frozenset({"small", "large"})
    calibrated: ClassVar[str | None] = None
    """The field that trades accuracy for cost: what `baton calibrate` sets, within its bounds."""

    budget: int | None = Field(
        default=None, ge=1, description="cap on accepted thinking tokens; then an answer is forced"
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
        description="what the request has cost, at the service's prices, when the small model is "
        "to continue the thought alone",
    )
    answer_reserve: int = Field(
        default=64,
        ge=0,
        description="the last tokens of a thought that max_tokens cuts, given up for an answer; "
        "half of max_tokens at most",
    )

    @property
    def called(self) -> frozenset[WorkerName]:
        """The workers that a request needs: the small one too if spending is capped."""
        capped = self.max_large_tokens is not None or self.max_cost is not None
        return self.workers | {"small"} if capped else self.workers

    @property
    def one_vocabulary(self) -> bool:
        """Whether ids travel from one model to the other, which then need the same tokenizer."""
        return False

    @abstractmethod
    def solve(self, transcript: Transcript) -> Script[None]:
        """Write the thought and the answer: a generator that yields actions and gets results.

        A policy does no I/O. It yields an action, the driver (`solve` in solve.py, a replay, a
        test) carries it out and sends the result back in, so `yield from action` evaluates to it:

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
                    except WorkerError:  # one of them failed: do without this draft
                        accepted = False
                    if accepted:
                        # Now the client sees it, and the transcript has grown by a segment.
                        transcript = yield from Accept(transcript, draft.segment)
                    else:
                        # Generation that is accepted as it is made: the client sees each token.
                        transcript = yield from Write("large", transcript, step)
                while not transcript.done:  # the chain has ended; what follows is the answer
                    transcript = yield from Write("large", transcript, StopCriteria(2048))

        An action's type says what comes back: a `Generation` for `Generate`, a `Classification`
        for `Classify`, the grown `Transcript` for `Accept`, `Write` and `Close`.

        The driver decides when a phase is over: the transcript that comes back is no longer
        `is_open` when the model ended its thought or the budget was used up, and `done` when the
        answer has ended (both at once if the models of the pair have no thought). A generation is
        cut at what the budget leaves, so criteria may ask for more.

        A worker's failure is raised at the action: a `WorkerError`, or one of its kinds
        (`Unsupported`: this pair can never do it), or `ContextLengthExceeded` if the transcript
        has outgrown a worker's context. Catch it, or let it end the request; if nothing catches a
        `ContextLengthExceeded`, the thought ends with "length", and the first worker that has room
        left writes the answer. When the client hangs up, the generator is closed
        (`GeneratorExit`) and its `finally` blocks run; nothing can be yielded from them.

        What a policy may not do:

        - extend any transcript but the one that it was last given: what was streamed stays;
        - extend a transcript that is `done`, or return before it is;
        - yield more than `MAX_IDLE` actions in a row that add nothing to the transcript;
        - read a clock, draw random numbers or await: a replay must yield the same actions.
          Randomness comes from the request's sampling.

        `policies/specreason.py` is a real one, which has its loop from `policies/steps.py`.
        """
