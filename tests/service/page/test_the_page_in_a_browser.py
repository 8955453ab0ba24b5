"""The page at `/` as people use it: in a real browser, over the service's own interface."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from accessibility import violations
from browser import PHONE, Browser, Keys
from real_service import TOKEN, RealService
from screenshots import photograph_if_asked
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe

from planner.job.loading import load_bundle, load_yaml
from planner.planning.plan import plan_job
from planner.report.class_timeline import timelines_of
from planner.report.html_pages import render_page
from planner.report.plan_text import step_sentence
from planner.report.style import size
from planner.service.history.job_table import JobChange, MeasuredRank

TINY = """\
metadata: {{name: {name}}}
model: {{decoder: {{layers: 2, hidden: 64, heads: 4, kv_heads: 4, ffn: 128, vocab: 256}}}}
train: {{micro_batch_size: {batch}, sequence_length: 32, optimizer: {{name: AdamW}}}}
cluster: {{nodes: 1, gpus_per_node: 1, gpu: H100-SXM-80GB}}
"""


OPACITY = "return getComputedStyle(document.getElementById('plan-result')).opacity"


@pytest.fixture
def page(tab: Browser) -> Iterator[Browser]:
    """The page opened by somebody who has the token; no script fails and no policy is broken on it."""
    tab.look()
    tab.open(token=TOKEN)
    tab.complaints()
    yield tab
    # A refusal of the service is in the browser's log as well: those are what a test is about.
    assert [each for each in tab.complaints() if "Failed to load resource" not in each] == []


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Two blocks of 10 MiB in segments of their own, the second given back: as PyTorch would record it."""
    mib = 2**20
    frames = [{"filename": "/opt/torch/nn.py", "line": 1, "name": "call"},
              {"filename": "/work/job/train.py", "line": 7, "name": "forward"}]  # fmt: skip

    def entry(action: str, address: int) -> dict[str, object]:
        return {"action": action, "addr": address, "size": 10 * mib, "stream": 0, "frames": frames}

    addresses = (0x7F0000000000, 0x7F0010000000)
    trace = [entry(action, address) for address in addresses for action in ("segment_alloc", "alloc")]
    trace += [entry(action, addresses[1]) for action in ("free_requested", "free_completed")]
    segments = [
        {"device": 0, "address": address, "total_size": 10 * mib, "stream": 0, "segment_type": "large",
         "blocks": [{"size": 10 * mib, "requested_size": 10 * mib, "state": state}]}
        for address, state in zip(addresses, ("active_allocated", "inactive"), strict=True)
    ]  # fmt: skip
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [trace], "segments": segments, "allocator_settings": {}}))
    return path


def plan_spec(page: Browser, name: str, batch: int = 2, spec: str = "") -> None:
    """Pastes the small job under this name, or another spec, and plans it."""
    page.click('input[name="source"][value="spec"]')
    page.run("arguments[0].value = arguments[1]", page.find("#spec"), spec or TINY.format(name=name, batch=batch))
    page.click("button.main")


def shown_verdict(page: Browser, name: str) -> str:
    """What is said of the job of this name, as soon as it is."""
    found: str = page.until(lambda: name in page.text("#verdict") and page.text("#verdict"), f"the verdict of {name}")
    return found


def test_a_model_that_is_picked_is_planned_without_anything_from_elsewhere(page: Browser, service: RealService) -> None:
    page.asked()
    page.find("#gpu option[value='T4-16GB']")
    for field, value in {"#model": "gpt2", "#count": "1", "#gpu": "T4-16GB", "#seq": "128"}.items():
        page.fill(field, value)
    page.click("button.main")

    assert shown_verdict(page, "gpt2") == "Fits gpt2"
    (stored,) = [each for each in service.history.plans.newest() if each.name == "gpt2"]
    (ranks,) = service.history.plans.rank_classes(stored.plan_id)
    assert page.text(".sentence").startswith(
        f"Rank 0 needs {size(ranks.device_bytes)}, {size(ranks.capacity_bytes)} available."
    )
    assert page.driver.current_url.endswith(f"#plans/{stored.plan_id}")
    assert page.text(".notes").splitlines() == [
        "taken: train.precision fp16_autocast (--precision bf16, fp16 or fp32)",
        "Assumed batches: sequences of one length without an attention mask (train.padding: none); no past_key_values "
        "in training (as transformers' Trainer has it).",
    ]
    (bar,) = page.all(".ranks svg")
    assert f"capacity {size(ranks.capacity_bytes)}" in (bar.get_attribute("aria-label") or "")
    page.find(".chart path.reserved")
    assert {re.sub(r"^(https?://[^/]+).*", r"\1", each) for each in page.asked()} == {service.url}
    photograph_if_asked(page, "plan")


def test_the_description_of_the_interface_needs_nothing_from_elsewhere(tab: Browser, service: RealService) -> None:
    tab.asked()
    tab.driver.get(f"{service.url}/docs")

    assert tab.until(lambda: len(tab.all(".opblock")), "the endpoints") > 15
    assert {re.sub(r"^(https?://[^/]+).*", r"\1", each) for each in tab.asked()} == {service.url}
    assert tab.complaints() == []


def test_a_moment_of_the_timeline_says_who_holds_what(page: Browser) -> None:
    plan_spec(page, "timeline")
    shown_verdict(page, "timeline")
    drawn = httpx.get(f"{page.url}/v1/plans/{page.text('.about a')}/timeline").json()
    at_peak = drawn["held"][drawn["at"].index(drawn["peak"]["event"])]
    holder = drawn["who"][at_peak[0][0]]
    peak = page.find(".chart").get_attribute("aria-valuetext")
    largest = page.text(".held tbody tr")

    page.find(".chart").send_keys(Keys.HOME)
    start = page.find(".chart").get_attribute("aria-valuetext")
    page.find(".chart").send_keys(Keys.END, Keys.ARROW_LEFT)
    end = int(page.find(".chart").get_attribute("aria-valuenow") or 0)

    assert start is not None
    assert start.startswith("load: allocated ")
    assert peak is not None
    assert "of iteration" in peak
    assert largest.startswith(f"{size(at_peak[0][1])} {holder['category']} ")
    assert holder["op"] in largest
    assert end == int(page.find(".chart").get_attribute("aria-valuemax") or 0) - 1
    page.run(
        "const box = arguments[0].getBoundingClientRect(); arguments[0].dispatchEvent("
        "new PointerEvent('pointermove', {clientX: box.left + box.width / 2, clientY: box.top + 50}))",
        page.find(".chart"),
    )  # fmt: skip
    middle = int(page.find(".chart").get_attribute("aria-valuenow") or 0)
    assert 0.3 * end < middle < 0.7 * end

    assert page.text(".chart .peak-bytes") == f"peak {size(drawn['peak']['allocated_bytes'])}"
    at = drawn["at"].index(drawn["peak"]["event"])
    chart = page.find(".chart").size["width"]
    assert (drawn["places"][at + 1] - drawn["places"][at]) * chart > 4
    mark = float(page.find(".chart circle.peak").get_attribute("cx") or 0)
    assert drawn["places"][at] * chart < mark < drawn["places"][at + 1] * chart + 70


def test_the_page_of_a_report_draws_the_same_without_a_service(tab: Browser, tmp_path: Path) -> None:
    result = plan_job(load_yaml(TINY.format(name="report", batch=2), "report"))
    events = [each.trace.events for each in result.traces]
    (tmp_path / "page.html").write_text(render_page(result.plan, timelines_of(result.plan, events, result.timelines)))
    tab.complaints()
    tab.driver.get(f"file://{tmp_path}/page.html")
    (ranks,) = result.plan.rank_classes
    peak = tab.find(".chart").get_attribute("aria-valuetext")

    assert tab.text(".chart .peak-bytes") == f"peak {size(ranks.peak.allocated_bytes)}"
    assert f"device\n{size(ranks.peak.device_bytes)}" in tab.text(".figures")
    assert tab.text("#shown > .scroll tbody tr").startswith(ranks.holders[0].category.value.replace("_", " "))
    tab.find(".chart").send_keys(Keys.HOME)
    assert tab.find(".chart").get_attribute("aria-valuetext") != peak
    assert tab.text(".held p").startswith("load: allocated ")
    assert violations(tab) == []
    assert tab.complaints() == []


def test_a_changed_value_is_planned_again_beside_what_it_was(page: Browser, service: RealService) -> None:
    plan_spec(page, "changed", batch=2)
    shown_verdict(page, "changed")
    first = page.text(".about a")
    page.fill("#what-if-train-micro_batch_size", "64")
    page.click("#what-if-form button")

    said = page.text(".difference")
    second = page.text(".about a")
    peaks = [service.history.plans.rank_classes(each)[0].device_bytes for each in (first, second)]
    assert said.startswith(f"Micro-batch, sequences: 2 to 64: {size(peaks[1])} at most in place of {size(peaks[0])}, ")
    assert "micro_batch_size: 64" in (page.find("#spec").get_attribute("value") or "")


def test_a_change_that_cannot_be_is_refused_at_its_field(page: Browser) -> None:
    plan_spec(page, "refused")
    shown_verdict(page, "refused")
    page.fill("#what-if-parallel-dp_shard-degree", "3")
    page.click("#what-if-form button")

    said = page.text("#what-if-problem [role=alert]")
    assert "Allowed" in said
    assert page.text("#verdict") == "Fits refused"


def test_what_is_wrong_with_a_spec_is_said_in_three_parts_at_its_line(page: Browser) -> None:
    page.click('input[name="source"][value="spec"]')
    wrong = TINY.format(name="wrong", batch=2).replace("micro_batch_size", "micro_batch")
    page.run("arguments[0].value = arguments[1]", page.find("#spec"), wrong)
    page.click("button.main")

    problem = page.find("#plan-problem [role=alert]")
    parts = dict(
        zip(*([each.text for each in problem.find_elements("css selector", tag)] for tag in ("dt", "dd")), strict=True)
    )
    assert problem.find_element("css selector", "b").text == "Unknown key `micro_batch` in train"
    assert parts["Where"] == "line 3, column 9 of the spec"
    assert parts["Allowed"].startswith("micro_batch_size, ")
    assert parts["To change"] == "write train: {micro_batch_size: 2}"
    assert page.focused.get_attribute("id") == "spec"
    assert page.focused.get_attribute("aria-invalid") == "true"
    selected = page.run("const t = document.activeElement; return t.value.slice(t.selectionStart, t.selectionEnd)")
    assert selected.startswith("micro_batch: 2")


@pytest.mark.parametrize(
    ("model", "said"),
    [("Qwen/Qwen3-8", "did you mean `Qwen/Qwen3-8B`?"), ("Qwen/Qwen3-9B", "send the content of its config.json")],
)
def test_an_unknown_model_is_answered_with_what_to_give_at_its_field(page: Browser, model: str, said: str) -> None:
    page.fill("#model", model)
    page.click("button.main")

    assert said in page.text("#plan-problem")
    assert page.focused.get_attribute("id") == "model"


def test_a_name_of_markup_stays_text(page: Browser) -> None:
    name = "<img src=x onerror=alert(1)>"
    plan_spec(page, "markup", spec=TINY.format(name=f"'{name}'", batch=2))

    assert shown_verdict(page, name) == f"Fits {name}"
    assert page.all("main img") == []


def test_who_has_no_token_is_asked_for_one_and_what_was_sent_is_sent_again(page: Browser) -> None:
    page.open()
    plan_spec(page, "with a token")

    assert page.text("#token-refusal") == "A bearer token is needed to write"
    page.find("#token").send_keys("of another service", Keys.ENTER)
    page.until(lambda: "not known" in page.text("#token-refusal"), "that this token is wrong")
    page.fill("#token", TOKEN)
    page.press(Keys.ENTER)
    assert shown_verdict(page, "with a token") == "Fits with a token"


def test_who_gives_no_token_is_told_that_one_is_needed(page: Browser) -> None:
    page.open()
    plan_spec(page, "without a token")
    page.find("#token")
    page.press(Keys.ESCAPE)

    assert "A bearer token is needed to write" in page.text("#plan-problem [role=alert]")


def test_a_stored_plan_is_read_without_a_token_and_planned_from_what_is_shown(
    page: Browser, service: RealService
) -> None:
    plan_spec(page, "of a colleague")
    shown_verdict(page, "of a colleague")
    plan_id = page.text(".about a")
    page.open(f"#plans/{plan_id}")

    assert shown_verdict(page, "of a colleague") == "Fits of a colleague"
    page.find(".held tbody tr")
    assert page.run("return document.getElementById('token-dialog').open") is False
    assert page.all("#plan-problem [role=alert]") == []
    shown = load_bundle(json.loads(page.find("#spec").get_attribute("value") or ""))
    stored = service.history.plans.get(plan_id)
    assert stored is not None
    assert shown == load_bundle(stored.job)
    assert stored.step is not None
    assert page.text(".step-time") == step_sentence(stored.step)


def test_a_plan_of_before_is_dimmed_while_another_is_made_and_gone_where_there_is_none(
    page: Browser, service: RealService
) -> None:
    plan_spec(page, "before")
    shown_verdict(page, "before")
    assert page.run(OPACITY) == "1"
    service.plan_provider.slow.add("next")
    plan_spec(page, "next", batch=6)

    page.find("#plan-progress")
    assert float(page.run(OPACITY)) < 0.6
    assert page.text("#verdict") == "Fits before"
    service.plan_provider.slow.discard("next")
    assert shown_verdict(page, "next") == "Fits next"
    assert page.run(OPACITY) == "1"
    page.run("location.hash = '#plans/pl-' + 'z'.repeat(26)")
    assert "there is no plan" in page.text("#plan-problem [role=alert]").lower()
    assert page.all("#plan-result > *") == []


def test_capacity_has_what_jobs_ask_for_and_take_and_what_would_fit_elsewhere(
    page: Browser, service: RealService
) -> None:
    plan_spec(page, "waiting")
    shown_verdict(page, "waiting")
    plan_id = page.text(".about a")
    (ranks,) = service.history.plans.rank_classes(plan_id)
    service.history.jobs.bind("slurm", "1", JobChange(plan_id=plan_id, team="nlp", queue="h100"))
    page.click('nav a[href="#capacity"]')

    rows = page.find("section[aria-label='By team']").find_elements("css selector", "tbody tr")
    (row,) = [each.text for each in rows if each.text.startswith("nlp h100")]
    assert row.startswith(f"nlp h100 H100-SXM-80GB 1 1 {size(ranks.capacity_bytes)} {size(ranks.device_bytes)} ")
    page.find("#capacity-gpu option[value='T4-16GB']")
    page.fill("#capacity-gpu", "T4-16GB")
    page.click("#capacity-form button")
    said = page.text("#capacity-elsewhere")
    told = httpx.get(f"{page.url}/v1/capacity?on=T4-16GB").json()
    assert f"Open jobs on T4-16GB (14.56 GiB): {told['on'][0]['jobs']['fits']:g} fit, " in said
    assert "fits slurm/1 waiting H100-SXM-80GB 1 " in said
    assert violations(page) == []


def test_a_slow_plan_says_how_long_it_takes_and_can_be_left(page: Browser, service: RealService) -> None:
    service.plan_provider.slow.add("slow")
    plan_spec(page, "slow", batch=5)

    page.until(lambda: "tracing the training step" in page.text("#plan-progress"), "what is done")
    page.until(lambda: re.search(r"[1-9] s$", page.text("#plan-progress")), "the seconds")
    assert page.find("#plan-progress").get_attribute("role") == "status"
    page.click("#stop-plan")
    page.until(
        lambda: not page.find("button.main").find_elements("xpath", "../../div[@id='plan-progress'][not(@hidden)]"),
        "an end",
    )

    plan_spec(page, "slow", batch=5)
    page.find("#plan-progress")
    service.plan_provider.slow.discard("slow")
    assert shown_verdict(page, "slow") == "Fits slow"


def test_a_job_is_planned_by_keys_alone(page: Browser) -> None:
    page.find("#gpu option")
    page.press(Keys.TAB)
    assert page.focused.text == "To the content"
    page.press(Keys.ENTER)
    page.press(Keys.TAB, Keys.ARROW_RIGHT, Keys.TAB)
    assert page.focused.get_attribute("id") == "spec"
    page.press(TINY.format(name="keys", batch=3))
    page.press(Keys.TAB, Keys.ENTER)

    assert shown_verdict(page, "keys") == "Fits keys"
    assert page.focused.get_attribute("id") == "verdict"
    page.find(".held tbody tr")
    page.press(Keys.TAB)
    assert page.focused.text == "rank 0"
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press(Keys.TAB, Keys.ARROW_LEFT)
    assert page.focused.get_attribute("role") == "slider"


def test_history_sets_predicted_beside_measured(page: Browser, service: RealService) -> None:
    plan_spec(page, "measured")
    shown_verdict(page, "measured")
    plan_id = page.text(".about a")
    (ranks,) = service.history.plans.rank_classes(plan_id)
    measured = MeasuredRank(rank=0, device_bytes=ranks.device_bytes - 2**27)
    service.history.jobs.bind("slurm", "4711", JobChange(plan_id=plan_id, measured=(measured,)))
    page.click('nav a[href="#history"]')

    jobs = page.find("section[aria-label=Jobs]")
    (row,) = [each.text for each in jobs.find_elements("css selector", "tbody tr") if "slurm/4711" in each.text]
    error = 100 * 2**27 / (ranks.device_bytes - 2**27)
    assert f"{size(ranks.device_bytes)} {size(ranks.device_bytes - 2**27)} +{error:.2f} %" in row
    assert jobs.find_elements("css selector", "svg.scatter circle")
    first = page.find("section[aria-label=Plans] tbody th").text
    page.click("section[aria-label=Plans] thead button")
    head = page.find("section[aria-label=Plans] thead th")
    names = [each.text for each in page.all("section[aria-label=Plans] tbody th")]
    assert head.get_attribute("aria-sort") == "ascending"
    assert names == sorted(names, key=str.casefold)
    assert first in names
    jobs.find_element("link text", "measured").click()
    assert shown_verdict(page, "measured") == "Fits measured"


def test_what_is_written_into_a_field_is_seen_whole(page: Browser) -> None:
    page.find("#gpu option[value='T4-16GB']")
    page.click('nav a[href="#snapshot"]')

    conf = page.find("#snapshot-conf")
    assert conf.get_attribute("value") == "expandable_segments:True"
    room = "const it = arguments[0]; it.style.paddingRight = '2.2em'; return it.clientWidth - it.scrollWidth"
    assert page.run(room, conf) >= 0


def test_a_snapshot_that_is_dropped_is_explained(page: Browser, snapshot: Path) -> None:
    page.click('nav a[href="#snapshot"]')
    page.find("#snapshot-file").send_keys(str(snapshot))
    page.click("#snapshot-form button")

    said = page.text("#snapshot-result")
    assert "At most 0.02 GiB were allocated and 0.02 GiB reserved in 3 events" in said
    assert "2 of 2 addresses" in said
    assert "With expandable_segments:True it would have reserved" in said
    assert "train.py:7 forward" in page.text(".held tbody tr")
    assert page.find(".chart").get_attribute("aria-valuetext") == (
        "event 1: allocated 0.02 GiB, reserved 0.02 GiB; most in other /work/job/train.py:7 forward"
    )


def test_what_is_no_snapshot_is_refused_at_its_field(page: Browser, tmp_path: Path) -> None:
    (tmp_path / "weights.pickle").write_bytes(b"no pickle at all")
    page.click('nav a[href="#snapshot"]')
    page.find("#snapshot-file").send_keys(str(tmp_path / "weights.pickle"))
    page.click("#snapshot-form button")

    assert "Not a pickle" in page.text("#snapshot-problem")
    assert page.focused.get_attribute("id") == "snapshot-file"


class NotedStage:
    """A stage of torch's pipeline that computes nothing and notes what it is told to."""

    def __init__(self, stage_index: int) -> None:
        self.stage_index, self.done = stage_index, list[list[Any]]()

    def forward_one_chunk(self, batch: int, *_: Any, **__: Any) -> None:
        self.done.append(["F", batch])

    def backward_one_chunk(self, batch: int, **_: Any) -> None:
        self.done.append(["B", batch])

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: []


def order_of_torch(kind: Any, degree: int, batches: int, rank: int) -> list[list[Any]]:
    """What a schedule of torch has a rank's stage do. Its `_get_pipeline_order` is not asked: of 1F1B it leaves the
    first forward of the last rank out (torch 2.13)."""
    schedule, stage = object.__new__(kind), NotedStage(rank)
    arguments = [()] * batches, [{}] * batches
    for name, value in {"_stage": stage, "_num_stages": degree, "_n_microbatches": batches, "scale_grads": False,
                        "_check_inputs": lambda *_: arguments}.items():  # fmt: skip
        setattr(schedule, name, value)
    for name in ("_initialize_stage", "_maybe_compute_loss", "_maybe_get_loss", "_update_losses"):
        setattr(schedule, name, lambda *_: None)
    schedule._step_microbatches()
    return stage.done


@pytest.mark.parametrize(("schedule", "kind"), [("GPipe", ScheduleGPipe), ("1F1B", Schedule1F1B)])
def test_the_order_of_a_pipeline_is_torchs(page: Browser, schedule: str, kind: Any) -> None:
    degree, batches = 4, 9
    wanted = [order_of_torch(kind, degree, batches, rank) for rank in range(degree)]

    found = page.driver.execute_async_script(
        "const [schedule, degree, batches, done] = arguments;"
        "import('./assets/page/pipeline_order.js').then((it) => done(it.ordersOf(schedule, degree, batches)), done)",
        schedule, degree, batches,
    )  # fmt: skip

    assert found == wanted


def test_a_pipeline_shows_its_places_how_long_it_idles_and_in_the_history_its_fullest_rank(
    page: Browser, service: RealService
) -> None:
    spec = TINY.format(name="pipeline", batch=1).replace("gpus_per_node: 1", "gpus_per_node: 2")
    spec = spec.replace("layers: 2, hidden: 64", "layers: 5, hidden: 512")
    spec = spec.replace("train: {", "train: {gradient_accumulation_steps: 4, ") + "parallel: {pp: {degree: 2}}\n"
    plan_spec(page, "pipeline", spec=spec)
    shown_verdict(page, "pipeline")

    section = page.find("section[aria-labelledby=pipeline]")
    # (degree - 1) of (micro-batches + degree - 1), whatever an action takes
    assert "idle: 20.0 %" in section.text
    assert len(section.find_elements("css selector", "svg.order rect")) == 2 * 2 * 4
    rows = [each.text for each in section.find_elements("css selector", "tbody tr")]
    classes = service.history.plans.rank_classes(page.text(".about a"))
    assert [row.split()[:3] for row in rows] == [["0", "0", "2"], ["1", "1", "1"]]
    taken = [each.device_bytes for each in classes]
    assert all(size(each) in row for each, row in zip(taken, rows, strict=True))
    page.click('nav a[href="#history"]')
    plans = page.find("section[aria-label=Plans]").find_elements("css selector", "tbody tr")
    (row,) = [each.text for each in plans if each.text.startswith("pipeline")]
    assert len(set(taken)) == 2
    assert f"{size(max(taken))} {size(classes[0].capacity_bytes)}" in row


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_view_is_accessible(page: Browser, snapshot: Path, dark: bool) -> None:
    page.look(dark=dark)
    plan_spec(page, "accessible")
    shown_verdict(page, "accessible")
    page.find(".held tbody tr")
    for each in page.all("details"):
        page.run("arguments[0].open = true", each)
    assert violations(page) == []
    page.look(size=PHONE, dark=dark)
    assert page.run("return document.documentElement.scrollWidth") == PHONE[0]
    page.look(dark=dark)

    page.click('nav a[href="#snapshot"]')
    page.find("#snapshot-file").send_keys(str(snapshot))
    page.click("#snapshot-form button")
    page.find("#snapshot-result .held tbody tr")
    assert violations(page) == []

    page.click('nav a[href="#history"]')
    page.find("#history-body tbody tr")
    assert violations(page) == []
    background = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) < 200) is dark
