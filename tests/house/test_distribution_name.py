"""What is installed is called by a name of its own: the registry's `planner` is somebody else's package."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner import distribution

REPOSITORY = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOLDERS = ("benchmarks", "deploy", "docs", "examples", "helm", "planner", "tests")
OF_ANOTHER = re.compile(r"pip3? install\b[^\n`]*?[\s'\"]planner(?![\w./-])|(?<![\w-])planner\[[a-z]+[\],]")

BY_NAME = re.compile(rf"pip3? install\b[^\n`]*(?:{distribution.NAME}|\{{NAME\}})[^\n`]*")


def texts() -> Iterator[tuple[str, str]]:
    """Every text that people or machines read, by its path; this file and recorded data are none."""
    found = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*") if "__pycache__" not in path.parts]
    for path in [*found, *(each for each in REPOSITORY.iterdir() if each.name != ".git")]:
        name = str(path.relative_to(REPOSITORY))
        if path.is_file() and path != Path(__file__) and not name.startswith("tests/data"):
            yield name, path.read_text(encoding="utf-8", errors="replace")


def test_nobody_is_told_to_install_another_package() -> None:
    assert [(name, found[0]) for name, text in texts() for found in OF_ANOTHER.finditer(text)] == []


def test_people_install_from_a_checkout_or_a_wheel_until_the_name_is_on_an_index() -> None:
    known = list(texts())

    assert [(name, found[0]) for name, text in known for found in BY_NAME.finditer(text)] == []
    assert "pip install '.[plan]'" in dict(known)["README.md"]


def test_the_pattern_finds_what_it_is_for() -> None:
    wrong = ["pip install planner", "pip install 'planner[plan]'", "planner[plan,service]", "pip3 install -U planner\n"]
    right = ["gpu-memory-planner", "'gpu-memory-planner[plan]'", "pip install ./planner-0.1.0.whl"]

    assert [bool(OF_ANOTHER.search(each)) for each in wrong + right] == [True] * 4 + [False] * 3


def test_the_project_has_the_name_that_remedies_say() -> None:
    assert PROJECT["name"] == distribution.NAME
    assert PROJECT["scripts"] == {"planner": "planner.cli:main"}
    assert "version" in PROJECT["dynamic"]  # of the tag
    assert distribution.version() == importlib.metadata.version(distribution.NAME)


def test_environments_of_a_torch_get_what_planning_needs() -> None:
    others = [each for each in EXTRAS["plan"] if not each.startswith("torch")]

    assert {*distribution.PLANNING} == {*PROJECT["dependencies"], *others}


def test_remedies_name_what_the_extras_bring() -> None:
    brought = {name: [each for each in extra if "planner" not in each] for name, extra in EXTRAS.items()}

    assert {name: list(each) for name, each in distribution.EXTRAS.items()} == {
        name: extra for name, extra in brought.items() if name != "dev"
    }


def test_extras_are_built_on_this_projects_own() -> None:
    own = [each for extra in EXTRAS.values() for each in extra if "planner" in each]

    assert own
    assert {re.fullmatch(rf"{distribution.NAME}\[(\w+)\]", each)[1] for each in own} <= EXTRAS.keys()  # type: ignore[index]


def test_every_remedy_names_an_extra_that_there_is() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "planner").rglob("*.py")]
    said = re.compile(r'install_command\("(\w+)"\)|refuse_without\([^=]*extra="(\w+)"')
    named = {found[1] or found[2] for text in sources for found in said.finditer(text)}

    assert named == {"completion", "deepspeed", "kubernetes", "plan", "postgresql", "service"}
    assert named <= EXTRAS.keys()
