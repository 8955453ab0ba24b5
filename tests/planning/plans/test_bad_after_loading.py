"""What is wrong with a job and seen only when it is built or traced ends in exactly its message.

The jobs are those of tests/job/bad_specs/seen_after_loading.yaml. Factories are run in this process here;
`test_isolated_factories` runs some that would harm it.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import transformers

from planner.errors import PlannerError, TorchVersionError
from planner.job.loading import load_job
from planner.planning import trace_source
from planner.planning.plan import plan_job
from planner.tracing.job_program import trace
from planner.upstream import torch_releases
from tests.fakes.bad_jobs import BadJob, read_bad_jobs

BAD_JOBS = read_bad_jobs("seen_after_loading.yaml")


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_source, "trace_isolated", lambda job, rank, *_, **__: trace(job, rank))


def message_of(job: BadJob, folder: Path) -> str:
    """Without what changes from one transformers, or torch, to the next."""
    with pytest.raises(PlannerError) as caught:
        plan_job(load_job(job.write(folder)))
    if isinstance(caught.value, TorchVersionError):
        raise caught.value  # what this torch lacks is refused before the fault is seen
    said = str(caught.value).replace(transformers.__version__, "VERSION")
    said = said.replace("addmm: mat1", "mat1")  # so a CUDA build says it
    if not torch_releases.has("Muon"):
        said = said.replace(", Adamax, NAdam", ", Adamax, Muon, NAdam")
    return job.shown(said.replace(str(len(transformers.CONFIG_MAPPING.keys())), "NUMBER"), folder)


@pytest.mark.parametrize("job", BAD_JOBS.values(), ids=BAD_JOBS)
def test_the_message_is_exactly(job: BadJob, tmp_path: Path) -> None:
    assert message_of(job, tmp_path) == job.says


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("somebody went to the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


PHI = {
    "model_type": "phi3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 100,
    "num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.usefixtures("no_network")
def test_a_published_config_that_names_code_on_a_hub_is_planned_with_transformers_own(tmp_path: Path) -> None:
    import json

    code = {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}
    (tmp_path / "config.json").write_text(json.dumps({**PHI, "auto_map": code}))
    (tmp_path / "job.yaml").write_text(
        "model: {hf_config: config.json}\ntrain: {sequence_length: 8}\ncluster: {gpu: H100-SXM-80GB}\n"
    )

    assert plan_job(load_job(tmp_path / "job.yaml")).plan.verdict == "fits"


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("job", [job for name, job in BAD_JOBS.items() if name.startswith("config_")])
def test_no_config_is_looked_up_on_a_hub(job: BadJob, tmp_path: Path) -> None:
    message_of(job, tmp_path)
