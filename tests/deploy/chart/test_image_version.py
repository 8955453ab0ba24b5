"""What an image is built from decides its version: its context has no `.git`, and all images would be one version."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rendered_chart import REPOSITORY

STAND_IN = """
def get_version(root, *, local_scheme, fallback_version):
    return fallback_version
"""
"""setuptools-scm, which is there only while planner is built, where it finds no tag."""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """What `docker build` copies of the repository."""
    folder = tmp_path / "context"
    ignored = (REPOSITORY / "deploy" / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    for name in (line.removeprefix("!") for line in ignored if line.startswith("!")):
        source, target = REPOSITORY / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    (tmp_path / "build" / "setuptools_scm").mkdir(parents=True)
    (tmp_path / "build" / "setuptools_scm" / "__init__.py").write_text(STAND_IN)
    return folder


def version_of(context: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-B", "-c", "from build_version import of_sources; print(of_sources())"],
        cwd=context, env={"PYTHONPATH": str(context.parent / "build")}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ended.stdout.strip()


@pytest.mark.parametrize("name", ["planner/planning/identity.py", "planner/paper/native/new.cpp", "constraints.txt"])
def test_images_of_other_sources_have_other_versions(context: Path, name: str) -> None:
    before = version_of(context)
    again = version_of(context)
    with (context / name).open("a") as file:
        file.write("\n")

    assert before == again
    assert before.startswith("0.1.0+s")
    assert version_of(context) != before


def test_a_checkout_has_the_version_of_its_history(context: Path) -> None:
    (context / ".git").write_text("gitdir: elsewhere")

    assert version_of(context) == "0.1.0"
