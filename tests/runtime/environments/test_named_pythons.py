"""Commands, and the Python that each would start."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from fake_environments import make_fake_environment, write_script

from planner.job.command_python import find_python

PIP = "#!{python}\n# -*- coding: utf-8 -*-\nfrom torch.distributed.run import main\n"
LONG_PATH = "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\nfrom torch.distributed.run import main\n"
MOVABLE = (
    "#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n' '''\n"
    "from torch.distributed.run import main\n"
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Environments of which `job` is first in PATH; the working folder is a project's."""
    for name in ("job", "conda/envs/named", "project/.venv", "project/.pixi/envs/default", "other"):
        make_fake_environment(tmp_path / name)
    write_script(tmp_path / "conda/bin/conda", "#!/bin/sh\n")
    for name in ("torchrun", "accelerate", "deepspeed"):
        write_script(tmp_path / "job/bin" / name, PIP.format(python=tmp_path / "job/bin/python"))
    write_script(tmp_path / "other/bin/torchrun", MOVABLE)
    write_script(tmp_path / "other/bin/accelerate", LONG_PATH.format(python=tmp_path / "other/bin/python"))
    write_script(tmp_path / "other/bin/deepspeed", "#!/usr/bin/env python\n")
    write_script(tmp_path / "other/bin/binary", "\x7fELF")
    src = tmp_path / "project/src"
    write_script(src / "train.py", f"#!{tmp_path}/other/bin/python -u\n")
    write_script(src / "run.sh", f"source {tmp_path}/other/bin/activate\ntorchrun --nproc-per-node 2 train.py\n")
    write_script(src / "conda.sh", "conda activate named\ncd sub\npython train.py\n")
    write_script(src / "path.sh", f"export PATH={tmp_path}/other/bin:$PATH\ntorchrun train.py\n")
    monkeypatch.chdir(src)
    return tmp_path


def found(command: str, machine: Path, **variables: str) -> str:
    """The environment whose Python the command would start; empty for none."""
    environment = {
        "PATH": f"{machine}/job/bin:{machine}/conda/bin:/usr/bin:/bin", "HOME": str(machine / "home"), **variables,
    }  # fmt: skip
    words = shlex.split(command.replace("MACHINE", str(machine)))
    python = find_python(words, environment)
    return str(Path(python).parents[1].relative_to(machine)) if python else ""


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ("python train.py", "job"),
        ("torchrun --nproc-per-node 8 train.py", "job"),
        ("accelerate launch --num_processes 2 train.py", "job"),
        ("deepspeed --num_gpus 2 train.py", "job"),
        ("python -m torch.distributed.run train.py", "job"),
        ("MACHINE/other/bin/python train.py", "other"),
        ("../../other/bin/python train.py", "other"),
        ("MACHINE/other/bin/torchrun train.py", "other"),
        ("MACHINE/other/bin/accelerate launch --num_processes 2 train.py", "other"),
        ("MACHINE/other/bin/deepspeed --num_gpus 2 train.py", "job"),
        ("./train.py", "other"),
        ("env -u X A=B nohup torchrun train.py", "job"),
        ("PATH=MACHINE/other/bin:/usr/bin torchrun train.py", "other"),
        ("srun -n 2 -N 1 --gpus-per-node 2 python train.py", "job"),
        ("mpirun -np 2 -x A=B MACHINE/other/bin/python train.py", "other"),
        ("conda run -n named --no-capture-output torchrun train.py", "conda/envs/named"),
        ("conda run -p MACHINE/other python train.py", "other"),
        ("conda run -n named MACHINE/other/bin/python train.py", "other"),
        ("uv run torchrun train.py", "project/.venv"),
        ("uv run -m train", "project/.venv"),
        ("uv run --project MACHINE/project --extra gpu train.py", "project/.venv"),
        ("uv run --directory MACHINE/project/src train.py", "project/.venv"),
        ("uv run --python MACHINE/other/bin/python train.py", "other"),
        ("poetry run torchrun train.py", "project/.venv"),
        ("pdm run python train.py", "project/.venv"),
        ("pixi run python train.py", "project/.pixi/envs/default"),
        ("bash run.sh", "other"),
        ("bash path.sh", "other"),
        ("bash conda.sh", "conda/envs/named"),
        ("bash -c 'source ../../other/bin/activate && uv run train.py'", "project/.venv"),
    ],
)
def test_a_command_names_its_python(command: str, environment: str, machine: Path) -> None:
    assert found(command, machine) == environment


@pytest.mark.parametrize(
    "command",
    [
        "MACHINE/other/bin/nothing/torchrun train.py",
        "conda run -n unknown python train.py",
        "uv run --with numpy train.py",
        "uv run --project MACHINE/other train.py",
    ],
)
def test_a_command_whose_python_is_not_here_names_none(command: str, machine: Path) -> None:
    assert found(command, machine) == ""


def test_a_launcher_that_is_no_script_names_none(machine: Path) -> None:
    shutil.copy(machine / "other/bin/binary", machine / "job/bin/torchrun")

    assert found("torchrun train.py", machine) == ""


@pytest.mark.parametrize(
    ("command", "variable", "value", "environment"),
    [
        ("uv run train.py", "UV_PROJECT_ENVIRONMENT", "../other", "other"),
        ("uv run --active train.py", "VIRTUAL_ENV", "MACHINE/other", "other"),
        ("conda run python train.py", "CONDA_PREFIX", "MACHINE/other", "other"),
        ("conda run -n other python train.py", "CONDA_ENVS_PATH", "MACHINE", "other"),
        ("python train.py", "PATH", "MACHINE/other/bin", "other"),
    ],
)
def test_variables_say_where_environments_lie(
    command: str, variable: str, value: str, environment: str, machine: Path
) -> None:
    where = found(command, machine, **{variable: value.replace("MACHINE", str(machine))})

    assert (machine / where).resolve() == machine / environment
