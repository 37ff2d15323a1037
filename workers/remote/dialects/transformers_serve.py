"""`transformers serve`: it returns text alone, and samples by a `generation_config`."""

from __future__ import annotations

import json
from typing import Any, Final

from orchestrator.types import Sampling
from workers.remote.dialects.openai import OpenAI


class TransformersServe(OpenAI):
    name = "transformers serve"

    def prompt_logprob_fields(self, top: int) -> dict[str, Any]:
        return {}

    def cuts(self, sampling: Sampling) -> dict[str, Any]:
        """Return the field that overrides the checkpoint's sampling."""
        settings = {
            "do_sample": not sampling.is_greedy,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "repetition_penalty": 1.0,
        }
        return {"generation_config": json.dumps(settings)}


TRANSFORMERS_SERVE: Final = TransformersServe()
