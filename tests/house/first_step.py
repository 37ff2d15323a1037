"""How soon a first visitor sees a step: `python -m tests.house.first_step`.

From opening `/ui` in a browser that has never been there, whose question asks itself, to the first
painted step; the embedded pair, in this process. The median and the slowest of several visits, and
the bytes of the whole page.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from tests.house.console_pictures import embedded
from tests.orchestrator.http.browser import chromium, page_of
from tests.orchestrator.serving import serving

VISITS = 7
CONSOLE = Path("orchestrator/http/console")
# The frame behind the one in which the step was put in has shown it. Times are since navigation.
SEEN = """new Promise((tell) => {
    const look = () => document.querySelector(".step")
        ? requestAnimationFrame(() => tell(performance.now())) : requestAnimationFrame(look);
    look();
})"""


def main() -> None:
    times = []
    with serving(embedded()) as url, chromium() as browser:
        for _ in range(VISITS):
            with page_of(browser, f"{url}/ui", first=True) as page:
                times.append(page.evaluate(SEEN))
    weight = sum(file.stat().st_size for file in CONSOLE.rglob("*") if file.is_file())
    print(f"first painted step: median {median(times):.0f} ms, slowest {max(times):.0f} ms")
    print(f"page: {weight:,} bytes")


if __name__ == "__main__":
    main()
