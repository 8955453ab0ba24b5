"""A plan in words: what its job is called, read from the bundle in it, and the verdict in one line or sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.allocator.host.statement import HostStatement, NodeStatement
from planner.events import Phase
from planner.report.statement import (
    Advice,
    Plan,
    PoolStatement,
    RankClassStatement,
    Verdict,
    gpu_of,
    name_of,
    part_of,
    ranks_text,
)
from planner.report.style import Style, size


def describe(job: Mapping[str, Any], style: Style) -> list[str]:
    """Model, step, layout and GPUs."""
    model, train, parallel, cluster = (part_of(job, key) for key in ("model", "train", "parallel", "cluster"))
    if config := part_of(model, "hf_config"):
        model_name = str((config.get("architectures") or [config.get("model_type") or "transformers model"])[0])
    elif decoder := part_of(model, "decoder"):
        model_name = f"decoder {decoder.get('layers')} {style.times} {decoder.get('hidden')}"
    else:
        model_name = str(model.get("factory") or "")
    step = f"micro-batch {train.get('micro_batch_size', 1)}"
    if length := train.get("sequence_length"):
        step += f" {style.times} {length}"
    if (precision := train.get("precision", "none")) != "none":
        step += f", {precision}"
    step += "".join(f", {text}" for text in (part_of(train, "optimizer").get("name"), _recompute(train)) if text)
    axes = []
    for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep"):
        settings = parallel.get(axis, 1)
        degree = settings.get("degree", 1) if isinstance(settings, Mapping) else settings
        kind = settings.get("kind") if isinstance(settings, Mapping) else None
        if axis == "dp_replicate" and part_of(parallel, "dp_shard").get("degree", 1) != 1:
            kind = None  # replicas of shards are fully_shard's own (HSDP): there is no DDP
        if degree != 1:
            axes.append(f"{axis} {degree}" + (f" ({kind})" if kind else ""))
    nodes = cluster.get("nodes", 1)
    count = nodes * cluster.get("gpus_per_node", 1)
    gpus = gpu_of(job) if count == 1 else f"{count} {style.times} {gpu_of(job)}"
    if nodes > 1:
        gpus += f" on {nodes} nodes"
    return [part for part in (model_name, step, ", ".join(axes) or "one process", gpus) if part]


def _recompute(train: Mapping[str, Any]) -> str:
    mode = part_of(train, "recompute").get("mode", "none")
    return "" if mode == "none" else f"recompute {mode}"


def moment_of(phase: Phase, iteration: int) -> str:
    """`optimizer step of iteration 2`, or `load`."""
    name = phase.value.replace("_", " ")
    return f"{name} of iteration {iteration}" if iteration else name


def deciding(statement: Plan) -> RankClassStatement:
    """The rank class that decides: the worst verdict, and of those the one with the least headroom."""
    order = list(Verdict)
    return max(
        statement.rank_classes,
        key=lambda rank_class: (order.index(rank_class.verdict), -rank_class.headroom_bytes),
    )


def host_decides(statement: Plan) -> bool:
    """Whether the nodes' main memory is what makes the verdict worse than that of the GPUs."""
    return statement.host_verdict is statement.verdict is not statement.gpu_verdict


def pool_decides(statement: Plan) -> bool:
    """Whether it is only device and host together that make the verdict worse."""
    return statement.verdict not in (statement.gpu_verdict, statement.host_verdict)


def verdict_sentences(statement: Plan) -> list[str]:
    """Whether it fits and by how much: first what decides, then what else is judged (GPUs, host, memory that both
    share)."""
    return [f"{head[0].upper()}{head[1:]}: {text}." for head, text in _clauses(statement)]


def job_sentence(statement: Plan) -> str:
    """What decides, in one sentence that names the job: `JOB does not fit: ranks 0-7 need ...`, with the moment of the
    peak."""
    head, text = _clauses(statement)[0]
    sentence = f"{statement.name} {head}: {text}"
    if pool_decides(statement):
        return sentence
    if host_decides(statement) and statement.host is not None:
        peak = statement.host.fullest.peak
        return f"{sentence}; peak in {moment_of(peak.phase, peak.iteration)}"
    worst = deciding(statement)
    parts = [sentence, f"peak in {moment_of(worst.peak.phase, worst.peak.iteration)}"]
    if statement.another_torch is not None:
        parts.append(f"planned with torch {statement.another_torch.planned_with}")
    if not statement.calibrated:
        parts.append("uncalibrated")
    if statement.gpu_verdict is not Verdict.EXCEEDS:
        parts.append(_chance(worst))
    return "; ".join(parts)


def confidence_sentence(statement: Plan) -> str:
    """How sure the figures of the GPUs are."""
    measured = f"Calibrated ({statement.provenance.calibration})"
    if not statement.calibrated:
        measured = "Uncalibrated: nothing was measured on this GPU and torch"
    return f"{measured}; {_chance(deciding(statement))}."


def smallest_change(advice: Sequence[Advice]) -> Advice | None:
    """The change of the fewest keys; of equals the planner's own order, the cheapest first."""
    return min(advice, key=lambda entry: (len(entry.change), entry.verdict is not Verdict.FITS), default=None)


def is_smallest(statement: Plan) -> bool:
    """Whether all was planned that could be a smaller change than what its advice says."""
    tried = statement.advice_tried
    return tried is None or not tried.not_planned


def is_lower_bound(statement: Plan) -> bool:
    """Whether it is tight because larger sizes may come than those that were seen."""
    worst = deciding(statement)
    return statement.verdict is worst.verdict is Verdict.TIGHT and worst.judged_iterations > 0


def frees_its_cache(statement: Plan) -> bool:
    """Whether it fits, and only because the allocator frees its cache."""
    releases = any(rank_class.cache_releases for rank_class in statement.rank_classes)
    return statement.verdict is Verdict.TIGHT and releases


def advice_heading(plan: Plan) -> str:
    """Of the changes that are advised."""
    what = "avoid freeing the cache" if frees_its_cache(plan) else "make it fit"
    return f"Changes that {what}, each verified by a plan"


_BOUND_PARTS = "(parameters, optimizer state, CUDA context, and gradients or what a forward saves)"


def bound_sentence(job: Mapping[str, Any], least_bytes: int, capacity_bytes: int) -> str:
    """As `job_sentence`, on a job (its bundle) by its lower bound alone."""
    needs = f"a rank needs at least {size(least_bytes)}, {_available(capacity_bytes, gpu_of(job))}"
    return f"{name_of(job)} does not fit: {needs} {_BOUND_PARTS}"


_Clause = tuple[str, str]
"""The verdict (`does not fit`), and why."""


def _clauses(statement: Plan) -> list[_Clause]:
    """On GPUs, host and pool, as far as they are judged; what decides comes first."""
    gpus, host, pool = _gpu_clause(statement), _host_clause(statement.host), _pool_clause(statement.pool)
    on_gpus = f"{gpus[0]} on the GPUs", gpus[1]
    ordered: list[_Clause | None] = [gpus, pool, host]
    if pool_decides(statement):
        ordered = [pool, on_gpus, host]
    elif host_decides(statement):
        ordered = [host, on_gpus, pool]
    return [clause for clause in ordered if clause is not None]


def _available(capacity_bytes: int, gpu: str) -> str:
    return f"{size(capacity_bytes)} available ({gpu})"


def _chance(worst: RankClassStatement) -> str:
    """How many jobs stayed below the upper end of its interval: 19 of 20, 99 of 100."""
    jobs = round(1 / worst.risk)
    return f"{jobs - 1} of {jobs} jobs of this kind stayed below {size(worst.peak.interval_bytes[1])}"


def _gpu_clause(statement: Plan) -> _Clause:
    worst, verdict = deciding(statement), statement.gpu_verdict
    growing = [(each.growth, ranks_text(each.ranks)) for each in statement.rank_classes if each.growth is not None]
    if verdict is Verdict.EXCEEDS:
        # What is too much already in the steps that were seen is said as of any other job.
        is_full_later = worst.growth is not None and worst.growth.is_reached and worst.headroom_bytes >= 0
        growing = [(worst.growth, ranks_text(worst.ranks))] if is_full_later and worst.growth is not None else []
    head, peak = _peak_clause(worst, verdict, statement.gpu)
    if not growing:
        return head, peak
    growth, ranks = min(growing, key=lambda each: each[0].full_in_step)
    step, steps = f"step {growth.full_in_step:,}", f"{growth.steps_to_run:,}"
    keeps = f"each step keeps {size(growth.bytes_per_step)} on {ranks}"
    if verdict is Verdict.EXCEEDS:
        return head, f"{keeps}, and the memory is full in {step} of {steps}"
    ends = f"{keeps}, and the {steps} steps of the run end before the memory is full in {step}"
    if not growth.steps_to_run:
        ends = f"{keeps}, and the memory is full in that step; how many steps are run is not known"
    if verdict is Verdict.TIGHT:
        return head, f"{peak}; {ends}"
    return (head if growth.steps_to_run else f"{head} until {step}"), ends


def _peak_clause(worst: RankClassStatement, verdict: Verdict, gpu: str) -> _Clause:
    ranks, s = ranks_text(worst.ranks), "s" if worst.ranks.isdigit() else ""
    capacity, device, high = worst.capacity_bytes, worst.peak.device_bytes, worst.peak.interval_bytes[1]
    needs = f"{ranks} need{s} {size(device)}, {_available(capacity, gpu)}"
    if verdict is Verdict.EXCEEDS and device <= capacity:
        return "does not fit", f"{ranks} run{s} out of {size(capacity)} ({gpu}) because free memory is fragmented"
    if verdict is not Verdict.TIGHT:
        return "fits" if verdict is Verdict.FITS else "does not fit", needs
    if worst.cache_releases:
        times = "once" if worst.cache_releases == 1 else f"{worst.cache_releases} times"
        return "fits narrowly", f"{needs}, only if the allocator frees its cache {times}, which slows training"
    if worst.judged_iterations and high <= capacity:
        later = f"iteration {worst.judged_iterations:,}, as sizes vary or grow"
        return "may not fit", f"{needs}, and more may be needed after {later}"
    return "fits narrowly", f"{needs}, but {size(high)} may be needed"


def _host_clause(host: HostStatement | None) -> _Clause | None:
    """Whether the fullest node lacks memory, as far as is known; None where nothing is judged."""
    if host is None or host.verdict is None:
        return None
    node = host.fullest
    needs = f"{nodes_of(node)} needs at least {size(node.peak.bytes)} of main memory"
    head = "does not fit on the host" if host.exceeds else "not known to exceed the host"
    return head, f"{needs}, {size(host.capacity_bytes)} available"


def _pool_clause(pool: PoolStatement | None) -> _Clause | None:
    """Whether device and host fit into the memory that they share, with both shares; None where each has its own."""
    if pool is None:
        return None
    shares = (
        f"{size(pool.device_bytes)} on the device and at least {size(pool.host_bytes)} on the host"
        f" ({ranks_text(pool.ranks)}, {moment_of(pool.phase, pool.iteration)})"
    )
    whole = f"the {size(pool.capacity_bytes)} that device and host share, {size(pool.system_bytes)} for the system"
    stops = "a host whose shared memory is full stops answering, without an OOM kill"
    if pool.verdict is Verdict.FITS:
        return "fits into the shared memory", f"{shares} leave {size(pool.headroom_bytes)} of {whole}"
    if pool.verdict is Verdict.EXCEEDS:
        over = f"{size(-pool.headroom_bytes)} more than" if pool.headroom_bytes < 0 else "more than"
        return "does not fit into the shared memory", f"{shares} are {over} {whole}; {stops}"
    least = size(pool.capacity_bytes - pool.system_bytes - pool.highest_bytes)
    return "fits narrowly into the shared memory", (
        f"{shares} leave {size(pool.headroom_bytes)} of {whole}, and at worst {least}; less than"
        f" {size(pool.floor_bytes)} are dangerous: {stops}"
    )


def nodes_of(node: NodeStatement) -> str:
    """The nodes and their ranks, in words."""
    nodes = f"node {node.nodes}" if node.nodes.isdigit() else f"each of nodes {node.nodes}"
    return f"{nodes} ({ranks_text(node.ranks)})"
