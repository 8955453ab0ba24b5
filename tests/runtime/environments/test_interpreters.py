"""Interpreters are asked what they are, and planner goes on in the one that a job has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_environments import PYTHON, make_fake_environment, write_script
from own_caches import use_cache

from planner import cli
from planner.errors import PlannerError
from planner.runtime.environments import interpreters
from planner.runtime.environments.interpreters import Interpreter, read_interpreter, this_interpreter

SPEC = """
model: {decoder: {layers: 1, hidden: 64, heads: 2, kv_heads: 2, ffn: 64, vocab: 100}}
train: {micro_batch_size: 1, sequence_length: 16, optimizer: {name: SGD}}
cluster: {nodes: 1, gpus_per_node: 1, gpu: H100-SXM-80GB}
software: {torch: "2.8"}
"""
WRONG = ["--gpu", "Nothing"]
"""An option that ends `planner run`, after it has chosen its Python."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache; nothing keeps planner where it is."""
    own = use_cache(tmp_path / "cache", monkeypatch)
    monkeypatch.delenv("PLANNER_PYTHON")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(SPEC, encoding="utf-8")
    return own


def planner(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "planner", *words]
    return subprocess.run(command, capture_output=True, text=True, input=given, check=False)


def test_an_interpreter_says_its_python_and_its_torch_which_is_not_imported(tmp_path: Path) -> None:
    folder = make_fake_environment(tmp_path / "job", torch="2.9.1+cu128")

    found = read_interpreter(str(folder / "bin/python"))

    assert found == Interpreter(str(folder / "bin/python"), this_interpreter().python_version, "2.9.1+cu128")
    assert (found.minor, found.is_this, str(found)) == ("2.9", False, f"torch 2.9.1+cu128 of {folder}")


def test_this_interpreter_is_known_by_any_of_its_names() -> None:
    beside = os.path.join(os.path.dirname(sys.executable), f"python{PYTHON}")

    assert Interpreter(beside, this_interpreter().python_version, "").is_this
    assert not Interpreter(beside, "3.99.1", "").is_this


def test_a_script_that_starts_another_python_stands_for_that(tmp_path: Path) -> None:
    folder = make_fake_environment(tmp_path / "job", torch="2.9.1")
    shim = write_script(tmp_path / "shims/python", f'#!/bin/sh\nexec {folder}/bin/python "$@"\n')

    assert read_interpreter(str(shim)).python == str(folder / "bin/python")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("#!/bin/sh\necho no such thing >&2\nexit 3\n", "does not answer as a Python: no such thing"),
        ("#!/bin/sh\nexit 3\n", "does not answer as a Python: it ended with 3"),
        ('#!/bin/sh\necho \'["/usr/bin/python3", "3.9.2", "2.8.0"]\'\n', "is Python 3.9.2"),
        ("#!/bin/sh\nexec sleep 30\n", "does not answer within 0.5 s"),
        ("#!/no/such/shell\n", "cannot be started: No such file or directory"),
    ],
)
def test_what_is_no_python_for_planner_is_refused(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreters, "_SECONDS", 0.5)
    script = write_script(tmp_path / "python", text)

    with pytest.raises(PlannerError) as raised:
        read_interpreter(str(script))

    assert (raised.value.problem, raised.value.allowed) == (problem, "Python 3.11 or newer")
    assert raised.value.place == str(script)


def test_a_python_without_torch_is_refused_where_one_is_needed(tmp_path: Path) -> None:
    python = str(make_fake_environment(tmp_path / "job") / "bin/python")

    assert read_interpreter(python).torch == ""
    with pytest.raises(PlannerError, match="this Python has no torch"):
        read_interpreter(python, needs_torch=True)


def test_another_python_gets_planner_and_yaml_and_nothing_else_of_ours(tmp_path: Path, cache: Path) -> None:
    python = make_fake_environment(tmp_path / "job") / "bin/python"
    folder = interpreters.bring_code()

    code = "import planner.job.loading, yaml, json; print(json.dumps([planner.__file__, yaml.__file__]))"
    ended = subprocess.run(
        [python, "-P", "-c", f"import sys; sys.path.append({str(folder)!r}); {code}\nimport pytest"],
        env={}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert [Path(each).parents[1] for each in json.loads(ended.stdout)] == [folder, folder]
    assert "No module named 'pytest'" in ended.stderr
    assert folder.parent == cache / "brought"


@pytest.mark.usefixtures("cache")
def test_code_is_brought_again_where_a_link_leads_elsewhere() -> None:
    folder = interpreters.bring_code()
    (folder / "yaml").unlink()
    (folder / "yaml").symlink_to("/nowhere")

    assert interpreters.bring_code() == folder
    assert (folder / "yaml/__init__.py").exists()


@pytest.mark.usefixtures("cache")
def test_a_program_is_run_with_the_torch_of_the_environment_whose_torchrun_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_fake_environment(tmp_path / "job", torch="2.9.1")
    write_script(folder / "bin/torchrun", f"#!{folder}/bin/python\n")
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")

    ended = planner("run", *WRONG, "--", "torchrun", "--nproc-per-node", "2", "train.py")

    lines = ended.stderr.splitlines()
    assert lines[:2] == [f"with the job's Python: torch 2.9.1 of {folder}", f"started in {folder}"]
    assert lines[2].startswith("--gpu: ")


@pytest.mark.usefixtures("cache")
def test_whoever_says_here_keeps_the_torch_of_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_fake_environment(tmp_path / "job", torch="2.9.1")
    monkeypatch.setenv("PLANNER_PYTHON", "here")

    ended = planner("run", *WRONG, "--", str(folder / "bin/python"), "train.py")

    assert ended.stderr.startswith("--gpu: ")


@pytest.mark.usefixtures("cache")
def test_a_python_that_is_too_old_is_told_and_not_taken(tmp_path: Path) -> None:
    old = write_script(tmp_path / "bin/python", '#!/bin/sh\necho \'["/usr/bin/python", "3.9.2", "2.8.0"]\'\n')

    ended = planner("run", *WRONG, "--", str(old), "train.py")

    lines = ended.stderr.splitlines()
    assert lines[0] == f"note: not with the job's Python: {old} is Python 3.9.2; planner needs Python 3.11 or newer"
    assert lines[1].startswith("--gpu: ")


def test_a_program_of_a_torch_that_was_asked_for_is_run_with_the_one_that_planner_made(
    tmp_path: Path, cache: Path
) -> None:
    made = make_fake_environment(cache / "environments/torch-2.8", torch="2.8.2")

    other = make_fake_environment(tmp_path / "job", torch="2.9.1")
    ended = planner("run", *WRONG, "--torch", "2.8", "--", str(other / "bin/python"), "train.py")

    assert ended.stderr.splitlines()[:2] == [f"with the job's Python: torch 2.8.2 of {made}", f"started in {made}"]


@pytest.mark.parametrize("job", ["job.yaml", "-"])
def test_a_job_is_planned_with_its_own_torch_where_that_is_there(job: str, cache: Path) -> None:
    made = make_fake_environment(cache / "environments/torch-2.8", torch="2.8.0")

    ended = planner("plan", "--no-cache", job, given=SPEC)

    assert ended.stderr.splitlines()[:2] == [f"with the job's torch: torch 2.8.0 of {made}", f"started in {made}"]
    assert ended.stderr.splitlines()[2] == "torch is not installed"  # it has read the job, and is about to plan it


@pytest.mark.usefixtures("cache")
def test_a_job_is_planned_with_the_torch_of_here_where_its_own_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--no-cache", "--no-advice", "job.yaml"]) == 0

    assert "`planner torch 2.8` makes an environment" in " ".join(capsys.readouterr().out.split())
