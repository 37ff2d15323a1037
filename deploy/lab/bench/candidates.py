"""What decodes side by side: our methods with their parameters, and transformers' own loops.

A `Candidate` here is a method or one of `PEERS`, in the place of a policy.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import sub
from time import perf_counter
from typing import Any, Final, TypeAlias

import torch
from transformers import GenerationConfig

from deploy.evaluation.candidates import Candidate
from deploy.lab.pair.generation import generate
from deploy.lab.stock import stock
from orchestrator.errors import BatonError
from orchestrator.types import Sampling
from workers.embedded.checkpoints import resolve
from workers.engine.loading import LoadedTarget, choose_dtype
from workers.model.target import Target
from workers.model.tree import Accepted, Row
from workers.speculation import METHODS, build
from workers.speculation.auto import Auto
from workers.speculation.decode import Decoder

BASELINE: Final = "vanilla"
PEERS: Final = ("hf-generate", "hf-assisted")
EXTENDING: Final = ("kangaroo", "fspad")
"""Methods that make every pass of their target dearer: they have the same network with a separate
cache, so that the other methods' turns take no longer."""

SETS: Final = (
    *(f"hf-assisted:drafts={drafts}" for drafts in (3, 5, 8, 20)),  # 20 is its default
    *(f"chain:gamma={gamma}" for gamma in (2, 4, 8, 12)),
    "chain:gamma=12:threshold=0.4",
    "chain:gamma=16:threshold=0.6",
    "lookup:gamma=10",
    *(f"spectr:count={count}:gamma=4" for count in (2, 4)),
    "recursive-c:branching=[2,2,1,1]",
    *(f"recursive-s:width={width}:gamma=4" for width in (2, 4, 8)),
    "fspad",
    "fspad:depth=8:width=1:nodes=8",
)
"""The parameters a method is measured with; one that is not named here, with its own defaults."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The outputs of a turn, and what they cost.

    `emitted` tokens came from `rounds` (rows times rounds of the loop, without the pass over the
    prompt and its token): their ratio is the mean acceptance length, bonus token included.
    """

    outputs: list[list[int]]
    seconds: float
    passes: int
    emitted: int
    rounds: int
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.outputs))


class SpeculationCandidate:
    """A speculation method under the token loop, without the engine's thread around it."""

    def __init__(
        self, entry: Candidate, loaded: LoadedTarget, draft: str | None, max_new: int
    ) -> None:
        self.entry, self.max_new, self.dtype = entry, max_new, loaded.dtype
        self.stop_token_ids = sorted(loaded.stop_token_ids)
        parameters = dict(entry.params)
        known = inspect.signature(METHODS[entry.policy]).parameters
        if "draft" in known and draft is not None:
            parameters.setdefault("draft", draft)
        elif "draft" in known and known["draft"].default is inspect.Parameter.empty:
            raise ValueError("needs a draft model: give one with --draft")
        target = loaded.target
        if {entry.policy, parameters.get("base")} & {*EXTENDING}:
            target = Target(
                target.model, slots=target.cache.slots, max_len=target.max_len,
                vocabulary=target.vocabulary, encode=target.encode,
            )  # fmt: skip
        method = build(entry.policy, target, loaded.load_draft, **parameters)
        self.lossless = method.lossless
        self.decoder = _CountingDecoder(target, {entry.policy: method})

    @property
    def converged(self) -> bool:
        return not isinstance(self.decoder.method, Auto) or self.decoder.method.converged

    def run(self, prompts: Sequence[list[int]], temperature: float, seed: int) -> TurnResult:
        target = self.decoder.target
        for slot in range(target.cache.slots):  # the candidate before has prefilled this prompt too
            target.cache.evict(slot)
        before, began = self.decoder.counts(), _now(target.device)
        outputs = generate(
            self.decoder,
            prompts,
            self.max_new,
            sampling=Sampling(temperature, seed=seed),
            stop_token_ids=self.stop_token_ids,
        )
        seconds = _now(target.device) - began
        passes, rounds, drafted, accepted = map(sub, self.decoder.counts(), before)
        emitted = sum(map(len, outputs)) - len(prompts)
        return TurnResult(outputs, seconds, passes, emitted, rounds, drafted, accepted)


class _CountingDecoder(Decoder):
    """Counts rows times rounds."""

    rounds = 0

    def step(self, rows: list[Row], late: Sequence[Row] = ()) -> list[tuple[Row, Accepted]]:
        made = super().step(rows, late)
        self.rounds += len(made)
        return made

    def counts(self) -> tuple[int, ...]:
        """Passes, rounds, drafted and accepted tokens so far."""
        known = self.acceptance.stats()
        return self.target.passes, self.rounds, known["drafted_tokens"], known["accepted_tokens"]


class TransformersCandidate:
    """transformers' `generate` on the stock network, alone or assisted by the draft model."""

    lossless = converged = True

    def __init__(
        self,
        entry: Candidate,
        model: Any,
        stop_token_ids: Sequence[int],
        max_new: int,
        assistant: Any = None,
    ) -> None:
        self.entry, self.model, self.max_new, self.assistant = entry, model, max_new, assistant
        self.stop_token_ids = sorted(stop_token_ids)
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.passes = 0
        self.model.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.passes += 1

    def run(self, prompts: Sequence[list[int]], temperature: float, seed: int) -> TurnResult:
        pad, width, device = self.stop_token_ids[0], max(map(len, prompts)), self.model.device
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=device)
        seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        options: dict[str, Any] = {"do_sample": False}
        if temperature:
            options = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        if self.assistant is not None:
            self.assistant.generation_config.num_assistant_tokens = self.entry.params["drafts"]
            options["assistant_model"] = self.assistant
        torch.manual_seed(seed)
        before, began = self.passes, _now(device)
        generated = self.model.generate(
            ids,
            attention_mask=seen,
            max_new_tokens=self.max_new,
            eos_token_id=self.stop_token_ids,
            pad_token_id=pad,
            **options,
        )
        outputs = [_ended(row, self.stop_token_ids) for row in generated[:, width:].tolist()]
        seconds, passes = _now(device) - began, self.passes - before
        tokens = sum(map(len, outputs))
        rounds = tokens if self.assistant is None else passes
        return TurnResult(outputs, seconds, passes, tokens, rounds)


DecodingCandidate: TypeAlias = SpeculationCandidate | TransformersCandidate
"""It decodes prompts to the end of the turn, or to `max_new` tokens. Its turns are measured once it
is `converged`: it has settled on its parameters."""


def _ended(row: list[int], stop_token_ids: Sequence[int]) -> list[int]:
    at = next((i for i, token in enumerate(row) if token in stop_token_ids), len(row) - 1)
    return row[: at + 1]


def _now(device: torch.device) -> float:
    """The clock, after all that the device has to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


def entries(requested: Sequence[Candidate] | None) -> Iterator[Candidate]:
    """What to measure, the baseline first; a name alone means all of its parameter sets."""
    yield Candidate(BASELINE, BASELINE)
    if requested is None:
        requested = [Candidate.parse(name) for name in (*PEERS, *METHODS)]
    for entry in requested:
        sets = [one for one in map(Candidate.parse, SETS) if one.policy == entry.policy]
        if entry.policy != BASELINE:
            yield from sets if sets and not entry.params else [entry]


class Field:
    """Those that can decode a checkpoint, and why the others cannot, by streams."""

    def __init__(
        self, loaded: LoadedTarget, model: str, draft: str | None, device: str, max_new: int
    ) -> None:
        self.loaded, self.draft, self.max_new = loaded, draft, max_new
        self._names = {"model": model, "draft": draft}
        self._device, self._stocks = device, dict[str, Any]()
        self.missing: dict[str, str] = {}

    def enter(self, chosen: Sequence[Candidate], streams: int) -> list[DecodingCandidate]:
        """Make the candidates for this number of prompts at once."""
        entered: list[DecodingCandidate] = []
        for entry in chosen:
            try:
                entered.append(self._candidate(entry, streams))
            except (BatonError, TypeError, ValueError, OSError) as error:
                self.missing[entry.label] = " ".join(str(error).split()) or type(error).__name__
        return entered

    def _candidate(self, entry: Candidate, streams: int) -> DecodingCandidate:
        if entry.policy not in PEERS:
            return SpeculationCandidate(entry, self.loaded, self.draft, self.max_new)
        assistant = None
        if entry.policy == "hf-assisted":
            if self.draft is None:
                raise ValueError("needs a draft model: give one with --draft")
            if streams > 1:
                raise ValueError("assisted generation takes one stream: give --streams 1")
            self.loaded.load_draft(self.draft)  # refuses another vocabulary
            assistant = self._stock("draft")
        stops = sorted(self.loaded.stop_token_ids)
        return TransformersCandidate(entry, self._stock("model"), stops, self.max_new, assistant)

    def _stock(self, which: str) -> Any:
        if which not in self._stocks:
            dtype = choose_dtype(self._device, self.loaded.dtype)  # the peers know no 8 bits
            made = stock(resolve(str(self._names[which])), dtype).to(self._device)
            made.generation_config = GenerationConfig()  # its own may penalise repetitions
            self._stocks[which] = made
        return self._stocks[which]
