"""The run of a program is named by everything that decides its answer, and by nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.job.launching.line import parse
from planner.job.schema import Cluster, Gpu, Input, Job, Model, Train
from planner.planning import identity
from planner.searching.requests import SearchRequest
from planner.service.history.schema import KEYS, VERSION_TABLE
from planner.service.history.store import History
from planner.service.orders import RunRequest, build_order, build_run_order, scope_search
from planner.service.torch_versions import OfferedTorch, TorchVersions
from planner.settings import Settings
from planner.truth.calibration.interval import Calibration

COMMAND = ("python", "train.py")
REQUEST = RunRequest(
    line=parse(COMMAND), command=COMMAND, gpu=Gpu(name="", total_bytes=1 << 30, arch="sm_80"), ranks="auto", steps=0,
    strict=False, metadata={"team": "nlp"}, tarball=b"files",
)  # fmt: skip
SETTINGS = Settings()


def id_of(request: RunRequest = REQUEST, settings: Settings = SETTINGS) -> str:
    return build_run_order(request, Calibration.none(), settings, b"key").plan_id


@pytest.mark.parametrize(
    "changed",
    [
        {"command": ("python", "train.py", "--layers", "2")},
        {"gpu": Gpu(name="", total_bytes=1 << 31, arch="sm_80")},
        {"ranks": "all"},
        {"steps": 3},
        {"strict": True},
        {"host_memory_bytes": 1 << 30},
        {"torch": "2.6"},
        {"tarball": b"other files"},
        {"tarball": b"", "folder": "/shared/nlp"},
        {"tenant": "another token"},
    ],
    ids=lambda changed: ", ".join(changed),
)
def test_another_request_is_another_run(changed: dict[str, Any]) -> None:
    assert id_of(replace(REQUEST, **changed)) != id_of()


@pytest.mark.parametrize(
    "changed", [{"program_seconds": 7.0}, {"trace_memory_bytes": 1 << 30}, {"program_data": "/shared/data"}]
)
def test_other_limits_and_other_data_are_another_run(changed: dict[str, Any]) -> None:
    assert id_of(settings=replace(SETTINGS, **changed)) != id_of()


def test_another_torch_that_runs_it_is_another_run() -> None:
    offered = TorchVersions((OfferedTorch("2.6", "/nowhere/python", {**identity.every_version(), "torch": "2.6.0"}),))
    asked = replace(REQUEST, torch="2.6")

    assert build_run_order(asked, Calibration.none(), SETTINGS, b"key", offered).plan_id != id_of(asked)
    assert build_run_order(REQUEST, Calibration.none(), SETTINGS, b"key", offered).plan_id == id_of()


def test_other_answers_are_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = id_of()
    monkeypatch.setattr(identity, "ANSWERS", identity.ANSWERS + 1)

    assert id_of() != before


def test_labels_are_no_part_of_a_run() -> None:
    assert id_of(replace(REQUEST, metadata={"team": "vision"})) == id_of()


def test_without_the_key_nobody_can_try_which_command_has_an_id() -> None:
    shown, tried = (build_run_order(REQUEST, Calibration.none(), SETTINGS, key) for key in (b"key", b""))

    assert (shown.trace_id == tried.trace_id, shown.plan_id == tried.plan_id) == (False, False)
    assert shown == build_run_order(REQUEST, Calibration.none(), SETTINGS, b"key")


def with_argument(**argument: str) -> Job:
    model = Model(factory="shop:model", factory_arguments=argument)
    return Job(model=model, train=Train(inputs={"x": Input(shape=(4,))}), cluster=Cluster(gpu=REQUEST.gpu))


def ids_of_spec(job: Job, key: bytes) -> tuple[str, str, str]:
    order = build_order(job, Calibration.none(), key)
    return order.trace_id, order.plan_id, SearchRequest(job=job).search_id(scope_search(job, "scope", key))


def test_ids_of_a_spec_with_a_secret_are_keyed_too_and_others_are_those_of_the_command_line() -> None:
    secret, usual = with_argument(hf_token="canary-of-this-test"), with_argument(width="4")

    assert {one == other for one, other in zip(ids_of_spec(secret, b"key"), ids_of_spec(secret, b""), strict=True)} == {
        False
    }
    assert ids_of_spec(usual, b"key") == ids_of_spec(usual, b"")


def test_all_who_share_a_database_have_its_key_and_nobody_else(tmp_path: Path) -> None:
    keys = []
    for name in ("one", "one", "other"):
        with History.open(f"sqlite:///{tmp_path}/{name}.db") as history:
            keys.append(history.id_key)

    assert [len(key) for key in keys] == [32, 32, 32]
    assert (keys[0] == keys[1], keys[1] == keys[2]) == (True, False)


def test_a_database_of_an_older_planner_gets_a_key(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    with History.open(url) as history, history._database.writing() as connection:
        KEYS.drop(connection)
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = 'masked'")

    with History.open(url) as history:
        assert len(history.id_key) == 32
