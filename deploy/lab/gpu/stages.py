"""What each stage measures: python -m deploy.lab.gpu.stages NAME FILE DEVICE."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from deploy.evaluation.intervals import mean
from deploy.evaluation.problems import load_problems
from deploy.lab.bench.calls import generation, step, thought, tokens_per_s
from deploy.lab.gpu.models import builtin_worker, checkpoint, vllm_worker
from deploy.lab.gpu.plan import has, opened
from deploy.lab.gpu.played_worker import PlayedWorker, Texts
from deploy.lab.reenact.dialogues import Answers, shipped
from deploy.lab.reenact.rows import of_policy, play_over
from orchestrator.types import Message, Sampling, Transcript
from orchestrator.worker import Call

AT_ONCE: Final = {32: 12, 8: 5, 1: 2}  # questions of each set
POLICIES: Final = ("large-only", "learned-gate", "specreason", "bild", "small-only")
RUN_AHEAD: Final = 64
DRAFT: Final = {"method": "draft_model", "num_speculative_tokens": 4}
SYNTHETIC: Final = {
    "rejection_sample_method": "synthetic",
    "synthetic_acceptance_length": 4.1,
}
N_GRAM: Final = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
READ: Final = (1, 4, 16, 64, 256, 1024)  # new tokens of a call
PREFIX: Final = 800


class Measuring:
    """One stage on one device."""

    def __init__(self, stage: str, path: Path, device: str) -> None:
        self.stage, self.device = stage, device
        self.file = opened(path)
        self.root = path.parent / "models"
        self.tiny = device == "cpu"

    async def run(self) -> None:
        """Measure what the stage lacks."""
        if self.stage == "correct":
            await self._correct()
        elif self.stage == "sharing":
            await self._sharing()
        elif self.stage.startswith("builtin-"):
            shape = self.stage.removeprefix("builtin-")
            worker = builtin_worker(self._shape(shape), self.root, self.device, rows=8)
            await self._costs("builtin " + shape, worker, (1, 8))
            worker.close()
        else:
            method: dict[str, Any] = dict(N_GRAM)
            if self.stage == "draft-model":
                # vLLM's build for CPUs has no synthetic acceptance.
                kept = {} if self.tiny else SYNTHETIC
                method = DRAFT | kept | {"model": checkpoint(self._shape("1.5b"), self.root)}
            large = self._vllm("large", "32b", 0.95, speculation=method)
            await self._dialogues({"large": large}, ["large-only"])
            large.close()
        self._put("ended")

    def _put(self, row: str, **values: Any) -> None:
        self.file.add({"stage": self.stage, "row": row, **values})

    def _has(self, **key: Any) -> bool:
        return has(self.file.rows, stage=self.stage, **key)

    def _shape(self, shape: str) -> str:
        return "tiny" if self.tiny else shape

    def _vllm(self, name: str, shape: str, share: float, **options: Any) -> Any:
        began = perf_counter()
        made = vllm_worker(
            self._shape(shape),
            self.root,
            self.device,
            share=share,
            cache_gib=0.25 if self.tiny else 5 if name == "large" else 1.5,
            rows=32,
            **options,
        )
        self._put(f"start {name}", seconds=perf_counter() - began)
        return made

    async def _sharing(self) -> None:
        small = self._vllm("small", "1.5b", 0.09, run_ahead=RUN_AHEAD)
        large = self._vllm("large", "32b", 0.85)
        await self._dialogues({"small": small, "large": large}, POLICIES)
        await self._costs("vllm 1.5b", small, (1, 8, 32))
        await self._costs("vllm 32b", large, (1, 8, 32))
        small.close()
        large.close()

    async def _dialogues(self, workers: Mapping[Any, Any], policies: Sequence[str]) -> None:
        """A row for each policy at each number of clients; the first dialogues warm up."""
        counts = {2: 1} if self.tiny else AT_ONCE
        for policy in policies:
            await self._play(workers, policy, 4, 1, f"warm-{policy}")
        for clients, questions in counts.items():
            for policy in policies:
                if self._has(row=policy, clients=clients):
                    continue
                tag = f"{policy}-{clients}"
                before = _adopted(workers)
                played = await self._play(workers, policy, clients, questions, tag)
                self._put(
                    policy,
                    clients=clients,
                    questions_a_set=questions,
                    seconds=mean(played.seconds),
                    requests_per_s=played.per_s,
                    adopted_tokens=_adopted(workers) - before,
                )

    async def _play(
        self, workers: Mapping[Any, Any], policy: str, clients: int, questions: int, tag: str
    ) -> Any:
        answers: dict[str, Answers] = {}
        texts: dict[str, Texts] = {}
        pair = {
            name: PlayedWorker(name, worker, answers, texts, tag)
            for name, worker in workers.items()
        }
        return await play_over(pair, answers, of_policy(shipped(), policy, questions), clients)

    async def _costs(self, row: str, worker: Any, streams: Sequence[int]) -> None:
        """Milliseconds of a token by live streams, and of calls that read after a prefix."""
        if self._has(row=row):
            return
        token_ms = {}
        for count in streams:
            per_s = await tokens_per_s(worker, count, prefix=256, tokens=48, repeats=2)
            token_ms[count] = 1000 * count / per_s
        read_ms, verify_ms = {}, []
        for new in READ[:4] if self.tiny else READ:
            taken = []
            for turn in range(4):
                text, _ = thought(worker, PREFIX, f"{row}.{new}.{turn}")
                name = f"{row}-{new}-{turn}"
                await generation(worker, Call(name, text), 0)
                part = step(worker, turn, row * 128, new)
                call = Call(name, text.extend(part))
                began = perf_counter()
                await generation(worker, call, 0)
                taken.append(1000 * (perf_counter() - began))
                if new == 16:
                    began = perf_counter()
                    await worker.verify(Call(name, text), step(worker, 9, row, new), Sampling())
                    verify_ms.append(1000 * (perf_counter() - began))
            read_ms[new] = median(taken[1:])
        call_ms = max(0.0, read_ms[1] - token_ms[1])
        self._put(
            row, token_ms=token_ms, read_ms=read_ms, verify_ms=median(verify_ms), call_ms=call_ms
        )

    async def _correct(self) -> None:
        """Greedy texts of our engine beside those of transformers, and of the CPU."""
        from workers.engine import loading

        folder = checkpoint("tiny", self.root, weights=True)
        questions = [
            one.question for one in load_problems("builtin:dev", 2 if self.tiny else 24, 0)
        ]
        models = ("tiny", "embedded:small", "embedded:large")
        for model in models:
            source = folder if model == "tiny" else model
            exact = loading.load(source, device="cpu", dtype="float32", rows=8)
            wanted = await _answers(exact, questions)
            for dtype in ("float32", "bfloat16"):
                if self._has(row=model, dtype=dtype):
                    continue
                ours = loading.load(source, device=self.device, dtype=dtype, rows=8)
                made = await _answers(ours, questions)
                values = {"of": len(made), "as_on_cpu": _same(made, wanted)}
                if model == "tiny":
                    theirs = await _transformers(exact, folder, questions, self.device, dtype)
                    values["as_transformers"] = _same(made, theirs)
                self._put(model, dtype=dtype, **values)
                ours.close()
            exact.close()


def _adopted(workers: Mapping[Any, Any]) -> int:
    """Tokens that were run ahead and taken."""
    return sum(worker.stats()["adopted_tokens"] for worker in workers.values())


def _call(number: int, question: str) -> Call:
    return Call(f"correct-{number}", Transcript((Message("user", question),)))


async def _answers(worker: Any, questions: Sequence[str]) -> list[tuple[int, ...]]:
    """The first tokens that a worker writes of each answer."""
    calls = [_call(number, question) for number, question in enumerate(questions)]
    made = await asyncio.gather(*(generation(worker, call, 64, True) for call in calls))
    return [one.segment.tokens for one in made]


async def _transformers(
    worker: Any, folder: str, questions: Sequence[str], device: str, dtype: str
) -> list[tuple[int, ...]]:
    """What transformers writes greedily after the same ids."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device)
    made = []
    for number, question in enumerate(questions):
        call = _call(number, question)
        ids = await worker.prompts.prepare(call.transcript, worker.context, "")
        given = torch.tensor([ids], device=device)
        text = network.generate(given, max_new_tokens=64, min_new_tokens=64, do_sample=False)
        made.append(tuple(text[0, len(ids) :].tolist()))
    return made


def _same(made: Sequence[tuple[int, ...]], wanted: Sequence[tuple[int, ...]]) -> int:
    return sum(one == other for one, other in zip(made, wanted, strict=True))


if __name__ == "__main__":
    asyncio.run(Measuring(sys.argv[1], Path(sys.argv[2]), sys.argv[3]).run())
