# /// script
# requires-python = ">=3.11"
# dependencies = ["agno==3.1.10", "openai==3.54.0"]
# ///
"""Agno's OpenAILike, through its Agent."""

import probe
from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai import OpenAILike
from pydantic import BaseModel


class Result(BaseModel):
    answer: int


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def agent(**more):
    model = OpenAILike(id=probe.MODEL, base_url=probe.URL, api_key=probe.KEY, max_retries=0)
    return Agent(model=model, telemetry=False, **more)


def chat():
    return agent().run(probe.QUESTION).content


def stream():
    events = agent().run(probe.QUESTION, stream=True)
    return [event.content or "" for event in events if event.event == "RunContent"]


def reasoning():
    return agent().run(probe.QUESTION).reasoning_content


def structured():
    content = agent(output_schema=Result).run(probe.QUESTION).content
    return content.model_dump() if isinstance(content, Result) else content


def tools():
    made = agent(tools=[multiply], tool_call_limit=1).run(probe.TOOL_QUESTION)
    return (made.tools[0].tool_name, made.tools[0].tool_args) if made.tools else made.content


def history():
    one = agent(db=InMemoryDb(), add_history_to_context=True)
    one.run(probe.EARLIER, session_id="s")
    return one.run(probe.LATER, session_id="s").content


probe.run(globals())
