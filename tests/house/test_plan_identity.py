"""Plans and traces are named by the content of the code that made them: other code never answers with a stored plan."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from planner import distribution
from planner.planning import provenance

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "planner"
NAMES = """
from planner.planning import identity
from planner.truth.calibration.interval import Calibration
from planner.job.schema import Decoder, Job, Model
none = Calibration.none()
decoder = Decoder(layers=1, hidden=32, heads=2, kv_heads=2, ffn=64, vocab=64)
trace_id = identity.trace_id_of(Job(model=Model(decoder=decoder)))
print(trace_id, identity.plan_id(trace_id, identity.provenance_of(none)))
print(identity.run_scope()["code"], identity.search_scope(none))
"""
PLAN_AND_ADVISE = """
import sys
from planner.job.schema import Cluster, Decoder, Gpu, Job, Model, Train
from planner.planning.trace_source import TraceSource
from planner.searching.answer import plan_and_advise
decoder = Decoder(layers=1, hidden=32, heads=2, kv_heads=2, ffn=64, vocab=64)
job = Job(model=Model(decoder=decoder), train=Train(micro_batch_size=1, sequence_length=8),
          cluster=Cluster(gpus_per_node=1, gpu=Gpu(name="", total_bytes=1 << 20, arch="sm_80")))
found = plan_and_advise(job, source=TraceSource(), advice_seconds=1.0)
assert found.plan.verdict.value == "exceeds"
print(*sorted(each for each in sys.modules if each.startswith("planner.")))
"""


DIGESTS = ("trace_code", "allocator_rules", "catalog", "run_code", "search_code")


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy") / "planner"
    return shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture
def package(copied: Path) -> Iterator[Path]:
    """A copy of the package, to be changed; what is changed is as before afterwards."""
    before = {path: path.read_bytes() for path in files(copied)}
    yield copied
    for path in set(files(copied)) - set(before):
        path.unlink()
    for path, content in before.items():
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


@pytest.fixture(scope="module")
def unchanged() -> dict[str, str]:
    return digests(PACKAGE)


@pytest.fixture(scope="module")
def own_ids() -> dict[str, str]:
    return ids(REPOSITORY)


def digests(package: Path) -> dict[str, str]:
    sources = provenance.Sources(package)
    return {name: getattr(sources, name) for name in DIGESTS}


def differing(after: Mapping[str, str], before: Mapping[str, str]) -> set[str]:
    return {name for name, value in after.items() if value != before[name]}


def ids(where: Path) -> dict[str, str]:
    """Those that planner gives, by the package in that folder or archive."""
    return dict(zip(("trace", "plan", "run", "search"), output_of(NAMES, where), strict=True))


def output_of(code: str, where: Path) -> list[str]:
    """The words that it prints, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(where), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, cwd="/", capture_output=True, text=True, check=True
    )
    return ended.stdout.split()


def append(path: Path, text: str = "\n") -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


@pytest.mark.parametrize(
    "changed",
    [
        "paper/kernels/training_operators.py",
        "paper/native/kernels.cpp",
        "training/step.py",
        "job/schema.py",
        "events.py",
    ],
)
def test_a_changed_step_or_kernel_is_another_trace_plan_run_and_search(
    package: Path, unchanged: dict[str, str], changed: str
) -> None:
    append(package / changed)

    assert differing(digests(package), unchanged) == {"trace_code", "run_code", "search_code"}


@pytest.mark.parametrize(
    "changed",
    [
        "allocator/caching.py", "report/attribution.py", "report/style.py", "truth/calibration/correction.py",
        "truth/calibration/learning.py",
    ],
)  # fmt: skip
def test_a_changed_rule_is_another_plan_of_the_same_trace(
    package: Path, unchanged: dict[str, str], changed: str
) -> None:
    append(package / changed)

    assert differing(digests(package), unchanged) == {"allocator_rules", "run_code", "search_code"}


@pytest.mark.parametrize(
    "changed",
    [
        "tracing/program/stopping.py", "tracing/program/packages/kernels.py", "paper/outside/apex.py",
        "planning/program.py", "planning/program_ranks.py",
    ],
)  # fmt: skip
def test_what_only_programs_use_is_another_run_and_no_other_trace(
    package: Path, unchanged: dict[str, str], changed: str
) -> None:
    append(package / changed)

    assert differing(digests(package), unchanged) == {"run_code"}


def test_what_only_searches_use_is_another_search(package: Path, unchanged: dict[str, str]) -> None:
    append(package / "searching/requests.py")

    assert differing(digests(package), unchanged) == {"search_code"}


@pytest.mark.parametrize(
    "changed", ["report/plan_text.py", "cli/plan_commands.py", "service/app.py", "tracing/isolated.py"]
)
def test_how_a_plan_is_shown_served_and_run_is_no_part_of_it(
    package: Path, unchanged: dict[str, str], changed: str
) -> None:
    append(package / changed)

    assert digests(package) == unchanged


@pytest.mark.parametrize(
    ("importer", "other"),
    [
        ("tracing/rank_trace.py", {"trace_code", "run_code", "search_code"}),
        ("truth/calibration/correction.py", {"allocator_rules", "run_code", "search_code"}),
        ("tracing/program/stopping.py", {"run_code"}),
    ],
)
def test_a_module_is_part_of_the_names_from_the_day_on_which_it_is_imported(
    package: Path, importer: str, other: set[str]
) -> None:
    (package / "job/fresh.py").write_text("FIGURE = 1\n")
    append(package / importer, "\n\ndef later() -> None:\n    from planner.job import fresh  # noqa\n")
    before = digests(package)
    append(package / "job/fresh.py")

    assert differing(digests(package), before) == other


def test_a_module_that_is_imported_by_its_name_is_part_of_the_run(package: Path, unchanged: dict[str, str]) -> None:
    append(package / "paper/outside/flash_attention_2.py")

    assert differing(digests(package), unchanged) == {"run_code"}


@pytest.mark.parametrize(
    ("changed", "other"),
    [
        ("paper/kernels/training_operators.py", {"trace", "plan", "run", "search"}),
        ("truth/calibration/correction.py", {"plan", "run", "search"}),
        ("job/overhead.py", {"plan", "run", "search"}),
        ("tracing/program/stopping.py", {"run"}),
        ("searching/requests.py", {"search"}),
    ],
)
def test_ids_are_made_of_these_digests(package: Path, own_ids: dict[str, str], changed: str, other: set[str]) -> None:
    append(package / changed)

    assert differing(ids(package.parent), own_ids) == other


def test_an_archive_of_the_package_gives_the_same_ids(package: Path, own_ids: dict[str, str], tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", package.parent, "planner")

    assert ids(Path(archive)) == own_ids


def test_names_hinge_neither_on_line_endings_nor_on_compiled_files(package: Path) -> None:
    before = digests(package)
    for path in package.rglob("*.py"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (package / "paper/kernels/__pycache__").mkdir()
    (package / "paper/kernels/__pycache__/training_operators.cpython-311.pyc").write_bytes(b"compiled")

    assert digests(package) == before


def test_a_file_moved_to_another_name_is_other_code(package: Path) -> None:
    before = digests(package)
    (package / "paper/native/device.cpp").rename(package / "paper/native/devices.cpp")

    assert digests(package) != before


def test_a_package_without_sources_is_named_by_its_version(tmp_path: Path) -> None:
    assert set(digests(tmp_path).values()) == {f"version {distribution.version()}"}


def test_every_module_that_a_plan_with_advice_loads_is_part_of_its_name() -> None:
    loaded = set(output_of(PLAN_AND_ADVISE, REPOSITORY))
    named = provenance.Sources(PACKAGE).reached((*provenance.TRACE, *provenance.CATALOG, *provenance.JUDGEMENT))

    assert {each for each in loaded - named if not is_of_no_figure(each)} == set()
    assert loaded & named >= {
        "planner.tracing.spec.step_trace",
        "planner.truth.calibration.correction",
        "planner.searching.engine",
    }


def test_imports_are_read_as_python_reads_them() -> None:
    sources = provenance.Sources(PACKAGE)
    paths = {module_of(path): path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem[0] != "_"}
    missed = {}
    for module, path in paths.items():
        parsed = ast.parse(path.read_text(encoding="utf-8"))
        named = {each for each in imports_of(parsed) if each in paths and not is_of_no_figure(each)}
        if not is_of_no_figure(module) and (left := named - sources.reached([module])):
            missed[module] = left

    assert missed == {}


@pytest.mark.parametrize("each", provenance.OF_NO_FIGURE)
def test_what_is_left_out_of_the_names_is_there(each: str) -> None:
    path = REPOSITORY.joinpath(*each.split("."))

    assert path.is_dir() or path.with_suffix(".py").is_file()


def test_every_file_of_the_packages_named_is_read() -> None:
    """But for charts and compiled files: a new kind of source would be left out of the names otherwise."""
    kinds = {path.suffix for room in ("paper", "training", "allocator", "job") for path in files(PACKAGE / room)}

    assert kinds <= {".py", *provenance.TABLES}


def is_of_no_figure(module: str) -> bool:
    return any(f"{module}.".startswith(f"{each}.") for each in provenance.OF_NO_FIGURE)


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def module_of(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
