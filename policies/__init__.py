"""Policies: one paper a file, pure scripts over the actions of `orchestrator.loop.actions`."""

from __future__ import annotations

from orchestrator.loop.policy import Policy
from policies.best_of_k import BestOfK
from policies.bild import BiLD
from policies.cascade import Cascade
from policies.entropy_gate import EntropyGate
from policies.lookahead import Lookahead
from policies.never_slower import NeverSlower
from policies.route import Route
from policies.single import LargeOnly, SmallOnly
from policies.specreason import SpecReason
from policies.speculative_thinking import SpeculativeThinking
from policies.surprise_takeover import SurpriseTakeover

POLICIES: dict[str, type[Policy]] = {
    "small-only": SmallOnly,
    "large-only": LargeOnly,
    "specreason": SpecReason,
    "entropy-gate": EntropyGate,
    "cascade": Cascade,
    "lookahead": Lookahead,
    "best-of-k": BestOfK,
    "route": Route,
    "never-slower": NeverSlower,
    "speculative-thinking": SpeculativeThinking,
    "surprise-takeover": SurpriseTakeover,
    "bild": BiLD,
}
"""Name -> class; the name is a model name of the API."""
