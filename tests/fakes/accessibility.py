"""Runs axe-core, Deque's rules for accessible pages, in a browser."""

from __future__ import annotations

from functools import cache
from importlib import resources

from browser import Browser


def violations(browser: Browser) -> list[str]:
    """What breaks a rule of what is shown now: the rule, how it is mended, and the elements."""
    if not browser.run("return Boolean(window.axe)"):
        browser.run(_program())
    found = browser.driver.execute_async_script(
        "axe.run(document, {resultTypes: ['violations']}).then(r => arguments[0](r.violations), e => arguments[0](e))"
    )
    return [f"{each['id']}: {each['help']}: {[node['html'][:150] for node in each['nodes']]}" for each in found]


@cache
def _program() -> str:
    return resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
