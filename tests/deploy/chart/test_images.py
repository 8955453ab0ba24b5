"""The Dockerfile: hadolint has nothing to say, and it names only what the repository has and pins what it installs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import rendered_chart
import yaml
from rendered_chart import CHART, REPOSITORY, rendered

DOCKERFILE = REPOSITORY / "deploy" / "Dockerfile"
TARGETS = {"planner", "validator", "admission"}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, in the stage that it belongs to."""

    stage: str
    word: str
    text: str


def instructions() -> Iterator[Instruction]:
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.M).replace("\\\n", " ")
    stage = ""
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            stage = rest.split(" AS ")[1]
        yield Instruction(stage, word, " ".join(rest.split()))


def in_stage(stage: str, word: str) -> list[str]:
    return [each.text for each in instructions() if (each.stage, each.word) == (stage, word)]


def test_hadolint_has_nothing_to_say() -> None:
    program = Path(sys.executable).with_name("hadolint")

    said = subprocess.run([program, "--failure-threshold", "style", DOCKERFILE], capture_output=True, text=True)

    assert (said.returncode, said.stdout) == (0, "")


def test_there_is_a_target_for_every_image_of_the_chart() -> None:
    stages = {each.stage for each in instructions() if each.word == "FROM"}
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    assert stages >= TARGETS
    images = {values[key]["repository"] for key in ("image", "validatorImage", "admissionImage")}
    assert images == {"planner", "planner-validator", "planner-admission"}


def copied() -> list[str]:
    """What is copied from the repository, not from another stage."""
    return [path for each in instructions() if each.word == "COPY" and "--from=" not in each.text
            for path in each.text.split()[:-1]]  # fmt: skip


def test_everything_that_is_copied_is_in_the_repository() -> None:
    assert [path for path in copied() if not (REPOSITORY / path).exists()] == []
    ignored = (REPOSITORY / "deploy" / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == set(copied())


def installs() -> dict[str, str]:
    return {each.stage: each.text for each in instructions() if each.word == "RUN" and each.text.startswith("pip")}


@pytest.mark.parametrize("stage", ["build-planner", "build-admission"])
def test_what_is_installed_is_pinned_and_known_to_the_project(stage: str) -> None:
    project: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = re.fullmatch(r"pip install --constraint constraints\.txt '\.\[([a-z,]+)\]'", installs()[stage])

    assert found
    assert set(found[1].split(",")) <= project["optional-dependencies"].keys()


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_no_image_runs_as_root(target: str) -> None:
    user = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["userId"]

    assert in_stage(target, "USER") == [f"{user}:{user}"]
    assert in_stage(target, "WORKDIR") == ["/tmp"]


def test_the_paper_gpu_is_built_where_the_service_looks_for_it() -> None:
    """With a root file system that is read-only it could not be built later."""
    (built,) = [each.split("=", 1)[1] for each in in_stage("build-planner", "ENV")]
    (told,) = [re.search(r"XDG_CACHE_HOME=(\S+)", each) for each in in_stage("service", "ENV")]

    assert told
    assert told[1] == built == "/opt/planner/cache"
    assert any("import planner.paper" in each for each in in_stage("build-planner", "RUN"))
    assert any("build_paper_gpu()" in each for each in in_stage("build-planner", "RUN"))


@pytest.mark.parametrize("name", ["webhook-cert-manager", "kueue"])
def test_doors_take_the_arguments_that_the_chart_gives_them(name: str) -> None:
    (container,) = next(
        pod.containers for pod in rendered_chart.pods(rendered(name)) if pod.owner.startswith("Deployment")
    )
    program, command = container["command"]
    assert program == "planner"

    said = subprocess.run(
        [sys.executable, "-m", "planner", command, "--help"], capture_output=True, text=True, timeout=600,
        cwd=REPOSITORY, check=True,
    ).stdout  # fmt: skip

    assert [each for each in container["args"] if each.split("=")[0] not in said] == []
