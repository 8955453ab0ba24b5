"""The host in plans: parts to the byte, the verdict, exit codes, and how it is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner import cli
from planner.admission.decision import decide
from planner.admission.policy import Action, Policy
from planner.allocator.host.replay import HostTimeline, PinnedRules, replay_host
from planner.allocator.host.statement import HostStatement
from planner.events import Phase
from planner.host_events import HostCategory
from planner.job.loading import load_document
from planner.planning.plan import plan_job
from planner.report.statement import Plan, Verdict, from_json, to_json
from planner.report.verdict_text import job_sentence, verdict_sentences
from planner.tracing import rank_trace
from planner.tracing.job_program import trace
from planner.units import GIB, MIB

HIDDEN, FFN, VOCAB, LAYERS = 256, 512, 1000, 2
PARAMETERS = LAYERS * (4 * HIDDEN**2 + 3 * HIDDEN * FFN + 2 * HIDDEN) + 2 * VOCAB * HIDDEN + HIDDEN
NORMS = 2 * LAYERS + 1
EXACT = PinnedRules(largest_rounded_bytes=0, largest_kept_bytes=0)
JOB: dict[str, Any] = {
    "metadata": {"name": "small"},
    "model": {"decoder": {"layers": LAYERS, "hidden": HIDDEN, "heads": 4, "kv_heads": 4, "ffn": FFN, "vocab": VOCAB}},
    "train": {"micro_batch_size": 2, "sequence_length": 64, "iterations": 2},
    "cluster": {"gpus_per_node": 2, "gpu": "H100-SXM-80GB"},
}


def job(train: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **parallel: Any) -> dict[str, Any]:
    return {
        **JOB,
        "train": {**JOB["train"], **(train or {})},
        "cluster": {**JOB["cluster"], **(cluster or {})},
        "parallel": parallel,
    }


def phases_of(document: dict[str, Any], rules: PinnedRules = EXACT) -> HostTimeline:
    """What the first rank holds."""
    traced = rank_trace.loads(rank_trace.dumps(trace(load_document(document))))
    return replay_host(traced.host, rules)


def test_fsdp2_keeps_parameters_gradients_and_states_on_the_host() -> None:
    found = phases_of(job(dp_shard={"degree": 2, "offload": "cpu"}))

    shard = (PARAMETERS - NORMS * HIDDEN) * 4 // 2  # a norm's half is less than a page
    tables = 2 * VOCAB * HIDDEN * 4 // 2
    pinned = shard - tables + 2 * 2**19  # torch rounds what it pins up to a power of two: here two shards of 512,000
    step = found[Phase.OPTIMIZER_STEP, 1]
    assert {**step, HostCategory.OTHER: 0} == {
        HostCategory.PARAMETER: pinned,
        HostCategory.GRADIENT: pinned,
        HostCategory.OPTIMIZER_STATE: 2 * shard,
        HostCategory.OTHER: 0,
    }
    assert tables <= step[HostCategory.OTHER] < tables + 16 * 1024  # what AdamW computes on the way, of the largest


def test_plain_sgd_keeps_no_state() -> None:
    found = phases_of(job({"optimizer": {"name": "SGD"}}, dp_shard={"degree": 2, "offload": "cpu"}))

    assert HostCategory.OPTIMIZER_STATE not in found[Phase.OPTIMIZER_STEP, 1]


def test_activations_rest_in_pinned_memory_from_the_forward_on_and_torch_keeps_their_blocks() -> None:
    found = phases_of(job({"activation_offload": True}, dp_shard=2))

    forward, step = found[Phase.FORWARD, 2], found[Phase.OPTIMIZER_STEP, 2]
    assert forward[HostCategory.ACTIVATION] == found[Phase.FORWARD, 1][HostCategory.ACTIVATION] > 0
    assert step == forward


def test_a_checkpoint_is_on_the_host_of_each_rank_while_it_is_loaded() -> None:
    read = phases_of(job({"checkpoint_load": {"map_location": "cpu"}}, dp_replicate=2))[Phase.CHECKPOINT_LOAD, 0]

    large = 4 * (PARAMETERS - NORMS * HIDDEN)  # a norm is less than a page
    assert read == {HostCategory.CHECKPOINT: large}


OFFLOADED = job({}, {"host_memory": "4GiB"}, dp_shard={"degree": 2, "offload": "cpu"})


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan_job(load_document(OFFLOADED)).plan


def host_of(found: Plan) -> HostStatement:
    assert found.host is not None
    return found.host


def with_memory(found: Plan, capacity: int) -> Plan:
    return replace(found, host=replace(host_of(found), capacity_bytes=capacity))


def test_the_parts_of_a_node_add_up_to_its_peak(planned: Plan) -> None:
    (node,) = host_of(planned).nodes

    assert sum(node.parts.values()) == node.peak.bytes
    assert (node.nodes, node.ranks) == ("0", "0-1")
    assert max(each.bytes for each in node.phases) == node.peak.bytes


def test_a_plan_comes_back_from_its_document(planned: Plan) -> None:
    assert from_json(json.loads(json.dumps(to_json(planned)))) == planned


def test_the_job_is_as_well_off_as_the_worse_of_gpus_and_hosts(planned: Plan) -> None:
    peak = host_of(planned).fullest.peak
    said = {capacity: with_memory(planned, capacity) for capacity in (0, peak.bytes - 1, peak.bytes, 1000 * GIB)}

    assert [each.verdict for each in said.values()] == [Verdict.FITS, Verdict.EXCEEDS, Verdict.FITS, Verdict.FITS]
    assert [host_of(each).verdict for each in said.values()] == [
        None, "exceeds", "not_known_to_exceed", "not_known_to_exceed",
    ]  # fmt: skip


def test_the_sentence_says_which_of_both_decides(planned: Plan) -> None:
    over, fits = with_memory(planned, 16 * MIB), with_memory(planned, 1000 * GIB)

    on_host, on_gpus = verdict_sentences(over)
    assert on_host.startswith("Does not fit on the host: node 0 (ranks 0-1) needs at least ")
    assert on_gpus.startswith("Fits on the GPUs: ")
    assert [each.partition(":")[0] for each in verdict_sentences(fits)] == ["Fits", "Not known to exceed the host"]
    assert job_sentence(over).startswith("small does not fit on the host: node 0 (ranks 0-1) needs at least ")
    assert "of main memory, 0.02 GiB available; peak in optimizer step of iteration" in job_sentence(over)


def test_a_hook_refuses_what_needs_more_of_the_host_than_there_is(planned: Plan) -> None:
    peak = host_of(planned).fullest.peak
    policy = Policy(exceeds=Action.REFUSE, tight=Action.ADMIT)
    decisions = [decide(with_memory(planned, capacity), policy) for capacity in (peak.bytes - 1, peak.bytes)]

    assert [each.verdict for each in decisions] == ["exceeds", "fits"]
    assert [each.action for each in decisions] == [Action.REFUSE, Action.ADMIT]
    assert "main memory" in decisions[0].reason


def test_check_ends_with_3_where_the_host_does_not_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps({**OFFLOADED, "cluster": {**OFFLOADED["cluster"], "host_memory": "16MiB"}}))

    assert cli.main(["check", str(spec)]) == 3
    assert capsys.readouterr().out.startswith("small does not fit on the host: ")


def test_settings_that_no_trace_depends_on_do_not_trace_again() -> None:
    from planner.planning.identity import traced_part

    other = job({}, {"host_memory": "1GiB"}, dp_shard=2)

    assert traced_part(load_document(other)) == traced_part(load_document(job(dp_shard=2)))
