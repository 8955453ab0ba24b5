"""The page, its files and the description of the interface: all from here, under a policy that says so."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from planner.report.style import DARK, LIGHT
from planner.service.web import assets

Asgi = Callable[..., TestClient]
ELSEWHERE = re.compile(rb"""(?:src|href|url|import|fetch)\s*[=(]?\s*["'(]?\s*(?:https?:)?//""")
OURS = sorted(name for name in assets.names() if name.startswith("page/"))


@pytest.mark.parametrize("path", ["/", "/docs", "/assets/page/app.js", "/assets/swagger-ui/swagger-ui.css"])
def test_a_browser_is_told_to_load_from_here_only(asgi: Asgi, path: str) -> None:
    answer = asgi().get(path)

    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert answer.status_code == 200
    assert policy["default-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", OURS)
def test_a_file_of_ours_names_nothing_elsewhere_and_has_no_inline_code(name: str) -> None:
    found = assets.find(name)
    assert found is not None

    assert not ELSEWHERE.search(found.content)
    if name.endswith(".html"):
        assert re.findall(rb"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", found.content) == []


def test_a_file_is_sent_once_until_it_changes(asgi: Asgi) -> None:
    client = asgi()
    first = client.get("/assets/page/page.css")
    again = client.get("/assets/page/page.css", headers={"If-None-Match": first.headers["etag"]})

    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


@pytest.mark.parametrize("name", ["page/none.js", "../__init__.py", "page/..%2f..%2fassets.py", "assets.py", "page/"])
def test_what_is_no_file_of_the_page_is_not_found(asgi: Asgi, name: str) -> None:
    answer = asgi().get(f"/assets/{name}")

    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_categories_have_the_colours_of_all_other_charts(asgi: Asgi) -> None:
    light, _, dark = asgi().get(f"/assets/{assets.CATEGORY_COLORS}").text.partition("prefers-color-scheme: dark")

    assert re.findall(r"--(\w+): (#\w+);", light) == [(category.value, color) for category, color in LIGHT.items()]
    assert re.findall(r"--(\w+): (#\w+);", dark) == [(category.value, color) for category, color in DARK.items()]


def test_what_is_vendored_lies_beside_its_licence() -> None:
    vendored = {name for name in assets.names() if name.startswith("swagger-ui/")}

    assert {"swagger-ui/LICENSE.txt", "swagger-ui/NOTICE.txt", "swagger-ui/swagger-ui-bundle.js.LICENSE.txt"} < vendored
