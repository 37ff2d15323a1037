"""The console in a real browser, over scripted workers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from orchestrator.errors import WorkerUnavailable
from orchestrator.experiments import experimenter
from orchestrator.http.auth import Access, Keys
from orchestrator.http.service import Service
from orchestrator.http.settings import ServiceLimits, WhenBusy
from orchestrator.types import TokenPrices
from tests.orchestrator.http.browser import BUSY_MS, CHROMIUM, chromium, page_of
from tests.orchestrator.loop.test_answer_now import endless
from tests.orchestrator.serving import (
    HTTP,
    Speculating,
    post,
    scripted,
    service,
    serving,
    until,
)
from tests.orchestrator.state.test_set_aside import spoiled
from tests.workers.scripted import Scripted

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: apt-get install chromium"
)
TABS = ("ask", "compare", "traces", "policies", "experiments", "health", "api")
THOUGHT = (
    "Let $x = \\frac{1}{2}$, so that $$x^2 = \\frac{1}{4}.$$\n\n"
    "| n | square |\n|---|---|\n| 2 | 4 |\n\n"
    "```python\nfor n in range(3):\n\n    print(n ** 2)\n```\n\n"
    "So **four** is `2 ** 2`."
)
ANSWER = "The answer is \\boxed{4}."
expect.set_options(timeout=BUSY_MS)
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\n\n"
    "$\\def\\a{\\a\\a}\\a$ and $\\href{javascript:alert(1)}{x}$ and $\\rule{99999em}{99999em}$\n\n"
    "[link](javascript:alert(1)) ![image](https://elsewhere.example/x.png)\n\n"
    "plain \u202etxet desrever\u202c and \u2066more\n\n"
    "$" + "{" * 3000 + "x" + "}" * 3000 + "$ " + "*" * 5000 + "`" * 5000
)
LONG = "".join(f"Step {n} has $n_{{{n}}} = {n}$ in it.\n\n" for n in range(1000)) + "That is all."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A service whose judge rejects the second step, and which has prices."""
    with serving(made(prices=TokenPrices(small=1, large=2))) as url:
        yield url


def made(
    story: tuple[str, str] = (THOUGHT, ANSWER), delay: float = 0.0, **settings: Any
) -> Service:
    def scores(transcript: Any) -> float:
        return 2.0 if len(transcript.thought) == 2 else 9.0

    small = Scripted(story=story, delay=delay)
    return service(small, Scripted(story=story, scores=scores, delay=delay), **settings)


def ask(page: Page, question: str = "Twice 2+2?", policy: str = "") -> None:
    page.locator("#question").fill(question)
    if policy:
        page.locator(f"#model option[value='{policy}']").wait_for(state="attached")
        page.locator("#model").select_option(policy)
    page.get_by_role("button", name="Ask", exact=False).first.click()


def ended(page: Page, status: str = "finished") -> None:
    expect(page.locator(f".run[data-status={status}]").first).to_be_visible()


def test_a_first_visit_sees_an_answer_and_who_wrote_it_and_why(browser: Browser, url: str) -> None:
    with page_of(browser, url, first=True) as page:
        ended(page)
        steps = page.locator(".step")
        expect(steps).to_have_count(4)
        expect(steps.nth(0)).to_contain_text("Score 9 reaches 7")
        expect(steps.nth(0).locator(".badge")).to_have_text("S")
        expect(steps.nth(1).locator(".badge")).to_have_text("SL")
        expect(steps.nth(1)).to_contain_text("score 2 is under 7")
        expect(steps.nth(0).locator(".katex").first).to_be_attached()
        expect(steps.nth(2).locator("pre code")).to_contain_text("print(n ** 2)")
        expect(page.locator(".answer .katex")).to_be_visible()
        expect(page.locator(".answer")).not_to_contain_text("null")
        expect(page.locator(".authors")).to_contain_text("written by the small model")
        expect(page.locator(".figures")).to_contain_text("3 of 4")
        expect(page.locator(".figures")).to_contain_text("at the deployment's prices")
        assert "small model works" in (page.locator(".lanes").get_attribute("aria-label") or "")
        draft = page.locator("details.rejected summary")
        expect(draft.locator("del")).to_be_visible()
        expect(draft).to_contain_text("score 2 is under 7")
        expect(page.locator(".run-head .state.waiting")).to_have_text("done")
        page.keyboard.press("r")  # unfolds the rejected draft
        expect(page.locator("details.rejected .gone")).to_be_visible()
        bars = page.locator(".judge svg").get_attribute("aria-label") or ""
        assert "2: 100 %" in bars
        page.reload()  # a second visit asks nothing by itself
        expect(page.locator("#question")).to_be_visible()
        expect(page.locator(".run")).to_have_count(0)


def test_a_policys_parameters_are_a_form_with_ranges(browser: Browser, url: str) -> None:
    with page_of(browser, url) as page:
        expect(page.locator("#model option")).not_to_have_count(1)
        page.locator("#model").select_option("specreason")
        page.get_by_text("Parameters").click()
        threshold = page.locator("input[name=threshold]")
        threshold.fill("11")
        ask(page)
        expect(page.locator(".asking .bad")).to_contain_text("threshold")
        threshold.fill("1.5")
        ask(page)
        ended(page)
        expect(page.locator(".step").nth(1)).to_contain_text("Score 2 reaches 1.5")
        page.locator("input[name=max_tokens]").fill("8")
        ask(page)
        expect(page.locator(".run-head .state.cancelled")).to_have_text("cut")


def test_a_form_follows_the_services_defaults(browser: Browser, url: str) -> None:
    """Of parameters, those that differ from them alone are sent."""

    def changed(route: Route) -> None:
        document = route.fetch().json()
        policy = document["components"]["schemas"]["policy.specreason"]
        policy["properties"]["threshold"]["default"] = 3.5
        route.fulfill(json=document)

    with page_of(browser, url) as page:
        page.locator("#model option[value=specreason]").wait_for(state="attached")
        page.locator("#model").select_option("specreason")
        expect(page.locator("input[name=threshold]")).to_have_value("7")
        page.route("**/openapi.json", changed)
        page.get_by_role("link", name="Traces").click()
        page.get_by_role("link", name="Ask").click()
        expect(page.locator("input[name=threshold]")).to_have_value("3.5")


def test_a_first_visit_while_the_service_starts_asks_later(browser: Browser, url: str) -> None:
    loading = {"workers": {"large": False}, "error": {"message": "large: its model loads"}}
    with page_of(browser, f"{url}/ui#/api", first=True) as page:
        page.route("**/ready", lambda route: route.fulfill(status=503, json=loading))
        page.get_by_role("link", name="Ask").click()
        expect(page.locator("p.bad")).to_contain_text("its model loads")
        expect(page.locator(".run")).to_have_count(0)
        page.unroute("**/ready")
        ended(page)


def test_ask_again_repeats_what_is_shown(browser: Browser, url: str) -> None:
    """Neither a question that is being written, nor parameters that were changed since."""
    with page_of(browser, url) as page:
        page.locator("#model option[value=specreason]").wait_for(state="attached")
        page.locator("#model").select_option("specreason")
        page.get_by_text("Parameters").click()
        page.locator("input[name=threshold]").fill("1.5")
        ask(page)
        ended(page)
        page.locator("#question").fill("Something else?")
        page.locator("input[name=threshold]").fill("9")
        again = page.get_by_role("button", name="Ask again")
        for _ in range(2):
            with page.expect_request("**/v1/chat/completions") as sent:
                again.click()
            asked = json.loads(sent.value.post_data or "")
            assert asked["messages"] == [{"role": "user", "content": "Twice 2+2?"}]
            assert asked["policy"] == {"threshold": 1.5}
            ended(page)
        expect(page.locator("#question")).to_have_value("Something else?")


@pytest.mark.parametrize(
    "body",
    [
        {"model": "specreason", "policy": {"threshold": 1.5}},
        {"model": "baton", "policy": {"name": "coin", "large_probability": 0.25}},
    ],
)
def test_a_recorded_request_is_copied_with_its_parameters(
    browser: Browser, url: str, body: Any
) -> None:
    trace = post(url, body).json()["baton"]["trace_id"]
    until(lambda: HTTP.get(f"{url}/v1/traces/{trace}").status_code == 200)
    with page_of(browser, f"{url}/ui#/trace/{trace}") as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy as curl").click()
        expect(page.locator("#toast")).to_have_text("curl command copied")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert json.loads(copied.split(" -d ")[1].strip("'"))["policy"] == body["policy"]


def test_a_long_question_is_not_cut(browser: Browser, url: str) -> None:
    with page_of(browser, url) as page:
        page.locator("#question").fill("")
        page.keyboard.insert_text("long " * 25_000)
        with page.expect_request("**/v1/chat/completions") as sent:
            page.keyboard.press("Control+Enter")
        (message,) = json.loads(sent.value.post_data or "")["messages"]
        assert len(message["content"]) == 5 * 25_000 - 1


def test_two_policies_side_by_side(browser: Browser, url: str) -> None:
    with page_of(browser, f"{url}/ui#/compare") as page:
        page.get_by_role("button", name="Compare").click()
        expect(page.locator(".run[data-status=finished]")).to_have_count(2)
        expect(page.locator(".verdict")).to_contain_text("The answers are the same")
        page.locator("#compare-question").fill(" ")
        page.keyboard.press("Control+Enter")
        expect(page.locator("p.bad")).to_have_text("Write a question first.")
        page.set_viewport_size({"width": 360, "height": 740})
        holes = """[...document.querySelectorAll(".steps > ol")].map((list) => list.offsetHeight
            - [...list.children].reduce((sum, row) => sum + row.offsetHeight, 0))"""
        assert page.evaluate(holes) == [0, 0]  # nor below the screen


def test_a_comparison_names_the_faster_one_first(browser: Browser) -> None:
    quick, slow = (Scripted(story=(THOUGHT, ANSWER), delay=delay) for delay in (0.0, 0.02))
    with serving(service(quick, slow)) as url, page_of(browser, f"{url}/ui#/compare") as page:
        for side, policy in ("First policy", "large-only"), ("Second policy", "small-only"):
            page.get_by_label(side).locator(f"option[value={policy}]").wait_for(state="attached")
            page.get_by_label(side).select_option(policy)
        page.get_by_role("button", name="Compare").click()
        verdict = page.locator(".verdict")
        expect(verdict).to_contain_text("0 % of the first and 100 % of the second")
        expect(verdict).to_contain_text(re.compile(r"small-only took .*, large-only "))


def test_a_comparison_that_is_stopped_leaves_nothing_waiting(browser: Browser) -> None:
    with serving(made(delay=0.15)) as url, page_of(browser, f"{url}/ui#/compare") as page:
        page.get_by_role("button", name="Compare").click()
        expect(page.locator(".step")).not_to_have_count(0)
        page.get_by_role("button", name="Stop").click()
        ended(page, "cancelled")
        expect(page.locator(".run")).to_have_count(1)


def test_stopped_in_the_middle_it_stops_the_work_too(browser: Browser) -> None:
    slow = made(delay=0.15)
    with serving(slow) as url, page_of(browser, url) as page:
        ask(page)
        expect(page.locator(".step")).not_to_have_count(0)
        page.get_by_role("button", name="Stop").click()
        ended(page, "cancelled")
        expect(page.locator(".trouble")).to_contain_text("Stopped")
        until(lambda: slow.live.admission.live == 0)


def test_asked_to_answer_now_the_thought_ends(browser: Browser) -> None:
    endlessly = service(*(endless(delay=0.05) for _ in range(2)))
    with serving(endlessly) as url, page_of(browser, url) as page:
        ask(page)
        expect(page.locator(".step")).not_to_have_count(0)
        page.get_by_role("button", name="Answer now").click()
        ended(page)
        expect(page.locator(".answer")).to_contain_text("7")


def test_loaded_again_in_the_middle_the_page_shows_what_is_on_record(browser: Browser) -> None:
    with serving(made(delay=0.1)) as url, page_of(browser, url) as page:
        ask(page, "What is on record?")
        expect(page.locator(".step .reason").first).to_be_visible()
        page.reload()
        ended(page, "cancelled")
        expect(page.locator(".note").first).to_contain_text("loaded again")
        expect(page.locator("#question")).to_have_value("What is on record?")


def test_a_failing_request_says_why(browser: Browser) -> None:
    down = WorkerUnavailable("the large worker is away")
    away = service(scripted(down=down), scripted(down=down))
    with serving(away) as url, page_of(browser, url) as page:
        ask(page)
        ended(page, "failed")
        expect(page.locator(".trouble")).to_contain_text("worker")
        expect(page.locator(".trouble")).to_be_in_viewport()


def test_a_worker_that_dies_in_mid_stream_leaves_what_was_written(browser: Browser) -> None:
    large = scripted(deaths={0: 3}, failures={1: WorkerUnavailable("gone")})
    with serving(service(large=large)) as url, page_of(browser, url) as page:
        ask(page, policy="large-only")
        ended(page, "failed")
        expect(page.locator(".step").first).to_contain_text("First, 2+2")
        expect(page.locator(".trouble")).to_be_visible()


def test_times_are_rounded_to_ones_that_exist(page: Page) -> None:
    shown = """async (times) => {
        const { duration, moment } = await import("./ui/dom.js");
        return [moment(new Date().setHours(0, 5, 0) / 1000), ...times.map(duration)];
    }"""
    times = page.evaluate(shown, [9.94, 999.6, 59_999, 119_700])
    assert times == ["00:05:00", "9.9 ms", "1.00 s", "1 min 0 s", "2 min 0 s"]


def test_a_read_does_not_wait_for_ever(page: Page) -> None:
    unanswered = """async () => {
        const { get } = await import("./ui/api.js");
        const { timeout } = AbortSignal;
        AbortSignal.timeout = () => AbortSignal.abort(new DOMException("", "TimeoutError"));
        try {
            return await get("v1/models");
        } catch (error) {
            return error.message;
        } finally {
            AbortSignal.timeout = timeout;
        }
    }"""
    assert page.evaluate(unanswered) == "The service does not answer"


def test_a_connection_that_breaks_is_named(page: Page) -> None:
    broken = """async () => {
        const { events } = await import("./ui/api.js");
        const { fetch } = window;
        const start = (stream) => stream.error(new TypeError("network error"));
        window.fetch = async () => new Response(new ReadableStream({ start }));
        try {
            await events("v1/chat/completions", {}).next();
        } catch (error) {
            return error.message;
        } finally {
            window.fetch = fetch;
        }
    }"""
    assert page.evaluate(broken) == "The connection broke before the answer ended"


def test_what_a_model_writes_is_text(browser: Browser) -> None:
    with serving(made((HOSTILE, HOSTILE.split("\n\n")[0]))) as url, page_of(browser, url) as page:
        ask(page, "<img src=x onerror=alert(1)>\u202e?")
        ended(page)
        page.locator(".answer").scroll_into_view_if_needed()
        page.wait_for_function("document.querySelectorAll('.step .text.plain').length === 0")
        assert page.title() == "Baton"
        assert page.locator("main img, main script, main iframe, main .text a").count() == 0
        expect(page.locator(".question")).to_contain_text("<img src=x")
        expect(page.locator(".answer")).to_contain_text("<script>")
        assert page.locator(".step .control").first.text_content() == "U+202E"
        wide = page.evaluate("document.scrollingElement.scrollWidth - innerWidth")
        assert wide <= 0


@pytest.mark.parametrize("end", ["", "\\] in its midst"])
def test_formulas_that_never_end_are_read_once(browser: Browser, url: str, end: str) -> None:
    """Lines that are looked at and lines that are joined, by how many there are."""
    count = """async (text) => {
        const { blocks } = await import("./ui/richtext.js");
        const { includes } = String.prototype;
        const { slice } = Array.prototype;
        let looks = 0;
        String.prototype.includes = function (...sought) {
            looks += 1;
            return includes.apply(this, sought);
        };
        Array.prototype.slice = function (...range) {
            const part = slice.apply(this, range);
            looks += part.length;
            return part;
        };
        blocks(text);
        return looks;
    }"""
    with page_of(browser, url) as page:
        assert page.evaluate(count, "\\[ x\n" * 500 + end) < 5000


def test_a_thousand_steps(browser: Browser) -> None:
    limits = ServiceLimits(max_tokens=32_000)
    with serving(made((LONG, ANSWER), limits=limits)) as url, page_of(browser, url) as page:
        ask(page, policy="small-only")
        ended(page)
        expect(page.locator(".step")).to_have_count(1001)
        typeset = page.locator(".step .katex").count()
        assert typeset < 200  # what is far away waits
        last = page.locator(".step").nth(990)
        last.scroll_into_view_if_needed()
        expect(last.locator(".katex")).to_be_visible()
        expect(page.locator(".step").nth(0).locator(".katex")).to_have_count(0)  # and is let go
        last.focus()
        page.keyboard.press("j")
        expect(page.locator(".step").nth(991)).to_be_focused()


def test_a_trace_by_its_link_in_the_list_and_from_a_file(
    browser: Browser, url: str, tmp_path: Path
) -> None:
    trace = post(url).json()["baton"]["trace_id"]
    until(lambda: HTTP.get(f"{url}/v1/traces/{trace}").status_code == 200)
    saved = tmp_path / "saved.json"
    saved.write_bytes(HTTP.get(f"{url}/v1/traces/{trace}").content)
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"no": "steps"}))
    with page_of(browser, f"{url}/ui#/trace/{trace}") as page:
        expect(page.locator(".step")).to_have_count(4)
        expect(page.locator(".step").nth(1)).to_contain_text("score 2 is under 7")
        page.get_by_role("button", name="Replay").click()
        ended(page)
        page.get_by_text("all requests").click()
        expect(page.locator(".list tbody tr").first).to_contain_text("Twice 2+2?")
        page.locator("select[name=status]").select_option("failed")
        expect(page.locator(".list tbody tr")).to_have_count(0)
        page.locator("#file").set_input_files(other)
        expect(page.locator("p.bad")).to_contain_text("other.json cannot be shown")
        page.locator("#file").set_input_files(saved)
        expect(page.locator(".step")).to_have_count(4)
        expect(page.locator(".note", has_text="saved.json")).to_be_visible()
        expect(page.locator("p.bad")).to_be_empty()
        page.get_by_role("link", name="Traces").click()  # although the address is that of the list
        expect(page.locator(".list")).to_be_visible()
        page.goto(f"{url}/ui#/trace/nonesuch")
        expect(page.locator("p.bad")).to_contain_text("no such trace")
        expect(page.get_by_text("all requests")).to_be_visible()


def test_a_trace_that_is_awaited_shows_that_it_is(browser: Browser, url: str) -> None:
    held: list[Route] = []
    with page_of(browser, f"{url}/ui#/traces") as page:
        page.route("**/v1/traces/awaited", lambda route: held.append(route))
        with page.expect_request("**/v1/traces/awaited"):
            page.goto(f"{url}/ui#/trace/awaited")
        expect(page.locator(".traces .pending")).to_be_visible()
        held[0].fulfill(status=400, json={"error": {"message": "a fault"}})
        expect(page.locator("p.bad")).to_contain_text("a fault")
        expect(page.locator(".traces .pending")).to_have_count(0)


def test_of_two_answers_to_one_filter_the_last_counts(browser: Browser, url: str) -> None:
    held: list[Route] = []
    trace = post(url).json()["baton"]["trace_id"]
    until(lambda: HTTP.get(f"{url}/v1/traces/{trace}").status_code == 200)
    with page_of(browser, f"{url}/ui#/traces") as page:
        page.route("**/v1/traces?status=failed", lambda route: held.append(route))
        rows = page.locator(".list tbody tr")
        expect(rows).not_to_have_count(0)
        status = page.locator("select[name=status]")
        option = page.locator("select[name=policy] option[value=bild]").element_handle()
        with page.expect_request("**/v1/traces?status=failed"):
            status.select_option("failed")
        with page.expect_response(lambda reply: reply.url.endswith("/v1/traces?")):
            status.select_option("")
        with page.expect_response("**/v1/traces?status=failed"):
            held[0].continue_()
        page.evaluate("fetch('v1/models').then((reply) => reply.text())")
        expect(rows).not_to_have_count(0)
        assert option.evaluate("(one) => one.isConnected")  # a list that is open stays so


def test_a_replay_that_is_stopped_shows_the_rest_at_once(
    browser: Browser, url: str, tmp_path: Path
) -> None:
    step = {"author": "small", "phase": "thought", "accepted": True, "tokens": 1, "ms": 1.0}
    steps = [
        {**step, "text": "Soon.\n\n", "score": None, "at_ms": 1.0},
        {**step, "text": "Late.", "score": None, "at_ms": 3e6},
    ]
    saved = tmp_path / "slow.json"
    saved.write_text(json.dumps({"id": "t", "question": "?", "policy": "bild", "steps": steps}))
    with page_of(browser, f"{url}/ui#/traces") as page:
        page.locator("#file").set_input_files(saved)
        page.get_by_role("button", name="Replay").click()
        expect(page.locator(".step")).to_have_count(1)
        expect(page.get_by_role("button", name="Answer now")).to_have_count(0)
        page.keyboard.press("Escape")
        expect(page.locator(".step")).to_have_count(2)
        ended(page)


def test_a_replay_can_be_stopped_before_its_first_event(page: Page) -> None:
    shown = """async () => {
        const { Run } = await import("./ui/run.js");
        const { RunView } = await import("./ui/runview.js");
        const late = { author: "small", phase: "thought", accepted: true, at_ms: 3e6, ms: 1 };
        const view = new RunView();
        const steps = [{ ...late, text: "Late.", tokens: 1 }];
        view.show(Run.of({ question: "?", policy: "bild", steps }));
        const buttons = () => [...view.buttons.children];
        const button = (name) => buttons().find((one) => one.textContent.startsWith(name));
        button("Replay").click();
        const found = [view.steps.items.length, Boolean(button("Replay"))];
        button("Stop").click();
        while (button("Stop")) await new Promise((resolve) => setTimeout(resolve, 10));
        return [...found, view.steps.items.length];
    }"""
    assert page.evaluate(shown) == [0, False, 1]


def keyed() -> Service:
    return made(access=Access(Keys(["sk-user"]), Keys(["sk-admin"]), Keys(["sk-observer"])))


def give(page: Page, which: str, key: str, *, wrong: bool = False) -> None:
    """A key to the dialog that asks for `which`; `wrong`: one that was given before was refused."""
    dialog = page.locator("dialog[open]", has=page.locator("h2", has_text=which))
    expect(dialog.get_by_text("was not accepted")).to_have_count(int(wrong))
    dialog.locator("input").fill(key)
    dialog.get_by_role("button", name="Use key").click()


def cancel(page: Page) -> None:
    page.locator("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator("dialog")).to_have_count(0)


@pytest.mark.parametrize(("scheme", "saved"), [("light", False), ("dark", True)])
def test_each_token_says_whether_it_was_drafted(browser: Browser, scheme: Any, saved: bool) -> None:
    story = ("We add 2 and \U0001f600 to it.\n\nThe sum is 4, and that is all.", ANSWER)
    with (
        serving(service(scripted(), Speculating(story=story)), grace_s=2) as url,
        page_of(browser, url, color_scheme=scheme) as page,
    ):
        ask(page, policy="large-only")
        ended(page)
        if saved:  # the same from the record
            until(lambda: HTTP.get(f"{url}/v1/traces").json()["data"])
            row = HTTP.get(f"{url}/v1/traces").json()["data"][0]
            page.goto(f"{url}/ui#/trace/{row['id']}")
            expect(page.get_by_role("button", name="Replay")).to_be_visible()
        expect(page.locator(".figures")).to_contain_text("by place in the guess: 100 %, 100 %, 0 %")
        tokens = page.locator(".steps details.tokens")
        expect(tokens).to_have_count(2)
        expect(tokens.first.locator("summary")).to_contain_text("5 of 7 were drafted and accepted")
        page.keyboard.press("t")
        words = tokens.first.locator(".words")
        expect(words).to_have_text("We add draft 2 and \U0001f600 to it.↵↵")
        expect(words.locator("ins.recovered")).to_have_text(["2 "])
        expect(words.locator("del")).to_have_text(["draft "])
        expect(words.locator(".bonus")).to_have_text(["to "])
        expect(tokens.nth(1).locator(".words")).to_contain_text("The draft sum is")
        page.locator(".answer details.tokens summary").focus()
        page.keyboard.press("Enter")  # a summary is reached by Tab
        expect(page.locator(".answer .words")).to_contain_text("The answer draft is")
        found = Axe().run(page).response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
        page.keyboard.press("t")
        expect(tokens.first.locator(".words")).not_to_be_visible()


TOKEN_VIEWS = """async (events) => {
    const { Run } = await import("./ui/run.js");
    const { tokenView } = await import("./ui/tokens.js");
    const run = new Run("", "m");
    for (const event of events) run.event({ author: "large", phase: "answer", ...event });
    run.end("finished");
    const views = [];
    for (const row of run.rows) {
        const [view] = tokenView(row.pieces);
        if (!view) { views.push(null); continue; }
        view.open = true;
        await new Promise((done) => view.addEventListener("toggle", done));
        const texts = (of) => [...view.querySelectorAll(of)].map((one) => one.textContent);
        views.push([texts("summary")[0].slice(8, 14), texts(".words .token"), texts(".words del")]);
    }
    return views;
}"""


def step(text: str, origins: str, lengths: list[int], **rejected: list[str]) -> dict[str, Any]:
    places = [[int(place[1:]), drafts] for place, drafts in rejected.items()]
    provenance = {"origins": origins, "lengths": lengths, "rejected": places}
    return {"type": "step", "text": text, "accepted": True, "ms": 1, "provenance": provenance}


def shown(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, "tokens": 1, **more}


EMOJI = "a\U0001f600\n\n"
ACROSS = "It ends.\n\nAnd"
TOKENS_SHOWN: dict[str, tuple[list[dict[str, Any]], list[Any]]] = {
    "of a character": (
        [shown(EMOJI), step(EMOJI, "araa", [1, 0, 1, 2], _1=["draft"])],
        [["3 of 4", ["a", "·", "\U0001f600", "↵↵"], ["draft"]]],
    ),
    "across two rows": (
        [shown(ACROSS), step(ACROSS, "arb", [7, 5, 1], _1=["draft"])],
        [["1 of 2", ["It ends", ".↵↵"], ["draft"]], ["0 of 1", ["An", "d"], []]],
    ),
    "across two spans": (
        [shown("It "), shown("is", author="small"), step("It is", "ar", [1, 4], _1=["draft"])],
        [["1 of 2", ["I", "t ", "is"], ["draft"]]],
    ),
    "held back": (
        [
            shown("One. "),
            step("One. #", "aa", [5, 1]),
            shown("# two\n\nThree"),
            step(" two\n\nThree", "ara", [4, 2, 5], _1=["draft"]),
        ],
        [["3 of 4", ["One. ", "#", " two", "↵↵"], ["draft"]], ["1 of 1", ["Three"], []]],
    ),
    "held back from the first on": (
        [step("#", "r", [1], _0=["draft"]), shown("# One."), step(" One.", "a", [5])],
        [["1 of 2", ["#", " One."], ["draft"]]],
    ),
    "white space that is not shown": (
        [shown("It is"), step("\n\n\n It is", "ara", [2, 4, 3], _1=["draft"])],
        [["2 of 3", ["·", "It", " is"], ["draft"]]],
    ),
    "more for the last row": (
        [shown("One."), step("One.", "a", [4]), shown(" Two."), step(" Two.", "r", [5])],
        [["1 of 2", ["One.", " Two."], []]],
    ),
    "not known": (
        [shown("One. Two"), step("One. Two", "a??", [5, 0, 3])],
        [["1 of 3", ["One. ", "Two"], []]],
    ),
}


@pytest.fixture(scope="module")
def page(browser: Browser, url: str) -> Iterator[Page]:
    """For tests that change nothing on it."""
    with page_of(browser, url) as opened:
        yield opened


@pytest.mark.parametrize("name", TOKENS_SHOWN)
def test_each_token_is_counted_once_where_its_text_is(page: Page, name: str) -> None:
    events, views = TOKENS_SHOWN[name]
    assert page.evaluate(TOKEN_VIEWS, events) == views


@pytest.mark.parametrize("phase", ["thought", "answer"])
def test_a_draft_that_was_rejected_last_stands_alone(page: Page, phase: str) -> None:
    """No step was written after it, and none is being written."""
    drawn = """async ([phase]) => {
        const { Run } = await import("./ui/run.js");
        const { Steps } = await import("./ui/steps.js");
        const run = new Run("", "specreason");
        run.event({ type: "text", author: "small", phase, text: "One.\\n\\n", tokens: 1 });
        const probabilities = [0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        run.event({ type: "call", kind: "judge", worker: "small", probabilities });
        const draft = { author: "small", text: "Two.", accepted: false, score: 2, calls: [0] };
        run.event({ type: "step", ...draft });
        run.end("cancelled");
        const steps = new Steps();
        steps.show(run, run.rows.filter((row) => row.phase === phase));
        const { lastChild } = steps.element.lastChild;
        return [lastChild.textContent, lastChild.querySelectorAll(".badge").length];
    }"""
    text, badges = page.evaluate(drawn, [phase])
    assert "Rejected draft: rejected at score 2" in text
    assert "How the small model grades it, 0 to 9; on average 2.0" in text
    assert "writing" not in text
    assert "wrote" not in text
    assert badges == 0


def test_a_saved_trace_keeps_the_order_of_its_calls(page: Page) -> None:
    """The first draft may end while the large model still reads the prompt."""
    kinds = """async () => {
        const { Run } = await import("./ui/run.js");
        const call = (kind, at_ms, ms) => ({ kind, at_ms, ms });
        const prefills = [call("prefill", 0, 5), call("prefill", 0, 500)];
        const calls = [...prefills, call("draft", 5, 100), call("judge", 500, 50)];
        return Run.of({ steps: [], calls }).calls.map(({ kind }) => kind);
    }"""
    assert page.evaluate(kinds) == ["prefill", "prefill", "draft", "judge"]


def test_a_draft_stays_unfolded_if_its_step_is_complete(page: Page) -> None:
    drawn = """async () => {
        const { Run } = await import("./ui/run.js");
        const { Steps } = await import("./ui/steps.js");
        const [run, steps] = [new Run("", "specreason"), new Steps()];
        document.body.append(steps.element);
        run.event({ type: "step", author: "small", text: "Two.", accepted: false, score: 2 });
        const write = (text) => {
            run.event({ type: "text", author: "large", phase: "thought", text, tokens: 1 });
            steps.show(run, run.rows);
        };
        write("Three");
        const draft = steps.element.querySelector("details");
        draft.open = true;
        draft.firstChild.focus();
        write(".\\n\\n");
        const now = steps.element.querySelector("details");
        const seen = [now.open, now.contains(document.activeElement), run.rows[0].closed];
        steps.element.remove();
        return seen;
    }"""
    assert page.evaluate(drawn) == [True, True, True]


def test_the_policy_of_busy_times_is_shown_while_none_is_active(browser: Browser) -> None:
    made = service(when_busy=WhenBusy(answers=3))
    with serving(made) as url, page_of(browser, f"{url}/ui#/policies") as page:
        now = page.locator(".card").first
        expect(now).to_contain_text("default; large-only while 3 answers or more are made.")
        HTTP.post(f"{url}/v1/policies", json={"policy": "bild"})
        page.reload()
        expect(now).to_contain_text("means bild@1.")


def test_publish_and_roll_back_with_keys(browser: Browser) -> None:
    with serving(keyed()) as url, page_of(browser, f"{url}/ui#/policies") as page:
        give(page, "an API key", "sk-wrong")
        give(page, "an API key", "sk-user", wrong=True)
        give(page, "observer's key", "sk-observer")
        expect(page.locator(".card").first).to_contain_text("deployment file's default")
        page.get_by_text("Publish a version").click()
        page.locator("input[name=threshold]").fill("4.5")
        page.locator("input[name=note]").fill("<b>more</b> trust")
        page.get_by_role("button", name="Publish").click()
        give(page, "needs the admin key", "sk-admin")
        expect(page.locator(".version")).to_contain_text("threshold: 4.5")
        expect(page.locator(".card").first).to_contain_text("specreason@1")
        expect(page.locator(".policies")).to_contain_text("<b>more</b> trust")
        back = page.get_by_role("button", name="Roll back")
        back.click()
        expect(page.locator(".card").first).to_contain_text("deployment file's default")
        expect(back).to_be_disabled()  # nothing was active before
        page.get_by_role("button", name="Activate").click()
        expect(page.locator(".card").first).to_contain_text("specreason@1")
        kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert "sk-" not in kept


def test_a_wrong_parameter_is_named_each_time(browser: Browser, url: str) -> None:
    with page_of(browser, f"{url}/ui#/policies") as page:
        page.set_viewport_size({"width": 1200, "height": 300})
        page.get_by_text("Publish a version").click()
        page.locator("input[name=threshold]").fill("11")
        for _ in range(2):
            page.get_by_role("button", name="Publish").click()  # it scrolls to the button
            expect(page.locator("p.bad")).to_contain_text("threshold")
            expect(page.locator("p.bad")).to_be_in_viewport()


def test_a_parameter_without_a_value_differs_from_the_services_own(browser: Browser) -> None:
    with serving(made(params={"specreason": {"budget": 4096}})) as url:
        for params in {}, {"budget": None}:
            given = {"policy": "specreason", "params": params}
            assert HTTP.post(f"{url}/v1/policies", json=given).status_code == 201
        with page_of(browser, f"{url}/ui#/policies") as page:
            expect(page.locator(".version").first).to_contain_text("budget: 4096 → null")


def test_policies_changed_elsewhere_meanwhile(browser: Browser) -> None:
    with serving(made()) as url, page_of(browser, f"{url}/ui") as page:
        page.locator("#model option[value=specreason]").wait_for(state="attached")
        page.locator("#model").select_option("specreason")
        page.get_by_text("Parameters").click()
        page.locator("input[name=threshold]").fill("2.5")
        for policy in "specreason", "bild":
            assert HTTP.post(f"{url}/v1/policies", json={"policy": policy}).status_code == 201
        page.get_by_role("link", name="Policies").click()
        expect(page.locator(".policies")).to_contain_text("to specreason@1")
        assert HTTP.post(f"{url}/v1/policies", json={"policy": "coin"}).status_code == 201
        page.get_by_role("button", name="Roll back").click()  # to what it says beside it
        expect(page.locator(".card").first).to_contain_text("means specreason@1")
        page.get_by_text("Publish a version").click()
        page.get_by_role("button", name="Publish").dblclick()
        expect(page.locator(".card").first).to_contain_text("means bild@2")
        listed = HTTP.get(f"{url}/v1/policies").json()["data"]
        assert {"object": "baton.policy", "policy": "bild", "latest": 2} in listed
        page.get_by_role("link", name="Ask").click()
        page.locator("#model option[value='coin@1']").wait_for(state="attached")
        expect(page.locator("input[name=threshold]")).to_have_value("2.5")


@pytest.mark.parametrize("mistaken", ["sk-typo", "sk-user"])
def test_a_mistaken_key_locks_nothing(browser: Browser, mistaken: str) -> None:
    """Neither one that nobody has, nor one that may do less than its role."""
    with serving(keyed()) as url, page_of(browser, f"{url}/ui#/policies") as page:
        give(page, "an API key", "sk-user")
        give(page, "observer's key", mistaken)
        give(page, "observer's key", "sk-observer", wrong=True)
        expect(page.locator(".card").first).to_contain_text("deployment file's default")
        page.get_by_text("Publish a version").click()
        page.get_by_role("button", name="Publish").click()
        give(page, "needs the admin key", mistaken)
        expect(page.locator("dialog")).to_contain_text("needs the admin key")
        expect(page.locator("dialog")).to_contain_text("was not accepted")
        cancel(page)
        expect(page.locator("p.bad")).to_contain_text("this needs an admin key")
        page.goto(f"{url}/ui#/experiments")
        expect(page.get_by_text("No experiment has been started")).to_be_visible()
        page.goto(f"{url}/ui#/policies")
        page.get_by_role("button", name="Publish").click()
        give(page, "needs the admin key", "sk-admin")
        expect(page.locator(".card").first).to_contain_text("specreason@1")


def test_the_list_of_traces_asks_for_no_observers_key(browser: Browser) -> None:
    with serving(keyed()) as url:
        asked = post(url, headers={"authorization": "Bearer sk-user"})
        trace = asked.json()["baton"]["trace_id"]
        kept = {"authorization": "Bearer sk-observer"}
        until(lambda: HTTP.get(f"{url}/v1/traces/{trace}", headers=kept).status_code == 200)
        with page_of(browser, f"{url}/ui#/traces") as page:
            give(page, "an API key", "sk-user")
            expect(page.locator(".list tbody tr")).to_have_count(1)
            policy = page.locator("select[name=policy]")
            policy.locator("option[value=large-only]").wait_for(state="attached")
            assert policy.locator("option").all_text_contents()[0] == "all"
            assert policy.locator("option[value=baton]").count() == 0
            policy.select_option("large-only")
            expect(page.locator(".list tbody tr")).to_have_count(0)
            policy.select_option("specreason")
            expect(page.locator(".list tbody tr")).to_have_count(1)
            expect(page.locator("dialog")).to_have_count(0)


def test_docs_lists_every_endpoint_from_the_service_alone(browser: Browser) -> None:
    with serving(keyed()) as url, page_of(browser, url) as page:
        page.goto(f"{url}/docs")
        give(page, "an API key", "sk-user")
        expect(page.locator("summary", has_text="POST /v1/chat/completions")).to_be_visible()
        page.get_by_text("GET /v1/traces The latest requests").click()
        expect(page.locator("details[open]")).to_contain_text("min_large_tokens")
        expect(page.locator("details[open]")).to_contain_text("default 50")
        page.get_by_text("POST /v1/feedback").click()
        expect(page.locator("details[open]").first).to_contain_text("reward (required)number")


def test_a_key_that_was_not_given_is_asked_for_again_by_a_button_alone(browser: Browser) -> None:
    reads: list[str] = []
    with serving(keyed()) as url, page_of(browser, f"{url}/ui#/experiments") as page:
        page.on("request", lambda request: reads.append(request.url.removeprefix(url)))
        give(page, "an API key", "sk-user")
        expect(page.locator("dialog h2")).to_contain_text("observer's key")
        cancel(page)
        expect(page.locator("p.bad")).to_contain_text("needs an observer's key")
        page.goto(f"{url}/ui#/health")
        expect(page.locator(".glance")).to_contain_text("Well")
        expect(page.locator(".note")).to_contain_text("needs an observer's key")
        reads.clear()
        page.goto(f"{url}/ui#/experiments")
        expect(page.locator("nav a[data-tab=experiments]")).to_have_attribute(
            "aria-current", "page"
        )
        expect(page.locator("p.bad")).to_contain_text("needs an observer's key")
        assert "/v1/experiments" not in reads
        page.get_by_role("button", name="Enter a key").click()
        give(page, "observer's key", "sk-observer")
        expect(page.get_by_text("No experiment has been started")).to_be_visible()
        expect(page.locator("p.bad")).to_be_empty()
        page.goto(f"{url}/ui#/health")
        expect(page.get_by_text("being answered")).to_be_visible()
        expect(page.locator("dialog")).to_have_count(0)


def test_a_key_that_is_given_late_loads_what_is_shown_by_then(browser: Browser) -> None:
    with serving(keyed()) as url:
        user = {"authorization": "Bearer sk-user"}
        trace = post(url, headers=user).json()["baton"]["trace_id"]
        until(lambda: HTTP.get(f"{url}/v1/traces/{trace}", headers=user).status_code == 200)
        with page_of(browser, f"{url}/ui#/trace/{trace}") as page:
            cancel(page)
            expect(page.locator("p.bad")).to_contain_text("key")
            with page.expect_response("**/v1/models"):
                page.get_by_role("link", name="all requests").click()
            page.evaluate("fetch('health').then((reply) => reply.text())")
            page.get_by_role("button", name="Enter a key").click()
            give(page, "an API key", "sk-user")
            expect(page.locator(".list tbody tr")).to_have_count(1)


def test_an_experiments_readout(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experimenter, "UPDATE_S", 0.05)
    experiment = {
        "name": "thresholds",
        "unit": "request",
        "min_units": 5,
        "arms": [
            {"name": "strict", "policy": "specreason", "params": {"threshold": 9.5}},
            {"name": "lenient", "policy": "specreason", "params": {"threshold": 0}},
        ],
        "control": "lenient",
        "goal": {"metric": "large_tokens"},
        "guardrails": [{"metric": "error", "at_most": 0.5}],
        "ramp": {"steps": [1.0], "hold_s": 60},
    }
    with serving(made()) as url:
        assert HTTP.post(f"{url}/v1/experiments", json=experiment).status_code == 201
        for _ in range(24):
            assert post(url).status_code == 200
        report = f"{url}/v1/experiments/thresholds/report"

        def known() -> bool:
            past = HTTP.get(report).json()["readouts"]
            return bool(past) and past[-1]["intervals"].get("strict", [None])[-1] is not None

        until(known, 20)
        with page_of(browser, f"{url}/ui#/experiments") as page:
            expect(page.locator(".card")).to_contain_text("running")
            expect(page.locator(".arm")).to_have_count(2)
            expect(page.locator(".arm").last).to_contain_text("lenient (control)")
            expect(page.locator(".arm .params").first).to_have_text("threshold: 9.5")
            expect(page.locator(".arm .params").last).to_have_text("threshold: 0")
            expect(page.locator(".arm").first).not_to_contain_text("control")
            expect(page.locator("tr.goal")).to_contain_text("strict")
            rail = "error at most 0.5 (so far strict 0, lenient 0)"
            expect(page.locator(".card")).to_contain_text(rail)
            expect(page.locator(".card")).to_contain_text("ramp: step 1 of 1 (100 %)")
            # Of the time before the page was opened, too.
            band = page.locator(".overtime .band").first
            expect(band.locator("polygon")).to_be_attached()
            assert "strict: from" in (band.get_attribute("aria-label") or "")
            audit(page)
            fits_narrow(page)
            refused = {"error": {"message": "the log cannot be read"}}
            page.route("**/report", lambda route: route.fulfill(status=500, json=refused))
            page.get_by_role("link", name="Experiments").click()  # reads it again
            why = "There is no readout: the log cannot be read"
            expect(page.locator(".card")).to_contain_text(why)


def test_what_is_not_in_effect_is_named_on_every_tab_that_shows_it(browser: Browser) -> None:
    why = "params.gone: unknown parameter"
    with serving(service(store=spoiled())) as url, page_of(browser, f"{url}/ui#/policies") as page:
        now = page.get_by_label("What the model baton means")
        expect(now).to_contain_text("The model baton means specreason@1.")
        expect(now).to_contain_text(why)
        expect(now).to_contain_text("specreason, the deployment file's default, answers instead")
        expect(page.locator(".policies > [role=alert]")).to_contain_text("policy/active is not in")
        version = page.get_by_label("Versions").locator(".version")
        expect(version).to_contain_text("not in effect")
        expect(version.get_by_role("button", name="Activate")).to_have_count(0)
        page.goto(f"{url}/ui#/experiments")
        card = page.get_by_label("Experiment old")
        expect(card).to_contain_text("not in effect")
        expect(card).to_contain_text("kind: unknown parameter")
        page.goto(f"{url}/ui#/health")
        expect(page.locator(".glance")).to_contain_text("something that was published is not in")
        assert HTTP.post(f"{url}/v1/experiments/old/remove", json={}).status_code == 200
        assert HTTP.put(f"{url}/v1/policies/active", json={"version": None}).status_code == 200
        page.goto(f"{url}/ui#/policies")
        expect(page.get_by_label("What the model baton means")).not_to_contain_text(why)
        expect(page.locator(".policies > [role=alert]")).to_be_empty()


def test_health_says_well_or_ill_and_where(browser: Browser) -> None:
    pools = dict[str, str | None](small=None, large=None)

    async def troubles() -> dict[str, str | None]:
        return pools

    with serving(made(troubles=troubles)) as url, page_of(browser, f"{url}/ui#/health") as page:
        expect(page.locator(".glance")).to_contain_text("Well")
        page.set_viewport_size({"width": 400, "height": 300})
        expect(page.get_by_text("being answered")).to_be_attached()
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        pools["large"] = "its model loads"
        expect(page.locator(".glance")).to_contain_text("large pool does not answer: its model")
        expect(page.locator(".glance")).not_to_be_in_viewport()  # without a click
        card = page.get_by_label("Large model")
        expect(card).to_contain_text("does not answer")
        starting = {"ready": False, "workers": {}, "error": {"message": "it starts"}}
        page.route("**/ready", lambda route: route.fulfill(status=503, json=starting))
        expect(page.locator(".glance")).to_have_text("it starts")
        expect(card).to_have_count(0)  # and does not say what is no longer known


def test_a_poll_waits_for_the_one_before(browser: Browser, url: str) -> None:
    held: list[Route] = []
    with page_of(browser, url) as page:
        page.clock.install()
        page.route("**/ready", lambda route: held.append(route))
        with page.expect_request("**/ready"):
            page.get_by_role("link", name="Health").click()
        page.clock.run_for(60_000)
        page.evaluate("fetch('health').then((reply) => reply.text())")
        assert len(held) == 1


def test_the_lanes_follow_the_theme(browser: Browser, url: str) -> None:
    drawn = "document.querySelector('canvas').toDataURL()"
    with page_of(browser, url, color_scheme="light") as page:
        ask(page)
        ended(page)
        light = page.evaluate(drawn)
        page.get_by_role("button", name="Dark theme").click()
        dark = page.evaluate(drawn)
        page.get_by_role("button", name="Light theme").click()
        assert light != dark
        assert page.evaluate(drawn) == light


def test_a_tab_opens_although_the_service_is_gone(browser: Browser, url: str) -> None:
    with page_of(browser, url) as page:
        page.locator("#model option[value=specreason]").wait_for(state="attached")
        page.route("**/*", lambda route: route.abort())
        page.get_by_role("link", name="Health").click()
        expect(page.locator(".glance")).to_contain_text("cannot be reached")


def test_every_tab_is_accessible_and_fits_a_phone(browser: Browser, url: str) -> None:
    with page_of(browser, url, color_scheme="light", reduced_motion="reduce") as page:
        for tab in TABS:
            page.goto(f"{url}/ui#/{tab}")
            expect(page.locator(f"nav a[data-tab={tab}]")).to_have_attribute("aria-current", "page")
            if tab == "ask":
                ask(page)
                ended(page)
                page.keyboard.press("Escape")
                page.locator(".step").first.focus()
                page.keyboard.press("r")
            elif tab == "compare":
                page.get_by_role("button", name="Compare").click()
                expect(page.locator(".run[data-status=finished]")).to_have_count(2)
            elif tab == "traces":
                expect(page.locator(".list tbody tr").first).to_be_visible()
            elif tab == "policies":
                page.get_by_text("Publish a version").click()
            elif tab == "health":
                expect(page.locator(".card").first).to_be_visible()
            audit(page)
            page.emulate_media(color_scheme="dark")  # of what is audited, colours alone differ
            expect(page.locator("html")).to_have_attribute("data-theme", "dark")
            audit(page, runOnly=["color-contrast"])
            page.emulate_media(color_scheme="light")
            fits_narrow(page)
            page.set_viewport_size({"width": 1200, "height": 900})


def fits_narrow(page: Page) -> None:
    """At 360 pixels nothing lies beyond the page's edge, nor a card's text beyond the card's."""
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0
    beyond = """[...document.querySelectorAll(".card, .run")].filter(
        (card) => card.checkVisibility() && card.scrollWidth > card.clientWidth + 1
    ).map((card) => card.className)"""
    assert page.evaluate(beyond) == []


def audit(page: Page, **only: list[str]) -> None:
    """axe-core finds nothing serious or critical."""
    found = Axe().run(page, options={"resultTypes": ["violations"], **only}).response["violations"]
    grave = [
        (one["id"], [node["html"][:160] for node in one["nodes"]][:3])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert grave == []
