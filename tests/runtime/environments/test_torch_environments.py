"""Environments of a torch: found in the user's cache, made there once, by tools that are faked here."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_environments import PYTHON, make_fake_environment, write_script

from planner import cli, cuda_on_paper
from planner.errors import PlannerError
from planner.runtime.environments import torch_environments
from planner.runtime.environments.interpreters import Interpreter, this_interpreter
from planner.runtime.environments.torch_environments import find_environment, list_environments, make_environment

UV = """#!/bin/sh
echo "$@" >>{log}
case $1 in
venv) for made; do :; done; mkdir -p $made/bin; ln -s {python} $made/bin/python ;;
pip) echo Downloading torch >&2; sleep 0.2
     mkdir -p ${{4%/bin/python}}/lib/python{version}/site-packages/torch-{torch}.dist-info ;;
esac
"""


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/planner/environments"


def use_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """A uv that is found first; the file of what it was asked for."""
    log = tmp_path / "asked.txt"
    written = text.format(log=log, python=sys.executable, version=PYTHON, torch="2.8.1+cpu")
    write_script(tmp_path / "bin/uv", written)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    return log


def test_an_environment_is_found_whatever_its_patch_release_is(environments: Path) -> None:
    folder = make_fake_environment(environments / "torch-2.8", torch="2.8.1+cpu")

    wanted = Interpreter(str(folder / "bin/python"), PYTHON, "2.8.1+cpu")
    assert [find_environment(each) for each in ("2.8", "2.8.0", "2.9", "2.80")] == [wanted, wanted, None, None]


def test_what_is_not_whole_is_not_found(environments: Path) -> None:
    make_fake_environment(environments / "torch-2.6")
    folder = make_fake_environment(environments / "torch-2.7", torch="2.7.0")
    (folder / "bin/python").unlink()
    (folder / "bin/python").symlink_to("/nowhere/python")

    assert list_environments() == []


@pytest.mark.usefixtures("environments")
def test_a_list_of_none_says_how_one_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["torch"]) == 0
    assert capsys.readouterr() == ("", "no environment has been made yet: planner torch 2.8 makes one\n")


@pytest.mark.usefixtures("environments")
def test_a_version_is_two_numbers() -> None:
    with pytest.raises(PlannerError, match="is not a version of torch"):
        find_environment("../x")


def test_an_environment_is_made_once_though_several_ask(
    environments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, told = use_uv(tmp_path, monkeypatch, UV), []

    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: make_environment("2.8.0", told.append), range(3)))

    assert set(made) == {find_environment("2.8")}
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["venv", "pip"]
    assert "making the environment of torch 2.8: Downloading torch" in told
    assert "torch 2.8 is being made elsewhere" in told
    assert sorted(each.name for each in environments.iterdir()) == [".torch-2.8.lock", "torch-2.8"]


@pytest.mark.usefixtures("environments")
def test_uv_is_told_what_planning_needs_and_where_pip_looks_for_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nindex-url = https://a/simple\nextra-index-url = https://b\n  https://c\n")
    for name in [each for each in os.environ if each.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setenv("HOME", str(tmp_path))
    log = use_uv(tmp_path, monkeypatch, UV)

    make_environment("2.8", lambda _: None)

    asked = log.read_text()
    assert "--default-index https://a/simple" in asked
    assert "--index https://b --index https://c" in asked
    assert (
        "torch==2.8.* transformers>=5.0 numpy nvidia-ml-py>=13 peft>=0.17 bitsandbytes>=0.45 pyyaml>=6.0 setuptools"
    ) in asked


def test_without_uv_it_is_made_by_venv_and_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_environments, "_uv", list)

    made, installed = torch_environments._commands(Path("/x"), "2.8")

    assert made == [sys.executable, "-P", "-m", "venv", "/x/made"]
    assert installed[:6] == ["/x/made/bin/python", "-P", "-m", "pip", "install", "torch==2.8.*"]


def write_cudnn(folder: Path, version: str) -> Path:
    lines = zip(("MAJOR", "MINOR", "PATCHLEVEL"), version.split("."), strict=True)
    (folder / "include").mkdir(parents=True)
    text = "".join(f"#define CUDNN_{name} {number}\n" for name, number in lines)
    (folder / "include/cudnn_version.h").write_text(text, encoding="utf-8")
    return folder


def test_a_torch_whose_cudnn_needs_a_gpu_gets_another_one_which_is_asked(
    environments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_environments, "_uv", list)
    *_, installed = torch_environments._commands(Path("/x"), "2.6")
    write_cudnn(tmp_path / "site/nvidia/cudnn", "9.1.0")
    beside = write_cudnn(environments / "torch-2.6" / torch_environments.CUDNN_FOLDER / "nvidia/cudnn", "9.10.2")

    assert installed[5:] == ["--no-deps", "--target", "/x/made/cudnn", "nvidia-cudnn-cu12==9.10.2.21"]
    assert cuda_on_paper._find_cudnn(tmp_path / "site/torch") == {
        "PAPER_CUDNN": f"{beside}/lib/libcudnn.so.9", "PAPER_OTHER_CUDNN": "9.1.0 9.10.2",
    }  # fmt: skip


def test_one_that_cannot_be_made_says_how_it_is_made_by_hand(
    environments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_uv(tmp_path, monkeypatch, "#!/bin/sh\necho trying\necho error: there is no network\necho hint: none\nexit 1\n")

    with pytest.raises(PlannerError) as raised:
        make_environment("2.8", lambda _: None)

    folder = environments / "torch-2.8"
    assert raised.value.problem == ("the environment of torch 2.8 could not be made: error: there is no network")
    assert raised.value.remedy == (
        f"make it by hand, there: python3 -m venv {folder} && {folder}/bin/pip install"
        " 'torch==2.8.*' 'transformers>=5.0' numpy 'nvidia-ml-py>=13' 'peft>=0.17' 'bitsandbytes>=0.45' 'pyyaml>=6.0'"
        " setuptools"
    )
    assert [each.name for each in environments.iterdir()] == [".torch-2.8.lock"]


@pytest.mark.usefixtures("environments")
def test_what_was_installed_without_such_a_torch_is_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_uv(tmp_path, monkeypatch, UV)

    with pytest.raises(PlannerError, match="another torch was installed than was asked for"):
        make_environment("2.9", lambda _: None)


def test_the_command_lists_what_is_there(environments: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for version in ("2.10.0", "2.9.1"):
        make_fake_environment(environments / f"torch-{version.rpartition('.')[0]}", torch=version)

    assert cli.main(["torch", "2.9"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"torch 2.9.1 of {environments}/torch-2.9", f"torch 2.10.0 of {environments}/torch-2.10",
    ]  # fmt: skip


def test_a_program_is_run_in_one_that_is_at_hand(tmp_path: Path) -> None:
    """In those of this user: they take gigabytes, so no test makes one."""
    others = [each for each in list_environments() if each.minor != this_interpreter().minor]
    if not others:
        pytest.skip("no environment of another torch is there: `planner torch 2.9` makes one")
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\nmodel = torch.nn.Linear(1024, 1024).cuda()\noptimizer = torch.optim.SGD(model.parameters())\n"
        "while True:\n    model(torch.zeros(2, 1024, device='cuda')).sum().backward()\n    optimizer.step()\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "planner", "run", "--torch", others[-1].minor, "--patience", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "PLANNER_PYTHON"}

    ended = subprocess.run(
        [*command, "--", "python", str(program)], capture_output=True, text=True, check=False, env=environment
    )

    assert ended.returncode == 0, ended.stderr
    assert f"torch {others[-1].torch} ·" in ended.stdout
