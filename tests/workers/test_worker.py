"""What a worker says of a text that another one had begun."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import Unsupported, WorkerError
from orchestrator.types import Generation, Message, Sampling, StopCriteria, Transcript, Usage
from orchestrator.worker import Call, Delta
from workers.backend import Decoding, Prompt
from workers.streams import merge_deltas
from workers.text.prompt import PromptRenderer
from workers.worker import ModelWorker

CALL = Call("r", Transcript((Message("user", "?"),)))
LINES = StopCriteria(100, until=("\n\n",))
BLOCK = "```python\na = 1\n\nb = 2\n```\n\nSo a is 1."


class Writing:
    """A backend that writes a text token by token, or fails."""

    ends, methods, context, sampling = frozenset[int](), (), None, Sampling()

    def __init__(self, prompts: PromptRenderer, text: str, error: Exception | None = None) -> None:
        self.prompts, self._tokens, self._error = prompts, prompts.tokenizer.encode(text), error
        self.asked: list[Prompt] = []

    async def ready(self) -> None: ...

    async def decode(self, prompt: Prompt, wanted: Decoding) -> Any:
        self.asked.append(prompt)
        if self._error is not None:
            raise self._error
        text, finish = wanted.text, None
        for token in self._tokens[len(text.before.tokens) :]:
            finish = text.push(token, -0.5, 1.0)
            if delta := text.delta(ended=finish is not None):
                yield delta
            if finish is not None:
                break
        usage = Usage(len(prompt.ids), len(prompt.ids) - 1, text.generated)
        provenance = text.counted((1,), (1,))
        yield Generation(text.segment(finish or "eos"), usage, provenance=provenance)


async def written(
    backend: Any, criteria: StopCriteria, received: Delta
) -> tuple[list[Any], Generation]:
    made = ModelWorker(backend).generate(CALL, criteria, Sampling(), received=received)
    *deltas, whole = [item async for item in made]
    assert isinstance(whole, Generation)
    return deltas, whole


@pytest.mark.parametrize(
    ("text", "criteria", "finish"),
    [
        pytest.param("So 4.\n\nThen", LINES, "until", id="inside a delimiter"),
        pytest.param(BLOCK, LINES, "until", id="inside a block of code"),
        pytest.param(BLOCK, StopCriteria(8), "length", id="before a cap"),
        pytest.param("So 4.\n\nThen", StopCriteria(100, stop=("The",)), "stop", id="at a stop"),
        pytest.param(BLOCK, StopCriteria(100), "eos", id="of a whole text"),
    ],
)
async def test_a_text_goes_on_wherever_it_broke_off(
    prompts: PromptRenderer,
    text: str,
    criteria: StopCriteria,
    finish: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    form = object()
    monkeypatch.setattr(PromptRenderer, "thinks", lambda *_: False)
    monkeypatch.setattr(PromptRenderer, "calls_of", lambda *_: form)
    backend = Writing(prompts, text)
    deltas, whole = await written(backend, criteria, merge_deltas([]))
    assert whole.segment.finish == finish
    (asked,) = backend.asked
    for count in range(1, len(deltas) + 1):
        received = merge_deltas(deltas[:count])
        backend.asked.clear()
        rest, again = await written(backend, criteria, received)
        assert again.segment == whole.segment
        assert merge_deltas([received, *rest]) == merge_deltas(deltas)
        assert again.usage.prompt == whole.usage.prompt
        assert again.usage.generated == len(whole.segment.tokens)
        assert again.ms > 0
        assert not again.thinks
        assert again.calls is form
        if count == len(deltas) and finish in ("until", "length"):  # only its end was lost
            assert backend.asked == []
            continue
        (prompt,) = backend.asked
        assert prompt.ids == [*asked.ids, *received.tokens]
        assert prompt.call.transcript.text == received.text
        read = len(prompt.ids) - 1  # with the text so far, which is none of the caller's prompt
        assert again.usage.cached == min(read, again.usage.prompt)
        assert again.provenance is not None
        n = len(received.tokens)
        assert again.provenance.origins[:n] == "?" * n
        assert len(again.provenance.origins) == len(whole.segment.tokens)
        assert sum(again.provenance.lengths) == len(whole.segment.text)
        assert again.provenance.drafted_at == (1,)


async def test_what_cannot_go_on_is_a_failure_that_no_retry_mends(prompts: PromptRenderer) -> None:
    """Such as an answer held to a form, which no server goes on within."""
    held = Writing(prompts, "", Unsupported("going on within an answer that is held to a grammar"))
    received = Delta("{", prompts.tokenizer.encode("{"), (0.0,))
    with pytest.raises(WorkerError, match="broke off and cannot resume: going on") as caught:
        await written(held, LINES, received)
    assert type(caught.value) is WorkerError
    with pytest.raises(Unsupported):
        await written(held, LINES, merge_deltas([]))
