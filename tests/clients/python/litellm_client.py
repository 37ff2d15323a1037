# /// script
# requires-python = ">=3.11"
# dependencies = ["litellm==1.106.2", "mcp"]
# ///
"""LiteLLM."""

import probe
from litellm_checks import Route

Route("openai", probe.URL).run()
