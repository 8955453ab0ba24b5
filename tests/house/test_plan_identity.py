"""Plans and traces are named by the content of the code that made them: other code never answers with a stored plan."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from planner import distribution
from planner.planning import provenance

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "planner"
NAMES = """
from planner.planning import identity
from planner.calibration.interval import Calibration
from planner.job.schema import Decoder, Job, Model
decoder = Decoder(layers=1, hidden=32, heads=2, kv_heads=2, ffn=64, vocab=64)
trace_id = identity.trace_id_of(Job(model=Model(decoder=decoder)))
print(trace_id, identity.plan_id(trace_id, identity.provenance_of(Calibration.none())))
"""
OF_NO_FIGURE = {
    "planner", "planner.calibration", "planner.distribution", "planner.errors", "planner.planning.provenance",
    "planner.report", "planner.runtime", "planner.runtime.user_cache", "planner.tracing", "planner.tracing.isolated",
    "planner.tracing.isolation",
}  # fmt: skip
"""What planning imports and what decides nothing: package docstrings, texts for people, processes, places of files."""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, to be changed."""
    return shutil.copytree(PACKAGE, tmp_path / "planner", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture(scope="module")
def unchanged() -> tuple[str, str]:
    return ids(REPOSITORY)


def ids(where: Path) -> tuple[str, str]:
    """The ids of a trace and its plan, by the package in that folder or archive."""
    environment = {**os.environ, "PYTHONPATH": str(where), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", NAMES], env=environment, cwd="/", capture_output=True, text=True, check=True
    )
    trace_id, plan_id = ended.stdout.split()
    return trace_id, plan_id


def append(path: Path) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write("\n")


@pytest.mark.parametrize(
    "changed", ["paper/kernels/loss.py", "paper/native/kernels.cpp", "training/step.py", "job/schema.py", "events.py"]
)
def test_a_changed_step_or_kernel_is_another_trace_and_another_plan(
    package: Path, unchanged: tuple[str, str], changed: str
) -> None:
    append(package / changed)
    after = ids(package.parent)

    assert (after[0] == unchanged[0], after[1] == unchanged[1]) == (False, False)


@pytest.mark.parametrize("changed", ["allocator/caching.py", "report/rank_class.py", "overhead/table.py"])
def test_a_changed_rule_or_fact_is_another_plan_of_the_same_trace(
    package: Path, unchanged: tuple[str, str], changed: str
) -> None:
    append(package / changed)
    after = ids(package.parent)

    assert (after[0] == unchanged[0], after[1] == unchanged[1]) == (True, False)


@pytest.mark.parametrize(
    "changed", ["report/plan_text.py", "cli/plan_command.py", "service/app.py", "tracing/isolated.py"]
)
def test_how_a_plan_is_shown_served_and_run_is_no_part_of_it(
    package: Path, unchanged: tuple[str, str], changed: str
) -> None:
    append(package / changed)

    assert ids(package.parent) == unchanged


def test_an_archive_of_the_package_gives_the_same_names(
    package: Path, unchanged: tuple[str, str], tmp_path: Path
) -> None:
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", package.parent, "planner")

    assert ids(Path(archive)) == unchanged


def test_names_hinge_neither_on_line_endings_nor_on_compiled_files(package: Path) -> None:
    before = provenance.source_digest(package, provenance.TRACE)
    for path in package.rglob("*.py"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (package / "paper/kernels/__pycache__").mkdir()
    (package / "paper/kernels/__pycache__/loss.cpython-311.pyc").write_bytes(b"compiled")

    assert provenance.source_digest(package, provenance.TRACE) == before


def test_a_file_moved_to_another_name_is_other_code(package: Path) -> None:
    before = provenance.source_digest(package, provenance.TRACE)
    (package / "paper/kernels/loss.py").rename(package / "paper/kernels/losses.py")

    assert provenance.source_digest(package, provenance.TRACE) != before


def test_a_package_without_sources_is_named_by_its_version(tmp_path: Path) -> None:
    assert provenance.source_digest(tmp_path, provenance.TRACE) == f"version {distribution.version()}"


def test_every_module_that_decides_a_trace_is_part_of_its_name() -> None:
    assert imported("planner.tracing.trace") - OF_NO_FIGURE <= named(provenance.TRACE)


def test_every_module_that_decides_a_plan_is_part_of_its_name() -> None:
    whole = (*provenance.TRACE, *provenance.JUDGEMENT, *provenance.CATALOG)

    deciding = {
        each for each in imported("planner.planning", "planner.advice") if not each.startswith("planner.runtime")
    }
    assert deciding - OF_NO_FIGURE <= named(whole)


def test_every_file_of_the_packages_named_is_read() -> None:
    """But for charts and compiled files: a new kind of source would be left out of the names otherwise."""
    kinds = {path.suffix for room in ("paper", "training", "allocator", "overhead") for path in files(PACKAGE / room)}

    assert kinds <= set(provenance.KINDS)


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def named(packages: tuple[str, ...]) -> set[str]:
    root = resources.files("planner")
    paths = (path for path, _ in provenance.sources(root, packages) if path.endswith(".py"))
    return {"planner." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in paths}


def imported(*entries: str) -> set[str]:
    """The modules of planner that these import, wherever in them they do, and what those import."""
    found: set[str] = set()
    left = list(entries)
    while left:
        module = left.pop()
        if module in found or (path := path_of(module)) is None:
            continue
        found.add(module)
        if module == "planner":  # its Python API is for others
            continue
        left += imports_of(ast.parse(path.read_text(encoding="utf-8")))
    return found


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def path_of(module: str) -> Path | None:
    path = REPOSITORY.joinpath(*module.split("."))
    return next((each for each in (path / "__init__.py", path.with_suffix(".py")) if each.exists()), None)
