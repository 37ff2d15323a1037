"""From a transcript to the prompt of a request: token ids, a text, or chat messages.

Ids are unambiguous. A server that tokenizes text or messages would turn the spelling of a control
token into that token, so such contents are refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from orchestrator.errors import InvalidRequest, Unsupported
from orchestrator.types import LabelQuery, Message, Transcript
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer import Tokenizer

PromptKind = Literal["ids", "text", "chat"]


def prompt_fields(
    prompts: PromptRenderer,
    kind: PromptKind,
    ids: Sequence[int],
    transcript: Transcript,
    query: LabelQuery | None = None,
) -> dict[str, Any]:
    """Return the request fields that make a server continue `ids`: those of the transcript, then of
    the query's side conversation.

    Raises:
        InvalidRequest: a content spells a control token, and the server would read it as one.
        Unsupported: the chat template cannot continue an assistant's message.
    """
    if kind == "ids":
        return {"prompt": list(ids)}
    tokenizer, begin = prompts.tokenizer, list(prompts.tokenizer.begin)
    text = tokenizer.decode(ids)
    meant, read = _controls(tokenizer, ids), _controls(tokenizer, tokenizer.encode_markup(text))
    if meant != read:
        raise InvalidRequest(
            "a text spells a control token of the model, whose server would take it for one",
            param="messages",
        )
    if kind == "chat":
        return _chat(prompts, transcript, query)
    begins = begin and list(ids[: len(begin)]) == begin  # the server begins with these
    return {"prompt": text.removeprefix(tokenizer.decode(begin)) if begins else text}


def _chat(
    prompts: PromptRenderer, transcript: Transcript, query: LabelQuery | None
) -> dict[str, Any]:
    if transcript.messages[0].role == "prompt":
        raise Unsupported("continuing a plain text, which a chat server cannot do")
    turns, lead_in = (query.turns, query.lead_in) if query else ((), "")
    conversation = prompts.conversation(transcript.turns)
    level = prompts.effort_variables(transcript)
    before = prompts.before_assistant(conversation, "".join(level.values()))
    written = prompts.tokenizer.decode(prompts.transcript(transcript))
    if not written.startswith(before):
        raise Unsupported("this model's chat template cannot continue an assistant's message")
    messages = [*conversation, Message("assistant", written.removeprefix(before)), *turns]
    continues = not turns or bool(lead_in)
    if turns and lead_in:
        messages.append(Message("assistant", lead_in))
    return {
        "messages": [{"role": one.role, "content": one.content} for one in messages],
        "continue_final_message": continues,
        "add_generation_prompt": not continues,
    }


def _controls(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    return [i for i in ids if i in tokenizer.controls]
