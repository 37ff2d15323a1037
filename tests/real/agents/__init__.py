"""Agents of other people's frameworks, each a program run by `.venv-agents` (test_agents.py):

    openai_agents.py    openai-agents, by chat completions or by responses
    langchain_agent.py  LangChain's create_agent, by either

Each is called with a URL, a model, and `chat` or `responses`, and prints its calls and its answer.
"""
