# /// script
# requires-python = ">=3.11"
# dependencies = ["pydantic-ai-slim[anthropic]==2.68.0"]
# ///
"""Pydantic AI's AnthropicModel."""

import probe
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai_checks import Asked

provider = AnthropicProvider(base_url=probe.URL.removesuffix("/v1"), api_key=probe.KEY)
Asked(AnthropicModel(probe.MODEL, provider=provider)).run()
