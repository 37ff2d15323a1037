"""What Pydantic AI's models are asked for alike."""

import probe
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ThinkingPart, ToolCallPart


class Result(BaseModel):
    answer: int


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def parts(result, kind):
    return [
        part
        for message in result.all_messages()
        for part in message.parts
        if isinstance(part, kind)
    ]


class Asked:
    """The capabilities over one model."""

    def __init__(self, model):
        self._model = model

    def _agent(self, **more):
        return Agent(self._model, retries=0, **more)

    async def chat(self):
        return (await self._agent().run(probe.QUESTION)).output

    async def stream(self):
        async with self._agent().run_stream(probe.QUESTION) as reply:
            return [piece async for piece in reply.stream_text(delta=True, debounce_by=None)]

    async def reasoning(self):
        return parts(await self._agent().run(probe.QUESTION), ThinkingPart)[0].content

    async def structured(self):
        made = await self._agent(output_type=NativeOutput(Result)).run(probe.QUESTION)
        return made.output.model_dump()

    async def tools(self):
        made = await self._agent(tools=[multiply]).run(probe.TOOL_QUESTION)
        call = parts(made, ToolCallPart)[0]
        return call.tool_name, call.args

    async def history(self):
        first = await self._agent().run(probe.EARLIER)
        return (await self._agent().run(probe.LATER, message_history=first.all_messages())).output

    def run(self):
        """Try each capability."""
        probe.run({name: getattr(self, name) for name in probe.CHECKS})
