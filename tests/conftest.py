"""What every test stands on: the paper GPU, in the process before torch, and sums that hold in any plan."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import prometheus_server
import pytest
import soak
from allowed_skips import LIST, new_skips, read_allowed
from hypothesis import settings

from planner import (
    cuda_on_paper,
    paper,  # before anything imports torch
)
from planner.cuda_on_paper import PaperGpu
from planner.errors import TorchVersionError
from planner.hardware import catalog
from planner.planning import judging
from planner.report.statement import RankClassStatement
from planner.runtime.user_cache import NONE
from planner.upstream import torch_releases

# What the tests' libraries have made stays: to look through it again and again takes a twentieth of the time.
gc.set_threshold(100_000, 50, 1000)

# The GPU of this process; jobs of another architecture are traced in children.
cuda_on_paper.take_gpu(PaperGpu("H100-SXM-80GB", "sm_90", catalog.gpus()["H100-SXM-80GB"].total_bytes, 8))
# Autograd counts the devices with the first backward, which in some process is one on the CPU.
with paper.gpu("sm_90"):
    pass

# How long an example takes hinges on what else the machine does.
settings.register_profile("without deadlines", parent=settings.default, deadline=None)
settings.load_profile("without deadlines")

# A trace that was kept would be no test of tracing.
os.environ["PLANNER_CACHE"] = NONE

# The torch under test is that of this process, whatever a command or a spec names.
os.environ["PLANNER_PYTHON"] = "here"


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """What needs a Ray of its own is marked as what starts other clusters is: one at a time. What takes long, by its
    list."""
    of_whole_files = not any("::" in argument for argument in config.args)
    soak.mark_soak_cases(items, soak.LIST.read_text(encoding="utf-8"), of_whole_files=of_whole_files)
    for item in items:
        if "ray_session" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # a training step collects garbage: it does not look through torch and what earlier tests have made
    yield from _skip_what_torch_lacks()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    yield from _skip_what_torch_lacks()


def _skip_what_torch_lacks() -> Iterator[None]:
    try:
        yield
    except TorchVersionError as error:
        if is_tested_torch():  # which lacks nothing
            raise
        pytest.skip(error.problem)


def is_tested_torch() -> bool:
    """Whether the torch of this process is that of constraints.txt, with which no test may be left out."""
    pinned = re.search(r"^torch==(\d+)\.(\d+)", _CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    return pinned is not None and torch_releases.installed() == (int(pinned[1]), int(pinned[2]))


_CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
_SKIPPED: list[tuple[str, str]] = []
"""Names of tests, or of whole files, with why they were skipped."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_skip(report)


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _SKIPPED.append((report.nodeid, reason.removeprefix("Skipped: ")))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skip that nobody has allowed fails CI."""
    if session.exitstatus == pytest.ExitCode.OK and _new_skips_of_ci(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for sentence in _new_skips_of_ci(config):
        terminalreporter.write_line(f"{sentence} (tests/allowed_skips.txt)", red=True)


def _new_skips_of_ci(config: pytest.Config) -> list[str]:
    """Empty elsewhere, and in the processes of pytest-xdist, which report to the first one."""
    if not os.environ.get("CI") or hasattr(config, "workerinput"):
        return []
    return new_skips(_SKIPPED, read_allowed(LIST.read_text(encoding="utf-8")))


@pytest.fixture(autouse=True)
def every_plan_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever plan a test makes, by whichever hook: its figures agree with each other to the byte."""
    real = judging.Judge.judge

    def judge(*arguments: Any) -> Any:
        judged = real(*arguments)
        adds_up(judged.statement)
        return judged

    monkeypatch.setattr(judging.Judge, "judge", judge)


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """The path of a program of this machine; in CI it has to be there, elsewhere the test is skipped without it."""
    return prometheus_server.program


def adds_up(statement: RankClassStatement) -> None:
    """Categories, holders and phases tell the same peak; no phase ends above its peak."""
    peak, phases = statement.peak, statement.phases
    assert sum(statement.at_peak.values()) == peak.allocated_bytes
    if len(statement.holders) < 1000:  # the list is cut there
        assert sum(holder.bytes for holder in statement.holders) == peak.allocated_bytes
    assert max(phase.peak_allocated_bytes for phase in phases) == peak.allocated_bytes
    assert max(phase.peak_reserved_bytes for phase in phases) <= peak.reserved_bytes
    assert peak.device_bytes == peak.reserved_bytes + statement.outside_allocator.total_bytes
    assert peak.interval_bytes[0] <= peak.device_bytes <= peak.interval_bytes[1]
    for phase in phases:
        assert phase.end_allocated_bytes <= phase.peak_allocated_bytes <= phase.peak_reserved_bytes
        assert phase.peak_allocated_bytes <= peak.allocated_bytes
    assert is_in_order([(phase.iteration, phase.phase) for phase in phases])


def is_in_order(seen: Sequence[tuple[int, Any]]) -> bool:
    """Iterations count up, and each phase of one comes once."""
    return len(set(seen)) == len(seen) and [iteration for iteration, _ in seen] == sorted(i for i, _ in seen)
