"""The README's first screen shows what `planner run` prints of a program of the examples."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from program_runs import judge

from planner.report.plan_text import render
from planner.report.style import Style

REPOSITORY = Path(__file__).parents[3]


def test_the_readme_shows_what_the_run_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    readme = Path("README.md").read_text(encoding="utf-8")
    shown = readme.partition("$ planner run ")[2].partition("```")[0].splitlines()
    options, _, command = shown[0].partition(" -- ")
    assert options == "--gpu A100-SXM-40GB"

    found = judge(*shlex.split(command), gpu="A100-SXM-40GB")

    printed = render(found, Style()).splitlines()
    assert len(shown) > 9
    assert [line for line in shown[1:] if line != "[...]" and line not in printed] == []
