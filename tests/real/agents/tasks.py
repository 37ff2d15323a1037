"""What the agents are asked: a price to look up, and then a product."""

from __future__ import annotations

INSTRUCTIONS = "You are the assistant of a shop."
QUESTION = (
    "First call price for one notebook. Then call multiply with that price and 12. "
    "Then tell me the product in one sentence, without a call."
)
ANSWER = "444"
TURNS = 6
MAX_TOKENS = 120
CALLS: list[tuple[str, dict[str, object]]] = []
"""What was called, in this process."""


def price(item: str) -> int:
    """The price of one item of the shop, such as "pen"."""
    CALLS.append(("price", {"item": item}))
    return {"notebook": 37, "pen": 4}.get(item.lower().removesuffix("s"), 0)


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    CALLS.append(("multiply", {"a": a, "b": b}))
    return a * b
