"""The catalog of other people's programs, and those of them that need no more than the tests have: `make clients` runs
all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from program_runs import Run

from planner.events import Category, Role
from planner.job.launching.line import parse

CLIENTS = Path(__file__).parents[1] / "clients"
sys.path.append(str(CLIENTS))

import catalog  # noqa: E402
import materials  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("materials")
    materials.language_models(made)
    return made


def test_there_are_many_of_many_projects() -> None:
    unedited = [each for each in catalog.CLIENTS if not each.ours and not each.refused]

    assert len(catalog.CLIENTS) >= 60
    assert len({each.project for each in catalog.CLIENTS}) >= 24
    assert len(unedited) >= 30
    assert len({each.name for each in catalog.CLIENTS}) == len(catalog.CLIENTS)


def test_every_command_can_be_launched_and_every_driver_is_used() -> None:
    for each in catalog.CLIENTS:
        parse(each.command.format(packages="p", drivers=CLIENTS / "drivers", bin="b", beside="x").split())

    used = " ".join(each.command for each in catalog.CLIENTS)
    assert [each.name for each in (CLIENTS / "drivers").glob("*.py") if each.name not in used] == []


@pytest.mark.parametrize(
    "command",
    [
        "python {drivers}/evaluated_trainer.py",
        "python {drivers}/peft_adapters.py {folder}/llama lora",
        "deepspeed --num_gpus 4 {drivers}/deepspeed_engine.py --stage 1 --model {folder}/llama",
    ],
    ids=["transformers: generation between steps", "PEFT", "DeepSpeed"],
)
def test_some_run_here(run: Run, folder: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)

    found = run(command.format(drivers=CLIENTS / "drivers", folder=folder), steps=3)

    assert found.iterations == 3
    assert {each.category for each in found.trace.events if isinstance(each, Role)} >= {
        Category.PARAMETER,
        Category.OPTIMIZER_STATE,
    }
