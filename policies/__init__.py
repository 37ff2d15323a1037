"""Policies: one paper a file, pure scripts over the actions of `orchestrator.actions`."""

from __future__ import annotations

from orchestrator.policy import Policy
from policies.bild import BiLD
from policies.single import LargeOnly, SmallOnly
from policies.specreason import SpecReason

POLICIES: dict[str, type[Policy]] = {
    "small-only": SmallOnly,
    "large-only": LargeOnly,
    "specreason": SpecReason,
    "bild": BiLD,
}
"""Name -> class; the name is a model name of the API."""
