"""The console's files: headers, links, weight; no browser needed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from orchestrator.http.auth import Access, Keys
from orchestrator.http.routes.console import FILES
from tests.orchestrator.serving import HTTP, service, serving

HEAVIEST = 600_000  # bytes of the whole page, fonts and typesetter included
NAMES = sorted(str(path.relative_to(FILES)) for path in FILES.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(service(access=Access(Keys(["sk-one"])))) as url:
        yield url


def test_a_browser_that_asks_for_the_root_is_sent_there(url: str) -> None:
    reply = HTTP.get(f"{url}/", headers={"accept": "text/html,*/*"})
    assert (reply.status_code, reply.headers["location"]) == (307, "ui")
    assert HTTP.get(f"{url}/").json()["error"]["code"] == "not_found"
    assert HTTP.get(f"{url}/ui/").headers["location"] == "../ui"
    assert HTTP.get(f"{url}/ui").text.startswith("<!doctype html>")


@pytest.mark.parametrize("name", ["", *(f"/{name}" for name in NAMES)])
def test_every_file_needs_no_key_and_comes_with_a_strict_policy(url: str, name: str) -> None:
    reply = HTTP.get(f"{url}/ui{name}")
    assert reply.status_code == 200
    policy = reply.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    again = HTTP.get(f"{url}/ui{name}", headers={"if-none-match": reply.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize(
    "path", ["nonesuch.js", "../app.py", "%2e%2e/app.py", "..%2fapp.py", "views", "/etc/passwd"]
)
def test_nothing_else_is_served(url: str, path: str) -> None:
    assert HTTP.get(f"{url}/ui/{path}").status_code in (401, 404)


def test_files_are_only_read(url: str) -> None:
    assert HTTP.post(f"{url}/ui/app.js").status_code == 401
    with serving(service()) as bare:
        assert HTTP.post(f"{bare}/ui/app.js").status_code == 405
        assert HTTP.head(f"{bare}/ui/app.js").status_code == 200


def test_the_page_is_light_and_names_no_other_place() -> None:
    assert sum((FILES / name).stat().st_size for name in NAMES) < HEAVIEST
    own = [name for name in NAMES if not name.startswith("vendor/")]
    for name in own:
        text = (FILES / name).read_text(encoding="utf-8")
        places = set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}
        assert not places, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


def test_every_import_is_there() -> None:
    for name in NAMES:
        if name.endswith(".js") and not name.startswith("vendor/"):
            text = (FILES / name).read_text(encoding="utf-8")
            for link in re.findall(r"(?:from|import\()\s*\"(\.[^\"]+)\"", text):
                assert ((FILES / name).parent / link).resolve().is_file(), (name, link)
