# /// script
# requires-python = ">=3.11"
# dependencies = ["litellm==1.106.2", "mcp"]
# ///
"""LiteLLM, by its Anthropic route."""

import probe
from litellm_checks import Route

Route("anthropic", probe.URL.removesuffix("/v1")).run()
