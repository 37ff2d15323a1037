# /// script
# requires-python = ">=3.11"
# dependencies = ["pydantic-ai-slim[openai]==2.68.0"]
# ///
"""Pydantic AI's OpenAIChatModel."""

import probe
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai_checks import Asked

provider = OpenAIProvider(base_url=probe.URL, api_key=probe.KEY)
Asked(OpenAIChatModel(probe.MODEL, provider=provider)).run()
