"""A plan in words: what its job is called, read from the bundle in it, and the verdict in one line or sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.allocator.host.statement import HostStatement, NodeStatement
from planner.events import Phase
from planner.job.bound.lower_bound import Bound
from planner.report.statement import (
    Plan,
    PoolStatement,
    ProgramStatement,
    RankClassStatement,
    Statement,
    Verdict,
    ranks_text,
)
from planner.report.style import Style, size
from planner.units import show_bytes


def name_of(job: Mapping[str, Any]) -> str:
    return str(_part(job, "metadata").get("name") or "unnamed job")


def gpu_of(job: Mapping[str, Any]) -> str:
    gpu = _part(job, "cluster").get("gpu")
    if isinstance(gpu, Mapping):
        return str(gpu.get("name") or gpu.get("arch") or "GPU")
    return str(gpu or "GPU")


def describe(job: Mapping[str, Any], style: Style) -> list[str]:
    """Model, step, layout and GPUs."""
    model, train, parallel, cluster = (_part(job, key) for key in ("model", "train", "parallel", "cluster"))
    if config := _part(model, "hf_config"):
        model_name = str((config.get("architectures") or [config.get("model_type") or "transformers model"])[0])
    elif decoder := _part(model, "decoder"):
        model_name = f"decoder {decoder.get('layers')} {style.times} {decoder.get('hidden')}"
    else:
        model_name = str(model.get("factory") or "")
    step = f"micro-batch {train.get('micro_batch_size', 1)}"
    if length := train.get("sequence_length"):
        step += f" {style.times} {length}"
    if (precision := train.get("precision", "none")) != "none":
        step += f", {precision}"
    axes = []
    for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep"):
        settings = parallel.get(axis, 1)
        degree = settings.get("degree", 1) if isinstance(settings, Mapping) else settings
        kind = settings.get("kind") if isinstance(settings, Mapping) else None
        if axis == "dp_replicate" and _part(parallel, "dp_shard").get("degree", 1) != 1:
            kind = None  # replicas of shards are fully_shard's own (HSDP): there is no DDP
        if degree != 1:
            axes.append(f"{axis} {degree}" + (f" ({kind})" if kind else ""))
    nodes = cluster.get("nodes", 1)
    count = nodes * cluster.get("gpus_per_node", 1)
    gpus = gpu_of(job) if count == 1 else f"{count} {style.times} {gpu_of(job)}"
    if nodes > 1:
        gpus += f" on {nodes} nodes"
    return [part for part in (model_name, step, ", ".join(axes) or "one process", gpus) if part]


def _part(job: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = job.get(key)
    return value if isinstance(value, Mapping) else {}


def moment_of(phase: Phase, iteration: int) -> str:
    """`optimizer step of iteration 2`, or `load`."""
    name = phase.value.replace("_", " ")
    return f"{name} of iteration {iteration}" if iteration else name


def deciding(statement: Statement) -> RankClassStatement:
    """The rank class that decides: the worst verdict, and of those the one with the least headroom."""
    order = list(Verdict)
    return max(
        statement.rank_classes,
        key=lambda rank_class: (order.index(rank_class.verdict), -rank_class.headroom_bytes),
    )


def host_decides(statement: Statement) -> bool:
    """Whether the nodes' main memory is what makes the verdict worse than that of the GPUs."""
    return statement.host_verdict is statement.verdict is not statement.gpu_verdict


def pool_decides(statement: Statement) -> bool:
    """Whether it is only device and host together that make the verdict worse."""
    return statement.verdict not in (statement.gpu_verdict, statement.host_verdict)


def one_line(plan: Plan) -> str:
    """The verdict in one line, for `planner check`."""
    begin = f"{plan.verdict.value}: {name_of(plan.job)} takes"
    if plan.host is not None and host_decides(plan):
        node = plan.host.fullest
        needs = f"{size(node.peak.bytes)} of {size(plan.host.capacity_bytes)} of main memory"
        return f"{begin} {needs} on {nodes_of(node)}, {moment_of(node.peak.phase, node.peak.iteration)}"
    if plan.pool is not None and pool_decides(plan):
        pool = plan.pool
        return (
            f"{begin} {size(pool.device_bytes)} on the device and {size(pool.host_bytes)} on the host of the"
            f" {size(pool.capacity_bytes)} that they share, {size(pool.system_bytes)} of which are the system's, on"
            f" {gpu_of(plan.job)} ({ranks_text(pool.ranks)}, {moment_of(pool.phase, pool.iteration)})"
        )
    worst = deciding(plan)
    at = worst.peak if worst.shared is None else worst.shared.fullest()
    calibrated = "" if plan.calibrated else ", uncalibrated"
    exceeds = plan.gpu_verdict is Verdict.EXCEEDS
    likely = "" if exceeds else f"; {chance(worst.risk, size(worst.peak.interval_bytes[1]))}"
    return (
        f"{begin} {size(worst.peak.device_bytes)} of {size(worst.capacity_bytes)} on {gpu_of(plan.job)} "
        f"({ranks_text(worst.ranks)}, {moment_of(at.phase, at.iteration)}{calibrated}){likely}"
    )


def job_sentence(statement: Statement) -> str:
    """The verdict in one sentence that names the job, for the owner of a job that was submitted."""
    name, gpu = _name_and_gpu(statement)
    if statement.pool is not None and pool_decides(statement):
        return f"{name}: {pool_sentence(statement.pool)}"
    if statement.host is not None and host_decides(statement):
        return f"{name}: {_host_sentence(statement.host)}"
    worst, verdict = deciding(statement), statement.gpu_verdict
    capacity, peak = show_bytes(worst.capacity_bytes), worst.peak
    ranks, s = ranks_text(worst.ranks), "s" if worst.ranks.isdigit() else ""
    about = moment_of(peak.phase, peak.iteration) + ("" if statement.calibrated else ", uncalibrated")
    if isinstance(statement, Plan) and statement.another_torch is not None:
        about += f", planned with torch {statement.another_torch.planned_with}"
    if verdict is not Verdict.EXCEEDS:
        is_so, likely = "fits" if verdict is Verdict.FITS else "is tight", show_bytes(peak.interval_bytes[1])
        takes = f"{ranks} take{s} {show_bytes(peak.device_bytes)} of {capacity} on {gpu} ({about})"
        return f"{name} {is_so}: {takes}; {chance(worst.risk, likely)}"
    if worst.headroom_bytes >= 0:
        why = f"because free memory is fragmented ({about})"
        return f"{name} does not fit: {ranks} run{s} out of {capacity} on {gpu} {why}"
    over = f"{show_bytes(peak.device_bytes)}, {show_bytes(-worst.headroom_bytes)} more than the {capacity} of {gpu}"
    return f"{name} does not fit: {ranks} need{s} {over} ({about})"


def _name_and_gpu(statement: Statement) -> tuple[str, str]:
    if isinstance(statement, Plan):
        return name_of(statement.job), gpu_of(statement.job)
    assert isinstance(statement, ProgramStatement)
    return statement.metadata.get("name") or "the job", statement.gpu


_BOUND_PARTS = "(parameters, optimizer state, CUDA context, and gradients or what a forward saves)"


def bound_sentence(job: Mapping[str, Any], least_bytes: int, capacity_bytes: int) -> str:
    """As `job_sentence`, on a job (its bundle) by its lower bound alone."""
    over = f"{show_bytes(least_bytes)}, {show_bytes(least_bytes - capacity_bytes)} more than the"
    has = f"{show_bytes(capacity_bytes)} of {gpu_of(job)}"
    return f"{name_of(job)} does not fit: a rank needs at least {over} {has} {_BOUND_PARTS}"


def bound_line(job: Mapping[str, Any], bound: Bound) -> str:
    """The verdict on a job (its bundle) by its lower bound alone, in one line."""
    needs = f"at least {size(bound.least_bytes)} of {size(bound.capacity_bytes)}"
    return f"{Verdict.EXCEEDS.value}: {name_of(job)} takes {needs} on {gpu_of(job)} {_BOUND_PARTS}"


def verdict_sentence(statement: Statement) -> str:
    """Whether it fits and by how much: on the GPUs in one sentence, on the host in another where that is judged."""
    gpus = _gpu_sentence(statement)
    host = "" if statement.host is None else _host_sentence(statement.host)
    if statement.pool is not None:
        pool = pool_sentence(statement.pool)
        alone = f"On the device alone i{gpus[1:]}" if pool_decides(statement) else gpus
        return " ".join(
            part for part in ((pool, alone, host) if pool_decides(statement) else (alone, pool, host)) if part
        )
    if not host:
        return gpus
    return f"{host} On the GPUs i{gpus[1:]}" if host_decides(statement) else f"{gpus} {host}"


def _gpu_sentence(statement: Statement) -> str:
    worst, verdict = deciding(statement), statement.gpu_verdict
    growing = [(each.growth, ranks_text(each.ranks)) for each in statement.rank_classes if each.growth is not None]
    if verdict is Verdict.EXCEEDS:
        # What is too much already in the steps that were seen is said as of any other job.
        is_full_later = worst.growth is not None and worst.growth.is_reached and worst.headroom_bytes >= 0
        growing = [(worst.growth, ranks_text(worst.ranks))] if is_full_later and worst.growth is not None else []
    if not growing:
        return _peak_sentence(statement)
    growth, ranks = min(growing, key=lambda each: each[0].full_in_step)
    step, steps = f"step {growth.full_in_step:,}", f"{growth.steps_to_run:,}"
    keeps = f"each step keeps {size(growth.bytes_per_step)} on {ranks}"
    if verdict is Verdict.EXCEEDS:
        return f"It does not fit: {keeps}, and the memory is full in {step} of {steps}."
    ends = f"{keeps}, and the {steps} steps of the run end before the memory is full in {step}."
    if not growth.steps_to_run:
        ends = f"{keeps}, and the memory is full in it. How many steps are run is not known."
    if verdict is Verdict.TIGHT:
        return f"{_peak_sentence(statement)} {ends[0].upper()}{ends[1:]}"
    return f"It fits: {ends}" if growth.steps_to_run else f"It fits until {step}: {ends}"


def _peak_sentence(statement: Statement) -> str:
    worst, verdict = deciding(statement), statement.gpu_verdict
    ranks, one = ranks_text(worst.ranks), worst.ranks.isdigit()
    capacity, device, high = worst.capacity_bytes, worst.peak.device_bytes, worst.peak.interval_bytes[1]
    if verdict is Verdict.FITS:
        fits = f"It fits: {size(worst.headroom_bytes)} of {size(capacity)} stay free on {ranks}"
        return f"{fits}; {chance(worst.risk, size(high))}."
    if verdict is Verdict.EXCEEDS and device > capacity:
        return (
            f"It does not fit: {ranks} would take {size(device - capacity)} more than the {size(capacity)} there are."
        )
    if verdict is Verdict.EXCEEDS:
        run = "runs" if one else "run"
        return f"It does not fit: {ranks} {run} out of {size(capacity)} because free memory is fragmented."
    if worst.cache_releases:
        times = "once" if worst.cache_releases == 1 else f"{worst.cache_releases} times"
        fit = "fits" if one else "fit"
        return f"It is tight: {ranks} {fit} only if the allocator frees its cache {times}, which slows training."
    if worst.judged_iterations and high <= capacity:
        return (
            f"It is not judged beyond iteration {worst.judged_iterations:,}, since sizes vary or grow: larger ones"
            f" may come. Until then {size(worst.headroom_bytes)} of {size(capacity)} stay free on {ranks}."
        )
    return (
        f"It is tight: {size(device)} fit into {size(capacity)} on {ranks}, and {size(high)} do not:"
        f" {chance(worst.risk, 'that')}."
    )


def chance(risk: float, bound: str) -> str:
    """How many jobs stayed below a bound that a share of them exceeds: 19 of 20, 99 of 100."""
    jobs = round(1 / risk)
    return f"{jobs - 1} of {jobs} jobs of this kind stayed below {bound}"


def _host_sentence(host: HostStatement) -> str:
    """Whether the fullest node has the memory; empty where nothing is judged."""
    node, capacity = host.fullest, host.capacity_bytes
    if host.verdict is None:
        return ""
    if host.verdict == Verdict.FITS:
        return f"On the host {size(host.headroom_bytes)} of {size(capacity)} stay free on {nodes_of(node)}."
    if host.verdict == Verdict.EXCEEDS:
        return (
            f"It does not fit on the host: {nodes_of(node)} would take {size(-host.headroom_bytes)} more main memory "
            f"than the {size(capacity)} there are."
        )
    return (
        f"It is tight on the host: {size(node.peak.bytes)} fit into {size(capacity)} on {nodes_of(node)}, but not "
        f"{size(max(node.peak.interval_bytes[1], node.peak.bytes + node.file_bytes))}, which it may take."
    )


def pool_sentence(pool: PoolStatement) -> str:
    """Whether device and host fit into the memory that they share, with both shares."""
    shares = (
        f"{size(pool.device_bytes)} on the device and {size(pool.host_bytes)} on the host"
        f" ({ranks_text(pool.ranks)}, {moment_of(pool.phase, pool.iteration)})"
    )
    whole = f"the {size(pool.capacity_bytes)} that device and host share, {size(pool.system_bytes)} for the system"
    stops = "a host whose shared memory is full stops answering, without an OOM kill"
    if pool.verdict is Verdict.FITS:
        return f"Together {shares} leave {size(pool.headroom_bytes)} of {whole}."
    if pool.verdict is Verdict.EXCEEDS:
        over = f"{size(-pool.headroom_bytes)} more than" if pool.headroom_bytes < 0 else "more than"
        return f"It does not fit into the pool: {shares} take {over} {whole}; {stops}."
    return (
        f"It is tight in the pool: {shares} leave {size(pool.headroom_bytes)} of {whole}, and at worst"
        f" {size(pool.capacity_bytes - pool.system_bytes - pool.highest_bytes)}; less than {size(pool.floor_bytes)} are"
        f" dangerous: {stops}."
    )


def nodes_of(node: NodeStatement) -> str:
    """The nodes and their ranks, in words."""
    nodes = f"node {node.nodes}" if node.nodes.isdigit() else f"each of nodes {node.nodes}"
    return f"{nodes} ({ranks_text(node.ranks)})"
