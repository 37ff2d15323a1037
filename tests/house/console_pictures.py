"""Pictures of the console in every state, for people to look at.

    python -m tests.house.console_pictures [STATE ...]

All states, or those that are named. The embedded pair, in this process; a saved trace of the
pretrained pair of `make real-pair`; and scripted workers for what neither shows: a long thought, a
thought in mid-stream, failures.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from deploy.launch.deployment_file import DEFAULT_FILE, load
from deploy.service.config import MethodSpec
from deploy.service.workers import load_worker
from orchestrator.errors import WorkerUnavailable
from orchestrator.http.planning import Catalog
from orchestrator.http.service import Pools, Service
from orchestrator.http.settings import ServiceLimits
from policies import POLICIES
from tests.orchestrator.http.browser import chromium, page_of
from tests.orchestrator.serving import HTTP, post, scripted, service, serving
from tests.workers.scripted import Scripted

FOLDER = Path("build/console")
REAL = Path(__file__).parent / "real_pair_trace.json"
"""What the pretrained pair answered, once: code, a formula, a table. As `/v1/traces/ID` gave it."""
SAMPLE = (
    "Rosa has 6 bags with 17 marbles each. She gives 25 of the marbles to Ben. "
    "How many marbles does she have left?"
)
PROSE = (
    "We want the number of ways to tile a $2 \\times n$ board with dominoes. Call it $T_n$.\n\n"
    "The last column holds one upright domino, or two lying ones:\n\n"
    "- upright: what is left is a board of length $n - 1$,\n- lying: one of length $n - 2$.\n\n"
    "So $$T_n = T_{n-1} + T_{n-2}, \\qquad T_1 = 1,\\; T_2 = 2.$$\n\n"
    "A few values by hand:\n\n| $n$ | 1 | 2 | 3 | 4 | 5 |\n|---|---|---|---|---|---|\n"
    "| $T_n$ | 1 | 2 | 3 | 5 | 8 |\n\n"
    "Check it in code, to be sure:\n\n```python\ndef tilings(n: int) -> int:\n    a, b = 1, 2\n\n"
    "    for _ in range(n - 1):\n        a, b = b, a + b\n    return a\n```\n\n"
    "It gives **89** for $n = 10$, as the closed form "
    "$\\frac{\\varphi^{n+1} - \\psi^{n+1}}{\\sqrt{5}}$ does."
)
LONG = "".join(
    f"Step {n}: the sum so far is $s_{{{n}}} = {n * (n + 1) // 2}$.\n\n" for n in range(1000)
)


def embedded() -> Service:
    """The deployment file's pair, without Ray; a request may have the large model speculate, with a
    draft model that is often wrong."""
    args = load(DEFAULT_FILE).args
    chain = MethodSpec(method="chain", params={"draft": "embedded:draft", "gamma": 4})
    large = args.workers.large
    large = large.model_copy(
        update={"speculation": large.speculation.model_copy(update={"also": (chain,)})}
    )
    args = args.model_copy(update={"workers": args.workers.model_copy(update={"large": large})})

    async def ready() -> dict[str, bool]:
        return {"small": True, "large": True}

    workers = {name: load_worker(spec) for name, spec in args.workers.by_name().items()}
    catalog = Catalog(
        POLICIES,
        args.policy.default,
        args.policy.params,
        args.workers.methods(),
        args.workers.speculation(),
    )
    return Service(catalog, Pools(workers, ready))


def told(story: str, delay: float = 0.0) -> Service:
    """Scripted workers; the judge rejects every third step."""

    def scores(transcript: Any) -> float:
        return 3.0 if len(transcript.thought) % 3 == 2 else 8.0

    both = (story, "There are $T_{10} = \\boxed{89}$ tilings.")
    return service(
        Scripted(story=both, delay=delay),
        Scripted(story=both, delay=delay * 2, scores=scores),
        limits=ServiceLimits(max_tokens=32_000),
    )


class Camera:
    """Takes pictures into a folder: each state in both themes, and as a phone shows it."""

    def __init__(self, browser: Browser, folder: Path, wanted: Collection[str]) -> None:
        self.browser, self.folder, self.wanted = browser, folder, wanted
        folder.mkdir(parents=True, exist_ok=True)

    def take(
        self, name: str, url: str, act: Any, *, first: bool = False, whole: bool = True
    ) -> None:
        if self.wanted and name not in self.wanted:
            return
        for look, size, scheme in (
            ("light", (1200, 900), "light"),
            ("dark", (1200, 900), "dark"),
            ("narrow", (360, 740), "light"),
        ):
            settings: Any = {"color_scheme": scheme, "device_scale_factor": 1.5}
            with page_of(self.browser, url, first=first, **settings) as page:
                page.set_viewport_size({"width": size[0], "height": size[1]})
                act(page)
                page.wait_for_timeout(400)
                if whole:  # what is outside of the window is not laid out
                    tall = page.evaluate("document.documentElement.scrollHeight")
                    page.set_viewport_size({"width": size[0], "height": tall})
                    page.wait_for_timeout(400)
                path = self.folder / f"{name}-{look}.png"
                page.screenshot(path=path, full_page=whole, animations="disabled")
                print(path)


def ended(page: Page, status: str = "finished", count: int = 1) -> None:
    found = page.locator(f".run[data-status={status}]")
    found.nth(count - 1).wait_for()
    page.wait_for_timeout(300)


def opened(page: Page) -> None:
    page.locator("#file").set_input_files(REAL)
    ended(page)
    page.locator(".note").first.evaluate("node => node.remove()")


def ask(page: Page, question: str, policy: str = "") -> None:
    page.locator("#question").fill(question)
    if policy:
        page.locator(f"#model option[value='{policy}']").wait_for(state="attached")
        page.locator("#model").select_option(policy)
    page.locator(".asking .primary").click()


def of_the_pair(camera: Camera) -> None:
    with serving(embedded()) as url:
        for _ in range(5):
            post(url)  # the first answers are slower

        def answered(page: Page) -> None:
            ended(page)
            page.keyboard.press("r")
            page.locator(".note").first.evaluate("node => node.remove()")

        def takeover(page: Page) -> None:
            ask(page, "What is 37*46+12?", "bild")
            ended(page)

        def compared(page: Page) -> None:
            page.locator(".asking .primary").click()
            ended(page, count=2)

        def published(page: Page) -> None:
            page.locator(".version").first.wait_for()

        def tokens(page: Page) -> None:
            page.keyboard.press("t")

        camera.take("done", url, answered, first=True)
        body = {"model": "specreason", "speculation": "chain", "policy": {"threshold": 8.9}}
        speculated = post(url, body | {"messages": [{"role": "user", "content": SAMPLE}]}).json()
        link = f"{url}/ui#/trace/{speculated['baton']['trace_id']}"
        camera.take("tokens", link, lambda page: (ended(page), tokens(page)))
        camera.take("real", f"{url}/ui#/traces", opened)
        camera.take("takeover", url, takeover)
        camera.take("compare", f"{url}/ui#/compare", compared)
        for threshold, note in ((7, "fewer rewrites"), (5.5, "fewer still")):
            body = {"policy": "specreason", "params": {"threshold": threshold}, "note": note}
            HTTP.post(f"{url}/v1/policies", json=body).raise_for_status()
        camera.take("policies", f"{url}/ui#/policies", published)
        experiment(url)
        camera.take(
            "experiments", f"{url}/ui#/experiments", lambda page: page.locator("tr.goal").wait_for()
        )
        camera.take(
            "traces",
            f"{url}/ui#/traces",
            lambda page: page.locator(".list tbody tr").nth(4).wait_for(),
        )
        camera.take(
            "health", f"{url}/ui#/health", lambda page: page.locator(".card").first.wait_for()
        )


def experiment(url: str) -> None:
    document = {
        "name": "thresholds",
        "note": "a strict judge against a lenient one",
        "unit": "request",
        "min_units": 10,
        "arms": [
            {"name": "nine", "policy": "specreason", "params": {"threshold": 9}},
            {"name": "three", "policy": "specreason", "params": {"threshold": 3}},
        ],
        "goal": {"metric": "large_tokens", "within": [{"metric": "error", "by": 0.05}]},
        "guardrails": [{"metric": "error", "at_most": 0.2}],
        "ramp": {"steps": [1.0], "hold_s": 3600},
    }
    HTTP.post(f"{url}/v1/experiments", json=document).raise_for_status()
    for n in range(60):
        question = [{"role": "user", "content": f"What is {n + 12}*{n % 7 + 3}+{n}?"}]
        post(url, {"messages": question})


def of_scripts(camera: Camera) -> None:
    question = "In how many ways can dominoes tile a board of 2 by 10?"

    def empty(page: Page) -> None:
        page.locator("#question").fill("")

    def rich(page: Page) -> None:
        ask(page, question)
        ended(page)
        page.locator(".answer").scroll_into_view_if_needed()
        page.wait_for_timeout(300)

    with serving(told(PROSE)) as url:
        camera.take("empty", url, empty)
        camera.take("rich", url, rich)
    with serving(told(PROSE, 0.05)) as url:
        camera.take(
            "running",
            url,
            lambda page: (ask(page, question), page.locator(".step").nth(3).wait_for()),
        )
    with serving(told(LONG)) as url:
        camera.take(
            "long",
            url,
            lambda page: (ask(page, "Add the first 1,000 numbers."), ended(page)),
            whole=False,
        )
    down = WorkerUnavailable("the large worker is away")
    with serving(
        service(large=scripted(deaths={0: 4, 2: 4, 4: 4}, failures={1: down, 3: down, 5: down}))
    ) as url:
        camera.take(
            "error", url, lambda page: (ask(page, question, "large-only"), ended(page, "failed"))
        )


def main(wanted: Collection[str]) -> None:
    with chromium() as browser:
        camera = Camera(browser, FOLDER, wanted)
        of_the_pair(camera)
        of_scripts(camera)


if __name__ == "__main__":
    main(sys.argv[1:])
