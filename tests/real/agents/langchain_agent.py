"""An agent of LangChain's: python -m tests.real.agents.langchain_agent URL MODEL chat|responses."""

from __future__ import annotations

import json
import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

from tests.real.agents import tasks


def main(url: str, name: str, api: str) -> None:
    model = ChatOpenAI(
        model=name,
        base_url=url,
        api_key="none",
        max_retries=0,
        timeout=500,
        temperature=0,
        max_tokens=tasks.MAX_TOKENS,
        use_responses_api=api == "responses",
        model_kwargs={"parallel_tool_calls": False},
    )
    agent = create_agent(
        model, tools=[tasks.price, tasks.multiply], system_prompt=tasks.INSTRUCTIONS
    )
    asked = {"messages": [{"role": "user", "content": tasks.QUESTION}]}
    made = agent.invoke(asked, {"recursion_limit": 2 * tasks.TURNS + 1})
    print(json.dumps({"calls": tasks.CALLS, "answer": made["messages"][-1].text}))


main(*sys.argv[1:])
