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


class RequestBuilder:
    """Renders prompts for one checkpoint."""

    def __init__(self, prompts: PromptRenderer) -> None:
        self.prompts, self._tokenizer = prompts, prompts.tokenizer
        self._begin = list(self._tokenizer.begin)

    def body(
        self,
        form: Literal["ids", "text", "chat"],
        ids: Sequence[int],
        transcript: Transcript,
        query: LabelQuery | None = None,
    ) -> dict[str, Any]:
        """Return the request fields that make a server continue `ids`: those of the transcript,
        then of the query's side conversation.

        Raises:
            InvalidRequest: a content spells a control token, and the server would read it as one.
            Unsupported: the chat template cannot continue an assistant's message.
        """
        if form == "ids":
            return {"prompt": list(ids)}
        text = self._text(ids)
        if form == "text":
            return {"prompt": text}
        return self._chat(transcript, query)

    def _text(self, ids: Sequence[int]) -> str:
        tokenizer = self._tokenizer
        text = tokenizer.decode(ids)
        meant = [i for i in ids if i in tokenizer.controls]
        if meant != [i for i in tokenizer.encode_markup(text) if i in tokenizer.controls]:
            raise InvalidRequest(
                "a text spells a control token of the model, whose server would take it for one",
                param="messages",
            )
        if self._begin and list(ids[: len(self._begin)]) == self._begin:
            return text.removeprefix(tokenizer.decode(self._begin))
        return text

    def _chat(self, transcript: Transcript, query: LabelQuery | None) -> dict[str, Any]:
        if transcript.messages[0].role == "prompt":
            raise Unsupported("continuing a plain text, which a chat server cannot do")
        turns, lead_in = (query.turns, query.lead_in) if query else ((), "")
        conversation = self.prompts.conversation(transcript.turns)
        level = self.prompts.effort_variables(transcript)
        before = self.prompts.before_assistant(conversation, "".join(level.values()))
        written = self._tokenizer.decode(self.prompts.transcript(transcript))
        if not written.startswith(before):
            raise Unsupported("this model's chat template cannot continue an assistant's message")
        messages = [
            *conversation,
            Message("assistant", written.removeprefix(before)),
            *turns,
        ]
        continues = not turns or bool(lead_in)
        if turns and lead_in:
            messages.append(Message("assistant", lead_in))
        return {
            "messages": [
                {"role": message.role, "content": message.content} for message in messages
            ],
            "continue_final_message": continues,
            "add_generation_prompt": not continues,
        }
