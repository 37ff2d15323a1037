"""What decodes side by side: our methods with their parameters, and transformers' own loops."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, Protocol

import torch
from transformers import AutoModelForCausalLM

from deploy.lab.pair.generation import generate
from orchestrator.errors import BatonError
from orchestrator.types import Sampling
from workers.embedded.checkpoints import resolve
from workers.engine.gguf_checkpoint import read_network
from workers.engine.loading import LoadedTarget, choose_dtype
from workers.model.target import ModelOutput, Target
from workers.model.tree import Accepted, Plan
from workers.speculation import METHODS, build
from workers.speculation.decode import Decoder
from workers.speculation.feature_head import VARIANTS
from workers.speculation.method import Method
from workers.text.gguf_tokenizer import is_gguf

BASELINE: Final = "vanilla"
PEERS: Final = ("hf-generate", "hf-assisted")
EXTENDING: Final = ("kangaroo", "fspad")
"""Methods that make every pass of their target dearer: they have the same network with a separate
cache, so that the other methods' turns take no longer."""
ASSISTED_DRAFTS: Final = (3, 5, 8, 20)  # transformers' own default is 20

SETS: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "chain": [
        *(
            {"gamma": gamma, "verification": verification}
            for verification in ("token", "block")
            for gamma in (2, 4, 6, 8, 12)
        ),
        {"gamma": 12, "threshold": 0.4},
        {"gamma": 16, "threshold": 0.6},
    ],
    "lookup": [{"gamma": 10}],
    "spectr": [
        *({"count": count, "gamma": 4} for count in (2, 4, 8)),
        {"count": 4, "gamma": 2},
    ],
    "recursive-c": [
        {"branching": [2, 2, 1, 1]},
        {"branching": [2, 2, 1, 1], "verification": "traversal"},
        {"branching": [2, 1, 1, 1]},
    ],
    "recursive-s": [
        {"width": 8, "gamma": 4},
        {"width": 4, "gamma": 4},
        {"width": 4, "gamma": 4, "verification": "traversal"},
        {"width": 2, "gamma": 4},
        {"width": 4, "gamma": 2},
    ],
    "kangaroo": [{}, {"gamma": 8}, {"gamma": 10, "threshold": 0.4}],
    "fspad": [
        {**shape, "variant": variant}
        for shape in ({}, {"depth": 8, "width": 1, "nodes": 8})
        for variant in VARIANTS
    ],
}
"""The parameters a method is measured with; one that is not named here, with its own defaults."""


@dataclass(frozen=True, slots=True)
class CandidateSpec:
    """A method, or a peer, with parameters."""

    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def label(self) -> str:
        parts = [
            f"{key} {json.dumps(value)}" if not isinstance(value, str) else value
            for key, value in self.parameters.items()
            if (key, value) != ("verification", "token")
        ]
        return " ".join([self.method, *parts]).replace(", ", ",")


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
    drafted: int | None = None
    accepted: int | None = None

    @property
    def tokens(self) -> int:
        return sum(map(len, self.outputs))


class DecodingCandidate(Protocol):
    """One that decodes prompts to the end of the turn, or to `max_new` tokens."""

    entry: CandidateSpec
    lossless: bool
    dtype: str

    @property
    def converged(self) -> bool:
        """Whether it has settled on its parameters, so that turns can be measured."""

    def run(self, prompts: Sequence[list[int]], temperature: float, seed: int) -> TurnResult: ...


class SpeculationCandidate:
    """A speculation method under the token loop, without the engine's thread around it."""

    def __init__(
        self, entry: CandidateSpec, loaded: LoadedTarget, draft: str | None, max_new: int
    ) -> None:
        self.entry, self.max_new, self.stop_token_ids = (
            entry,
            max_new,
            sorted(loaded.stop_token_ids),
        )
        self.dtype = loaded.dtype
        parameters = dict(entry.parameters)
        known = inspect.signature(METHODS[entry.method]).parameters
        if "draft" in known and draft is not None:
            parameters.setdefault("draft", draft)
        elif "draft" in known and known["draft"].default is inspect.Parameter.empty:
            raise ValueError("needs a draft model: give one with --draft")
        target = loaded.target
        if {entry.method, parameters.get("base")} & {*EXTENDING}:
            target = Target(
                target.model, slots=target.cache.slots, max_len=target.max_len,
                vocabulary=target.vocabulary, encode=target.encode,
            )  # fmt: skip
        method = build(entry.method, target, loaded.load_draft, **parameters)
        self.lossless = method.lossless
        self.decoder = Decoder(target, method)
        self.counts = _Counts(method)

    @property
    def converged(self) -> bool:
        return self.decoder.method.converged

    def run(self, prompts: Sequence[list[int]], temperature: float, seed: int) -> TurnResult:
        target, counts = self.decoder.target, self.counts
        for slot in range(target.cache.slots):  # the candidate before has prefilled this prompt too
            target.cache.evict(slot)
        counts.reset()
        before = target.passes
        _synchronize(target.device)
        began = perf_counter()
        outputs = generate(
            self.decoder,
            prompts,
            self.max_new,
            sampling=Sampling(temperature, seed=seed),
            stop_token_ids=self.stop_token_ids,
        )
        _synchronize(target.device)
        seconds = perf_counter() - began
        passes = target.passes - before
        emitted = sum(map(len, outputs)) - len(prompts)
        return TurnResult(
            outputs, seconds, passes, emitted, counts.rounds, counts.drafted, counts.accepted
        )


class _Counts:
    """Counts what a method's rounds drafted and accepted."""

    def __init__(self, method: Method) -> None:
        self.verify = method.verify
        self.reset()
        method.verify = self  # type: ignore[method-assign]

    def reset(self) -> None:
        self.rounds = self.drafted = self.accepted = 0

    def __call__(self, plan: Plan, scores: ModelOutput) -> list[Accepted]:
        accepted = self.verify(plan, scores)
        self.rounds += len(plan.trees)
        self.drafted += sum(len(tree) - 1 for tree in plan.trees)
        self.accepted += sum(len(one.path) - 1 for one in accepted)
        return accepted


class TransformersCandidate:
    """transformers' `generate` on the stock network, alone or assisted by the draft model."""

    lossless = converged = True

    def __init__(
        self,
        entry: CandidateSpec,
        model: Any,
        stop_token_ids: Sequence[int],
        max_new: int,
        assistant: Any = None,
    ) -> None:
        self.entry, self.model, self.max_new, self.assistant = entry, model, max_new, assistant
        self.stop_token_ids = sorted(stop_token_ids)
        self.dtype = _name(model.dtype)
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
            self.assistant.generation_config.num_assistant_tokens = self.entry.parameters["drafts"]
            options["assistant_model"] = self.assistant
        torch.manual_seed(seed)
        before = self.passes
        _synchronize(device)
        began = perf_counter()
        generated = self.model.generate(
            ids,
            attention_mask=seen,
            max_new_tokens=self.max_new,
            eos_token_id=self.stop_token_ids,
            pad_token_id=pad,
            **options,
        )
        outputs = [_ended(row, self.stop_token_ids) for row in generated[:, width:].tolist()]
        seconds = perf_counter() - began
        passes, tokens = self.passes - before, sum(map(len, outputs))
        return TurnResult(
            outputs, seconds, passes, tokens, tokens if self.assistant is None else passes
        )


def _ended(row: list[int], stop_token_ids: Sequence[int]) -> list[int]:
    at = next((i for i, token in enumerate(row) if token in stop_token_ids), len(row) - 1)
    return row[: at + 1]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def stock(model: str, dtype: torch.dtype, device: str) -> Any:
    """The network as transformers loads it, unchanged."""
    path = str(resolve(model))
    if is_gguf(path):
        loaded = read_network(path, dtype)
    else:
        loaded = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation="sdpa", use_safetensors=True
        )
    return loaded.to(device).eval()


def entries(requested: Sequence[CandidateSpec] | None) -> Iterator[CandidateSpec]:
    """What to measure, the baseline first; a name alone stands for all of its parameter sets."""
    yield CandidateSpec(BASELINE)
    for entry in requested if requested is not None else map(CandidateSpec, (*PEERS, *METHODS)):
        if entry.method == BASELINE:
            continue
        if entry.parameters:
            yield entry
        elif entry.method == "hf-assisted":
            yield from (
                CandidateSpec(entry.method, {"drafts": drafts}) for drafts in ASSISTED_DRAFTS
            )
        else:
            yield from (CandidateSpec(entry.method, one) for one in SETS.get(entry.method, [{}]))


def enter(
    chosen: Sequence[CandidateSpec],
    loaded: LoadedTarget,
    model: str,
    draft: str | None,
    *,
    device: str,
    max_new: int,
    streams: int,
) -> tuple[list[DecodingCandidate], list[dict[str, str]]]:
    """Those that can decode this checkpoint, and why the others cannot."""
    entered: list[DecodingCandidate] = []
    missing: list[dict[str, str]] = []
    stocks: dict[tuple[str, torch.dtype], Any] = {}
    own = choose_dtype(device, loaded.dtype)  # of the peers, which know no 8 bits

    def plain(name: str, dtype: torch.dtype) -> Any:
        if (name, dtype) not in stocks:
            stocks[name, dtype] = stock(name, dtype, device)
        return stocks[name, dtype]

    stop_token_ids = sorted(loaded.stop_token_ids)
    for entry in chosen:
        try:
            if entry.method == "hf-generate":
                for dtype in dict.fromkeys((own, torch.float32, torch.bfloat16)):
                    named = (
                        entry if dtype == own else CandidateSpec(f"{entry.method}-{_name(dtype)}")
                    )
                    entered.append(
                        TransformersCandidate(named, plain(model, dtype), stop_token_ids, max_new)
                    )
            elif entry.method == "hf-assisted":
                if draft is None:
                    raise ValueError("needs a draft model: give one with --draft")
                if streams > 1:
                    raise ValueError("assisted generation takes one stream: give --streams 1")
                loaded.load_draft(draft)  # refuses another vocabulary
                helper = plain(draft, own)
                entered.append(
                    TransformersCandidate(entry, plain(model, own), stop_token_ids, max_new, helper)
                )
            else:
                entered.append(SpeculationCandidate(entry, loaded, draft, max_new))
        except (BatonError, TypeError, ValueError, OSError) as error:
            missing.append({"method": entry.method, "label": entry.label, "reason": _why(error)})
    return entered, missing


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _why(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
