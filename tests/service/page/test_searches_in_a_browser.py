"""Searches on the page: candidates as they are found, as a table that sorts and a picture; ended, refused, planned."""

from __future__ import annotations

import pytest
from accessibility import violations
from browser import PHONE, Browser
from real_service import TOKEN, RealService

from planner.report.style import size

SPEC = """\
metadata: {name: searched}
model: {decoder: {layers: 4, hidden: 128, heads: 4, kv_heads: 2, ffn: 256, vocab: 512}}
train: {micro_batch_size: 4, sequence_length: 64, gradient_accumulation_steps: 2}
parallel: {dp_replicate: 2}
cluster: {nodes: 1, gpus_per_node: 2, gpu: H100-SXM-80GB}
"""
AXES = "pp=1 tp=1 cp=1 recompute=none,full micro_batch_size=2 allocator=default"


@pytest.fixture
def page(tab: Browser) -> Browser:
    """The search view, for a job that is pasted into the plan view."""
    tab.look()
    tab.open(token=TOKEN)
    tab.click('input[name="source"][value="spec"]')
    tab.run("arguments[0].value = arguments[1]", tab.find("#spec"), SPEC)
    tab.click('nav a[href="#search"]')
    tab.fill("#search-axes", AXES)
    tab.fill("#search-seconds", "250")
    return tab


def ended(page: Browser, state: str) -> str:
    said: str = page.until(
        lambda: f"The search is {state}" in page.text("#search-progress") and page.text("#search-progress"), state
    )
    return said


def test_what_fits_is_a_table_that_sorts_and_a_picture_and_is_planned_by_a_button(
    page: Browser, service: RealService
) -> None:
    page.click("#search-form button.main")
    said = ended(page, "done")
    rows = page.all("#search-result tbody tr")
    assert f"{len(rows)} shown" in said
    assert len(rows) > 2
    assert len(page.all("#search-result svg.scatter circle")) == len(rows)
    assert violations(page) == []
    page.look(size=PHONE)
    assert page.run("return document.documentElement.scrollWidth") == PHONE[0]
    page.look()

    page.click("#search-result thead th:nth-child(3) button")
    sizes = [each.text for each in page.all("#search-result tbody td:nth-child(3)")]
    assert sizes == sorted(sizes)
    page.click("#search-result tbody tr:last-child button")
    assert "searched" in page.text("#verdict")
    (ranks,) = service.history.plans.rank_classes(page.text(".about a"))[:1]
    assert size(ranks.device_bytes) == sizes[-1]


def test_a_search_says_how_far_it_is_and_is_stopped(page: Browser, service: RealService) -> None:
    service.searches.groups.held.set()
    page.fill("#search-top", "3")
    page.click("#search-form button.main")
    page.until(lambda: "candidates looked at" in page.text("#search-progress"), "how far it is")

    page.click("#stop-search")
    service.searches.groups.held.clear()
    assert "(cancelled)" in ended(page, "stopped")


def test_what_cannot_be_searched_is_refused_at_its_field(page: Browser) -> None:
    page.fill("#search-axes", "recompute=sometimes")
    page.click("#search-form button.main")

    assert "sometimes" in page.text("#search-problem [role=alert]")
