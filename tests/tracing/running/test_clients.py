"""The catalog of other people's programs, and those of them that need no more than the tests have: `make clients` runs
all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from program_runs import Run

from planner.events import Category, Role
from planner.job.launching.line import parse

CLIENTS = Path(__file__).parents[3] / "benchmarks" / "clients"
sys.path.append(str(CLIENTS))

import catalog  # noqa: E402
import materials  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("materials")
    materials.language_models(made)
    return made


def test_every_command_can_be_launched_and_every_driver_is_used() -> None:
    for each in catalog.CLIENTS:
        parse(each.command.format(packages="p", drivers=CLIENTS / "drivers", bin="b", beside="x").split())

    used = " ".join(each.command for each in catalog.CLIENTS)
    assert [each.name for each in (CLIENTS / "drivers").glob("*.py") if each.name not in used] == []


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("python {drivers}/evaluated_trainer.py", id="transformers: generation between steps"),
        pytest.param("python {drivers}/peft_adapters.py {folder}/llama lora", id="PEFT"),
        pytest.param(
            "deepspeed --num_gpus 4 {drivers}/deepspeed_engine.py --stage 1 --model {folder}/llama",
            id="DeepSpeed",
        ),
    ],
)  # fmt: skip
def test_some_run_here(run: Run, folder: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)

    found = run(command.format(drivers=CLIENTS / "drivers", folder=folder), steps=3)

    assert found.iterations == 3
    assert {each.category for each in found.trace.events if isinstance(each, Role)} >= {
        Category.PARAMETER,
        Category.OPTIMIZER_STATE,
    }
