"""Policies: one paper a file, each a script over the actions of `orchestrator.loop.actions`.

They use no worker, clock or event loop; thresholds are their parameters. Read `specreason` first.

- `specreason`: the small model drafts a step, the large one scores it (SpecReason).
- `steps`: shared by policies: the loop over steps, fallbacks, the answer.
- `reading`: the large model's reading of drafts, in one pass.
- `judge`: a model's score of a step, from 0 to 9.
- `single`: one model alone: the baselines.
- `coin`: each step by either model at random: the baseline of those below.
- `gate`: a pair's learned models of whether a rewrite would change the answer.
- `learned_gate`: the large model reads and corrects only the drafts that this gate doubts.
- `cascade`: the small model judges its own step, the large one if in doubt (ConfSpec).
- `speculative_thinking`: keywords of doubt call the large model for a few tokens.
- `bild`: the small model writes, the large one rolls back unlikely tokens (BiLD).
- `advisor`: the small model writes, the large one advises if a gate asks for it.
"""

from __future__ import annotations

from orchestrator.loop.policy import Policy
from policies.advisor import Advisor
from policies.bild import BiLD
from policies.cascade import Cascade
from policies.coin import Coin
from policies.learned_gate import LearnedGate
from policies.single import LargeOnly, SmallOnly
from policies.specreason import SpecReason
from policies.speculative_thinking import SpeculativeThinking

POLICIES: dict[str, type[Policy]] = {
    "small-only": SmallOnly,
    "large-only": LargeOnly,
    "coin": Coin,
    "specreason": SpecReason,
    "learned-gate": LearnedGate,
    "cascade": Cascade,
    "speculative-thinking": SpeculativeThinking,
    "bild": BiLD,
    "advisor": Advisor,
}
"""Name -> class; the name is a model name of the API."""
