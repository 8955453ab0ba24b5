"""The hook of `ray job submit`: what it may read, and what it does. A real Ray calls it in tests/service/journey."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from planner.admission import ray_jobs, specs
from planner.errors import SpecError
from planner.job.loading import bundle_text, load_job
from planner.job.schema import Trainer
from planner.job.trainer import FILES

JobFile = Callable[..., Path]


@pytest.fixture
def hook(service: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """The hook as Ray calls it; returns what Ray would submit as metadata."""
    monkeypatch.setenv("PLANNER_SERVER", service.url)
    monkeypatch.setenv("PLANNER_TOKEN", service.token)
    monkeypatch.setenv("PLANNER_ADMISSION_REFUSE_UNCALIBRATED", "yes")

    def call(metadata: dict[str, Any], **more: Any) -> dict[str, Any]:
        ray_jobs.check(metadata_json=metadata, address="http://nowhere", entrypoint=["python"], no_wait=True, **more)
        return metadata

    return call


def test_a_bundle_travels_in_the_metadata_and_leaves_the_plans_id(
    hook: Any, service: Any, job_file: JobFile, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = hook({ray_jobs.BUNDLE: bundle_text(load_job(job_file())), "mine": "x"}, submission_id="by-bundle")

    assert sorted(metadata) == ["mine", ray_jobs.PLAN]
    assert service.history.jobs.get("ray", "by-bundle").plan_id == metadata[ray_jobs.PLAN]
    assert capsys.readouterr().err.startswith("planner: small fits")


def test_a_job_without_a_spec_is_the_policys(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hook({}, entrypoint_num_gpus=1) == {}
    monkeypatch.setenv("PLANNER_ADMISSION_UNPLANNED", "refuse")
    assert hook({}) == {}
    with pytest.raises(SystemExit):
        hook({}, entrypoint_num_gpus=1)


def test_a_site_that_is_set_up_wrongly_stops_nobodys_job(
    hook: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLANNER_ADMISSION_TIGHT", "perhaps")

    assert hook({ray_jobs.SPEC: "small.yaml"}) == {ray_jobs.SPEC: "small.yaml"}
    assert "the job is not checked: PLANNER_ADMISSION_TIGHT: 'perhaps' is not a policy" in capsys.readouterr().err


@pytest.mark.parametrize("unreachable", ["admit", "refuse"])
def test_a_submission_while_the_service_is_down(
    hook: Any, job_file: JobFile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], unreachable: str
) -> None:
    monkeypatch.setenv("PLANNER_SERVER", "http://127.0.0.1:1")
    monkeypatch.setenv("PLANNER_ADMISSION_UNREACHABLE", unreachable)
    ends = pytest.raises(SystemExit) if unreachable == "refuse" else contextlib.nullcontext()
    with ends:
        hook({ray_jobs.BUNDLE: bundle_text(load_job(job_file()))})

    assert "cannot be reached" in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path, job_file: JobFile) -> Path:
    """A folder of a job, beside files that are none of its business."""
    inside = tmp_path / "inside"
    inside.mkdir()
    job_file("secret", folder=tmp_path)
    (tmp_path / "secret.json").write_text('{"model_type": "llama", "secret": 1}')
    (inside / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (inside / "linked.json").symlink_to(tmp_path / "secret.json")
    (inside / "id_rsa").write_text("key")
    os.mkfifo(inside / "pipe.yaml")
    for name, model in {
        "up": "hf_config: ../secret.json",
        "absolute": f"hf_config: {tmp_path}/secret.json",
        "linked": "hf_config: linked.json",
        "code": "{factory: 'shop:model', factory_path: ..}",
        "not_json": "hf_config: id_rsa",
    }.items():
        written = model if model.startswith("{") else f"{{{model}}}"
        (inside / f"{name}.yaml").write_text(f"model: {written}\ncluster: {{gpu: H100-SXM-80GB}}\n")
    return inside


def test_every_file_that_a_spec_may_name_is_known_to_the_hook() -> None:
    """Whoever reads another one while a spec is loaded has to say it here, and the hook has to check it."""
    package = Path(specs.__file__).parents[1] / "job"
    readers = {
        path.name for path in package.glob("*.py") if re.search(r"\b(file_text|read_named_json)\(", path.read_text())
    }

    of_the_job_itself = {"json_text.py", "named_jobs.py"}
    assert readers - of_the_job_itself == {"hf_config.py", "loading.py", "trainer.py"}
    assert {key.name for key in fields(Trainer)} == {key.partition(".")[2] for key in FILES}


@pytest.mark.parametrize(
    "trainer",
    [
        "{arguments: /etc/passwd}",
        "{arguments: ../secret.json}",
        "{arguments: linked.json}",
        "{peft: ..}",
        "{arguments: {deepspeed: ../secret.json}}",
        "{arguments: {fsdp_config: linked.json}}",
        "{accelerate: {deepspeed_config: {deepspeed_config_file: ../secret.json}}}",
        "{arguments: named.json}",
    ],
)
def test_files_of_a_trainer_lie_where_the_spec_may(folder: Path, trainer: str) -> None:
    (folder / "named.json").write_text('{"deepspeed": "../secret.json"}')
    (folder / "job.yaml").write_text(
        f"model: {{hf_config: Qwen/Qwen3-8B}}\ntrainer: {trainer}\ncluster: {{gpu: H100-SXM-80GB}}\n"
    )

    with pytest.raises(SpecError, match="in the folder of the job"):
        specs.bundle_within("job.yaml", [folder])


def test_files_of_a_trainer_beside_the_spec_are_read(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "arguments.json").write_text('{"bf16": true, "deepspeed": "zero.json"}')
    (folder / "sub" / "zero.json").write_text('{"zero_optimization": {"stage": 2}}')
    (folder / "sub" / "job.yaml").write_text(
        "model: {hf_config: Qwen/Qwen3-8B}\ntrainer: {arguments: arguments.json}\ncluster: {gpu: H100-SXM-80GB}\n"
    )

    bundle = specs.bundle_within("sub/job.yaml", [folder])

    assert bundle["trainer"]["arguments"] == {"bf16": True, "deepspeed": {"zero_optimization": {"stage": 2}}}


def test_a_config_beside_the_spec_is_read(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "config.json").write_text('{"model_type": "llama"}')
    (folder / "sub" / "job.yaml").write_text(
        "model: {hf_config: ./config.json}\ntrain: {sequence_length: 8}\ncluster: {gpu: H100-SXM-80GB}\n"
    )

    bundle = specs.bundle_within("sub/job.yaml", [folder])

    assert bundle["model"]["hf_config"] == {"model_type": "llama"}


@pytest.mark.parametrize(
    "written",
    [
        "../secret.yaml", "/etc/passwd", "link.yaml", "id_rsa", "pipe.yaml", ".", "", "a\0.yaml", "missing.yaml",
        "http://169.254.169.254/x.yaml", "file:///etc/hosts.yaml",
        "up.yaml", "absolute.yaml", "linked.yaml", "code.yaml", "not_json.yaml",
    ],
)  # fmt: skip
def test_the_hook_reads_nothing_outside_of_the_jobs_folder(folder: Path, written: str) -> None:
    with pytest.raises(SpecError) as refused:
        specs.bundle_within(written, [folder])
    assert "secret" not in json.dumps(refused.value.problem).replace("secret.json", "").replace("secret.yaml", "")


def test_a_bundle_that_travels_reads_nothing_at_all(folder: Path) -> None:
    job = {"schema": "planner.bundle/1", "model": {"hf_config": str(folder / "linked.json")}}

    with pytest.raises(SpecError):
        specs.bundle_of_text(json.dumps({**job, "cluster": {"gpu": "H100-SXM-80GB"}}))
