"""A server in vLLM's dialect of OpenAI's API, over a real engine: for tests of the remote worker.

Requests and answers have vLLM's fields, shapes and refusals; and SGLang's own `/generate`.
`ServerBehavior` switches features off, for servers that lack them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers import PreTrainedTokenizerFast

from orchestrator.types import GREEDY, Sampling
from workers.engine.requests import EngineRequest, RequestHandle
from workers.model.sampling import draw, warp
from workers.rng import uniform
from workers.worker import EngineWorker

MODEL = "served"
PAIR = ("small", "large")


@dataclass
class ServerBehavior:
    """What the server does; vLLM does all of it."""

    completions: bool = True
    prompt_ids: bool = True  # takes token ids as a prompt
    wraps: bool = False  # puts its chat template around a text, as Ollama does
    token_ids: bool = True  # returns ids in fields of their own
    named_ids: bool = True  # returns ids inside its log-probabilities
    max_logprobs: int = 20
    allows: bool = True  # knows allowed_token_ids
    processed: bool = False  # tells log-probabilities among the allowed tokens alone
    prompt_logprobs: bool = True
    min_tokens: bool = True
    generates: bool = False  # has SGLang's own path, beside OpenAI's
    continues: bool = True  # continue_final_message
    tells_context: bool = True
    key: str | None = None
    strict: bool = False  # refuses fields that are not OpenAI's
    breaks: bool = False  # and what else it does not have, as if it had broken down
    stops_at_controls: bool = False  # stop strings are looked for in what is not shown, too
    lacks: Literal["ids", "logprobs"] | None = None  # in its streams, as behind LiteLLM's proxy,
    lacks_after: int = 0  # from which token on
    foreign: bool = False  # its ids are another vocabulary's
    samples: Literal["temperature", "generation_config", "always"] | None = "temperature"
    hottest: float = 100.0  # refuses a higher temperature
    top_k: int = 0  # where a request does not say
    stops: bool = True  # reads stop strings
    stop_ids: bool = True  # reads stop_token_ids
    biases: bool = True  # reads logit_bias
    repeats: bool = False  # in whole answers, the message of a chat that it continues


OPENAIS = {
    "model", "prompt", "messages", "max_tokens", "temperature", "top_p", "stop", "stream", "seed",
    "logprobs", "top_logprobs", "echo", "stream_options", "logit_bias",
}  # fmt: skip
SGLANGS = {
    "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num",
    "token_ids_logprob", "extra_key",
}  # fmt: skip


@dataclass(eq=False, slots=True)
class LogProbsRequest(EngineRequest):
    """Answers the log-probabilities [num_logits, vocabulary] after the last ids."""

    def output(self, result: Any) -> Any:
        return result.logits[0].double().log_softmax(-1)


class Refusal(Exception):
    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        self.status, self.message, self.param = status, message, param


@dataclass
class Made:
    """What one request makes, token by token."""

    ids: list[int]
    text: str = ""
    finish: str | None = None
    stop: str | int | None = None


class VllmLike:
    """The application over one local worker's engine."""

    def __init__(self, worker: EngineWorker, behavior: ServerBehavior | None = None) -> None:
        self.worker, self.behavior = worker, behavior or ServerBehavior()
        self.hf = PreTrainedTokenizerFast(
            tokenizer_object=worker.tokenizer._markup,
            eos_token=worker.tokenizer.decode([worker.tokenizer.eos_id]),
            chat_template=worker.tokenizer.chat_template.source,
        )
        self.live = 0
        self.known: dict[tuple[int, ...], torch.Tensor] | None = None  # what it computed before
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.app = Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/generate", self.generate, methods=["POST"]),
            ],
            exception_handlers={Refusal: self.refuse},
        )

    async def refuse(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        kind = {401: "Unauthorized", 404: "NotFoundError"}.get(error.status, "BadRequestError")
        body = {"message": error.message, "type": kind, "param": error.param, "code": error.status}
        return JSONResponse({"error": body}, status_code=error.status)

    async def models(self, request: Request) -> Response:
        self.check_key(request)
        size = {"max_model_len": self.worker.context} if self.behavior.tells_context else {}
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", **size}]})

    async def complete(self, request: Request) -> Response:
        if not self.behavior.completions:
            raise Refusal(404, "Not Found")
        body = await self.body(request)
        prompt, hf = body["prompt"], self.hf
        if isinstance(prompt, str):
            if self.behavior.wraps:
                asked = [{"role": "user", "content": prompt}]
                prompt = hf.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
            prompt = hf(prompt)["input_ids"]
        elif not self.behavior.prompt_ids:
            status = 500 if self.behavior.breaks else 400
            raise Refusal(status, "prompt must be a string.", "prompt")
        return await self.respond(body, prompt, chat=False)

    async def chat(self, request: Request) -> Response:
        body = await self.body(request)
        going_on = body.get("continue_final_message", False) and self.behavior.continues
        ids = self.hf.apply_chat_template(
            body["messages"],
            add_generation_prompt=body.get("add_generation_prompt", True) and not going_on,
            continue_final_message=going_on,
            return_dict=False,
        )
        return await self.respond(body, ids, chat=True)

    async def generate(self, request: Request) -> Response:
        """SGLang's own path: log-probabilities of the prompt from a position on."""
        if not self.behavior.generates:
            raise Refusal(404, "Not Found")
        self.check_key(request)
        body: dict[str, Any] = await request.json()
        self.requests.append((request.url.path, body))
        unknown = sorted(body.keys() - SGLANGS)
        assert not unknown
        assert body["return_logprob"]
        settings, ids = body["sampling_params"], body["input_ids"]
        assert (settings["max_new_tokens"], settings["temperature"]) == (1, 0)
        start = body["logprob_start_len"]
        first = len(ids) - 1 if start == -1 else start
        # What is before `first` may come from the cache, and nothing after it.
        handle = RequestHandle()
        asked = LogProbsRequest(handle, ids, num_logits=len(ids) - first)
        *rows, last = await self.worker.backend.engine.answer(asked)
        made = int(last.argmax())
        meta: dict[str, Any] = {
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": len(ids),
            "completion_tokens": 1,
            "cached_tokens": asked.cached,
            "input_token_logprobs": [],
            "output_token_logprobs": [[float(last[made]), made, None]],
        }
        if start != -1:
            scored = zip(rows, ids[first + 1 :], strict=True)
            own = [[float(row[i]), i, None] for row, i in scored]
            meta["input_token_logprobs"] = [[None, ids[first], None], *own]

        def shown(of: Any, kind: str) -> list[Any]:
            count, named = body["top_logprobs_num"], body.get("token_ids_logprob", ())
            some = of.topk(count)[1] if kind == "top" else named
            return [[float(of[i]), int(i), None] for i in some]

        for kind, field in (("top", "top_logprobs_num"), ("token_ids", "token_ids_logprob")):
            if body.get(field):
                before = [None, *(shown(row, kind) for row in rows)] if start != -1 else []
                meta[f"input_{kind}_logprobs"] = before
                meta[f"output_{kind}_logprobs"] = [shown(last, kind)]
        return JSONResponse({"text": "", "output_ids": [made], "meta_info": meta})

    async def body(self, request: Request) -> dict[str, Any]:
        self.check_key(request)
        body: dict[str, Any] = await request.json()
        self.requests.append((request.url.path, body))
        behavior, named = self.behavior, body.get("model")
        if named != MODEL:
            raise Refusal(404, f"The model `{named}` does not exist.", "model")
        unknown = sorted(body.keys() - OPENAIS)
        if behavior.strict and unknown:
            status = 500 if behavior.breaks else 422
            raise Refusal(status, f"Unexpected fields in the request: {unknown}")
        if body.get("temperature", 1.0) > behavior.hottest:
            raise Refusal(400, f"temperature: at most {behavior.hottest}", "temperature")
        for name in ("logprobs", "top_logprobs", "prompt_logprobs"):
            if (asked := body.get(name) or 0) is not True and asked > behavior.max_logprobs:
                text = f"Requested sample logprobs of {asked}, which is greater than max allowed"
                raise Refusal(500 if behavior.breaks else 400, text, name)
        if behavior.min_tokens and body.get("min_tokens", 0) > (body.get("max_tokens") or 16):
            raise Refusal(400, "min_tokens must be less than or equal to max_tokens", "min_tokens")
        if body.get("stream") and body.get("prompt_logprobs"):
            raise Refusal(400, "`prompt_logprobs` are not available when `stream=True`.")
        if body.get("stream_options") and not body.get("stream"):
            raise Refusal(400, "Stream options can only be defined when `stream=True`.")
        return body

    def check_key(self, request: Request) -> None:
        key = self.behavior.key
        if key is not None and request.headers.get("authorization") != f"Bearer {key}":
            raise Refusal(401, "Unauthorized")

    async def respond(self, body: dict[str, Any], prompt: list[int], *, chat: bool) -> Response:
        asked, context = body.get("max_tokens") or 16, self.worker.context
        if len(prompt) + asked > context:
            raise Refusal(
                400,
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{asked} output tokens and your prompt contains {len(prompt)} input tokens.",
                "input_tokens",
            )
        if body.get("stream"):
            chunks = self.streamed(body, prompt, chat)
            return StreamingResponse(chunks, media_type="text/event-stream")
        positions: list[Any] = []
        usage: dict[str, Any] = {}
        made = Made([])
        async with aclosing(self.generated(body, prompt, usage)) as steps:
            async for step in steps:
                made = step[0]
                positions.append(step[1])
        choice = self.choice(body, made.ids, positions, made.text, chat, "message")
        choice |= {"finish_reason": made.finish, "stop_reason": made.stop}
        if chat and self.behavior.repeats:
            choice["message"]["content"] = body["messages"][-1]["content"] + made.text
        if self.behavior.prompt_logprobs and (top := body.get("prompt_logprobs")):
            choice["prompt_logprobs"] = await self.prompt_logprobs(prompt, top)
        if body.get("echo"):
            await self.echo(body, choice, prompt)
        kind = "chat.completion" if chat else "text_completion"
        return JSONResponse(
            {"id": "x", "object": kind, "model": MODEL, "choices": [choice], "usage": usage}
        )

    async def streamed(
        self, body: dict[str, Any], prompt: list[int], chat: bool
    ) -> AsyncIterator[str]:
        usage: dict[str, Any] = {}
        shown = 0
        kind = "chat.completion.chunk" if chat else "text_completion"
        self.live += 1
        try:
            async with aclosing(self.generated(body, prompt, usage)) as steps:
                async for made, logprobs in steps:
                    text = made.text[shown:]
                    shown = len(made.text)
                    choice = self.choice(body, made.ids[-1:], [logprobs], text, chat, "delta")
                    choice |= {"finish_reason": made.finish, "stop_reason": made.stop}
                    if self.behavior.lacks and len(made.ids) > self.behavior.lacks_after:
                        choice["logprobs"] = None
                        if self.behavior.lacks == "ids":
                            choice.pop("token_ids", None)
                    yield _sse({"id": "x", "object": kind, "choices": [choice]})
            if (body.get("stream_options") or {}).get("include_usage"):
                yield _sse({"id": "x", "object": kind, "choices": [], "usage": usage})
            yield "data: [DONE]\n\n"
        finally:
            self.live -= 1

    async def generated(
        self, body: dict[str, Any], prompt: list[int], usage: dict[str, Any]
    ) -> AsyncGenerator[tuple[Made, Any], None]:
        """Tokens one by one, each with its log-probabilities; `usage` is filled at the end."""
        sampling = Sampling(
            body.get("temperature", 1.0),
            body.get("top_p", 1.0),
            max(0, body.get("top_k", self.behavior.top_k)),
            body.get("seed"),
        )
        hf, made, cached, behavior = self.hf, Made([]), None, self.behavior
        config = json.loads(body.get("generation_config") or '{"do_sample": false}')
        if behavior.samples is None or (
            behavior.samples == "generation_config" and not config["do_sample"]
        ):
            sampling = GREEDY
        elif behavior.samples == "always":
            sampling = Sampling(9.0)
        stops = (body.get("stop") or []) if behavior.stops else []
        while made.finish is None:
            request = LogProbsRequest(RequestHandle(), prompt + made.ids)
            logprobs = (self.known or {}).get(tuple(request.ids))
            if logprobs is None:
                logprobs = (await self.worker.backend.engine.answer(request))[-1]
            if self.known is not None:
                self.known[tuple(request.ids)] = logprobs
            if behavior.min_tokens and len(made.ids) < body.get("min_tokens", 0):
                ends = [hf.eos_token_id, *(body.get("stop_token_ids") or ())]
                logprobs = logprobs.clone()
                logprobs[ends] = -torch.inf
            drawn = logprobs
            if behavior.allows and (allowed := body.get("allowed_token_ids")):
                drawn = torch.full_like(logprobs, -torch.inf)
                drawn[allowed] = logprobs[allowed].log_softmax(-1)
                logprobs = drawn if behavior.processed else logprobs
            if behavior.biases and (biases := body.get("logit_bias")):
                drawn = drawn.clone()
                drawn[[int(i) for i in biases]] += torch.tensor(list(biases.values())).to(drawn)
                drawn = drawn.log_softmax(-1)
            cached = request.cached if cached is None else cached
            made.ids.append(choose(drawn, sampling, len(prompt) + len(made.ids)))
            self.end(made, body, [stops] if isinstance(stops, str) else stops, hf)
            if made.finish is not None:
                usage |= {
                    "prompt_tokens": len(prompt),
                    "completion_tokens": len(made.ids),
                    "total_tokens": len(prompt) + len(made.ids),
                    "prompt_tokens_details": {"cached_tokens": cached},
                }
            yield made, logprobs

    def end(self, made: Made, body: dict[str, Any], stops: Sequence[str], hf: Any) -> None:
        last = made.ids[-1]
        if last == hf.eos_token_id:
            made.finish = "stop"
            return
        if self.behavior.stop_ids and last in (body.get("stop_token_ids") or ()):
            made.finish, made.stop = "stop", last
            return
        text = hf.decode(made.ids, skip_special_tokens=True)
        whole = text.rstrip("\ufffd")  # half a character waits for its other half
        made.text = whole if len(made.ids) < (body.get("max_tokens") or 16) else text
        if self.behavior.stops_at_controls:  # as transformers' generate does
            raw = hf.decode(made.ids)
            if any(stop in raw for stop in stops):
                made.finish = "stop"
                return
        for stop in stops:
            if (at := made.text.find(stop)) >= 0:
                made.text, made.finish, made.stop = made.text[:at], "stop", stop
                return
        if len(made.ids) >= (body.get("max_tokens") or 16):
            made.finish = "length"

    def choice(
        self,
        body: dict[str, Any],
        ids: list[int],
        positions: list[Any],
        text: str,
        chat: bool,
        part: str,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None}
        choice |= {part: {"role": "assistant", "content": text}} if chat else {"text": text}
        if self.behavior.token_ids and body.get("return_token_ids"):
            choice["token_ids"] = [i + 1 for i in ids] if self.behavior.foreign else ids
        count = body.get("top_logprobs") if chat else body.get("logprobs")
        if count is None or not self.behavior.max_logprobs:
            return choice
        rows = [
            (self.named(body, i), self.top(body, logprobs, i, count))
            for logprobs, i in zip(positions, ids, strict=True)
        ]
        if chat:
            content = [
                {
                    "token": name,
                    "logprob": top[name],
                    "bytes": None,
                    "top_logprobs": [
                        {"token": n, "logprob": p, "bytes": None} for n, p in top.items()
                    ],
                }
                for name, top in rows
            ]
            choice["logprobs"] = {"content": content}
        else:
            choice["logprobs"] = {
                "tokens": [name for name, _ in rows],
                "token_logprobs": [top[name] for name, top in rows],
                "top_logprobs": [top for _, top in rows],
                "text_offset": [0] * len(ids),
            }
        return choice

    def top(self, body: dict[str, Any], logprobs: Any, chosen: int, count: int) -> dict[str, float]:
        """Log-probabilities by name: the token's first, as vLLM has it."""
        likeliest = logprobs.topk(min(count, len(logprobs))).indices.tolist()
        return {self.named(body, i): max(float(logprobs[i]), -9999.0) for i in [chosen, *likeliest]}

    def named(self, body: dict[str, Any], token: int) -> str:
        if self.behavior.named_ids and body.get("return_tokens_as_token_ids"):
            return f"token_id:{token}"
        return str(self.hf.decode([token]))

    async def prompt_rows(self, prompt: list[int]) -> list[tuple[int, Any]]:
        """Each id but the first, and the log-probabilities at its place."""
        handle = RequestHandle()
        asked = LogProbsRequest(handle, prompt, num_logits=len(prompt))
        rows = await self.worker.backend.engine.answer(asked)
        return list(zip(prompt[1:], rows, strict=False))

    async def prompt_logprobs(self, prompt: list[int], count: int) -> list[Any]:
        def row(chosen: int, logprobs: Any) -> dict[str, Any]:
            shown = dict.fromkeys([chosen, *logprobs.topk(count).indices.tolist()])
            return {
                str(i): {
                    "logprob": max(float(logprobs[i]), -9999.0),
                    "rank": int((logprobs > logprobs[i]).sum()) + 1,
                    "decoded_token": self.hf.decode([i]),
                }
                for i in shown
            }

        return [None, *(row(*each) for each in await self.prompt_rows(prompt))]

    async def echo(self, body: dict[str, Any], choice: dict[str, Any], prompt: list[int]) -> None:
        choice["text"] = self.hf.decode(prompt) + choice["text"]
        shown = choice["logprobs"]
        if shown is None:
            return
        names = [self.named(body, i) for i in prompt]
        rows = await self.prompt_rows(prompt)
        tops = [self.top(body, logprobs, i, body["logprobs"]) for i, logprobs in rows]
        own = [top[name] for name, top in zip(names[1:], tops, strict=True)]
        shown["tokens"] = [*names, *shown["tokens"]]
        shown["token_logprobs"] = [None, *own, *shown["token_logprobs"]]
        shown["top_logprobs"] = [None, *tops, *shown["top_logprobs"]]


def choose(logprobs: Any, sampling: Sampling, position: int) -> int:
    if sampling.temperature < 1e-5:
        return int(logprobs.argmax())
    seed = torch.seed() if sampling.seed is None else sampling.seed
    number = torch.tensor([uniform(seed, position)], dtype=torch.float64)
    return int(draw(warp(logprobs[None, None], [sampling])[0], number))


def _sse(data: dict[str, Any]) -> str:
    # Raw line separators, as vLLM's own JSON has them.
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """An application on a free port of this machine, in a thread; yields its base URL."""
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        threading.Event().wait(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.should_exit = True
        thread.join(timeout=60)
