"""Every metric that planner exports, and the exposition for Prometheus, read from the history at each scrape."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial
from operator import attrgetter
from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from planner import distribution
from planner.errors import PlannerError
from planner.planning.identity import provenance_of
from planner.report.statement import Verdict
from planner.service.history import records
from planner.service.history.capacity import Capacity
from planner.service.history.counters import SECONDS, bound_text
from planner.service.history.errors import HistoryError
from planner.service.history.job_table import NOT_TOLD, OUT_OF_MEMORY, whose_memory
from planner.service.history.overview import Overview, overview
from planner.service.history.plan_table import HostSummary, RankClassSummary
from planner.service.history.records import ValidationState
from planner.service.history.store import History
from planner.truth.calibration import interval
from planner.truth.calibration.interval import Calibration
from planner.truth.failures.messages import Cause
from planner.versions import installed_version

REQUESTS = "planner_requests_total"
REQUEST_SECONDS = "planner_request_duration_seconds"
JOBS_TRACED = "planner_jobs_traced_total"
JOBS_JOINED = "planner_jobs_joined_total"
JOBS_REFUSED = "planner_jobs_refused_total"
TRACE_RETRIES = "planner_trace_retries_total"
WORKERS_KILLED = "planner_trace_workers_killed_total"
WORKERS = "planner_trace_workers"
WAITING = "planner_trace_waiting_jobs"
"""What others count, by these names, with :class:`planner.service.history.counters.Counters`."""
KILL_REASONS = ("time", "memory", "abandoned")


class Kind(StrEnum):
    """The types of Prometheus; INFO is a gauge that is 1, its labels are what it tells."""

    GAUGE = "gauge"
    INFO = "info"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


Row = tuple[tuple[str, ...], float]
"""Values of the labels, in their order, and the value. In a histogram the last one is `le`, or `sum`."""
Rows = Callable[[Overview], Iterable[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One metric. `source` says to people where it is read, `rows` reads it."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    source: str
    rows: Rows
    bounds: tuple[float, ...] = ()
    """Of a histogram: the same in every series, or quantiles over several of them would be wrong."""


def _define(
    kind: Kind, name: str, labels: str, source: str, help_: str, rows: Rows, bounds: tuple[float, ...] = ()
) -> Definition:
    names = tuple(labels.split())
    return Definition(name=name, kind=kind, labels=names, help=help_, source=source, rows=rows, bounds=bounds)


_gauge = partial(_define, Kind.GAUGE)
_info = partial(_define, Kind.INFO)


def _define_counter(
    name: str, labels: str, help_: str, zero: Iterable[str | tuple[str, ...]] = (), total: str = ""
) -> Definition:
    """A counter of the shared totals; label values that are known beforehand begin at zero."""
    names = tuple(labels.split())

    def rows(now: Overview) -> Iterator[Row]:
        counts = {value if isinstance(value, tuple) else (value,): 0.0 for value in zero}
        for series, value in now.figures.totals.items():
            if series[0] == (total or name):
                key = _values(names, series[1])
                counts[key] = counts.get(key, 0.0) + value
        return iter((counts or ({} if names else {(): 0.0})).items())

    return _define(Kind.COUNTER, name, labels, "totals", help_, rows)


def _distribution(
    name: str, labels: str, help_: str, total: str = "", bounds: tuple[float, ...] = SECONDS
) -> Definition:
    """A histogram of the shared totals, in which every bucket counts only what lies between it and the one below."""
    names = tuple(labels.split())

    def rows(now: Overview) -> Iterator[Row]:
        for (counted, pairs), value in now.figures.totals.items():
            if counted == f"{total or name}_bucket":
                yield (*_values(names, pairs), dict(pairs).get("le", "+Inf")), value
            elif counted == f"{total or name}_sum":
                yield (*_values(names, pairs), "sum"), value

    return _define(Kind.HISTOGRAM, name, labels, "totals", help_, rows, bounds)


def _level(name: str, labels: str, help_: str) -> Definition:
    names = tuple(labels.split())

    def rows(now: Overview) -> Iterator[Row]:
        return (
            (_values(names, labels), value) for (level, labels), value in now.figures.levels.items() if level == name
        )

    return _define(Kind.GAUGE, name, labels, "levels of living processes", help_, rows)


def _values(names: Iterable[str], labels: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    known = dict(labels)
    return tuple(known.get(name, "") for name in names)


def _of_class(figure: Callable[[RankClassSummary], float]) -> Rows:
    return lambda now: (((plan, str(one.representative)), figure(one)) for plan, one in now.rank_classes)


def _of_host(figure: Callable[[HostSummary], float | None]) -> Rows:
    def rows(now: Overview) -> Iterator[Row]:
        values = ((plan_id, figure(host)) for plan_id, host in now.hosts.items())
        return (((plan_id,), value) for plan_id, value in values if value is not None)

    return rows


def _of_group(figure: Callable[[Capacity], float]) -> Rows:
    return lambda now: (((row.team, row.queue, row.gpu), figure(row)) for row in now.capacity)


def _of_errors(figure: Callable[[tuple[float, ...]], float]) -> Rows:
    return lambda now: ((group, figure(tuple(map(abs, errors))) / 100) for group, errors in now.errors.items())


def _of_kinds(fields: Mapping[str, str]) -> Rows:
    return lambda now: (
        ((row.team, row.queue, row.gpu, kind), getattr(row, field))
        for row in now.capacity
        for kind, field in fields.items()
    )


def _calibration(now: Overview) -> Calibration | None:
    """None also where another version of planner wrote it: the rest of the metrics is still told."""
    try:
        return None if now.calibration is None else interval.from_json(now.calibration.document)
    except PlannerError:
        return None


def _corrections(figure: Callable[[Any], float]) -> Rows:
    def rows(now: Overview) -> Iterator[Row]:
        calibration = _calibration(now)
        for correction in calibration.corrections if calibration else ():
            for part in ("reserved", "context", "nccl"):
                learnt = getattr(correction, part)
                if learnt is not None:
                    yield (correction.gpu, correction.torch, part), figure(learnt)

    return rows


def _of_calibration(figure: Callable[[Any], float]) -> Rows:
    return lambda now: [((), figure(now.calibration))] if now.calibration else []


@cache
def build_labels() -> tuple[str, ...]:
    """Of the program that answers; replicas of one service run the same."""
    rules = provenance_of(Calibration.none()).allocator_rules
    return distribution.version(), installed_version("torch") or "none", platform.python_version(), rules


_PLAN, _CLASS, _GROUP, _KIND = "plan", "plan rank_class", "team queue gpu", "gpu torch"
_ACTIVE, _OPEN, _JOBS, _CAPACITY = "active plans", "jobs of active plans", "system job_id", "capacity"
_VALIDATIONS, _CALIBRATION = "validations", "the calibration in use"

METRICS: tuple[Definition, ...] = (
    # What is predicted
    _info("planner_plan_info", "plan name team queue gpu verdict calibrated", _ACTIVE,
          "An active plan: one of a job that has not ended, or one that was used within the last hour.",
          lambda now: (((plan.plan_id, plan.name, plan.team, plan.queue, plan.gpu, plan.verdict.value,
                          str(plan.calibrated).lower()), 1) for plan in now.plans)),
    _gauge("planner_plan_ranks", _PLAN, _ACTIVE, "Ranks of the planned job.",
           lambda now: (((plan.plan_id,), plan.ranks) for plan in now.plans)),
    _gauge("planner_plan_capacity_bytes", _PLAN, _ACTIVE, "What one rank of the plan may use of its GPU.",
           lambda now: (((plan,), value) for plan, value in now.capacity_bytes.items())),
    _gauge("planner_plan_host_nodes", _PLAN, _ACTIVE, "Nodes of the planned job.", _of_host(lambda host: host.nodes)),
    _gauge("planner_plan_host_capacity_bytes", _PLAN, _ACTIVE,
           "What the job says that one of its nodes has of main memory; nothing where it does not say.",
           _of_host(lambda host: host.capacity_bytes or None)),
    _gauge("planner_predicted_host_bytes", _PLAN, _ACTIVE,
           "Main memory that the fullest node of the plan takes at least.", _of_host(lambda host: host.fullest_bytes)),
    _gauge("planner_plan_stored_timestamp_seconds", _PLAN, _ACTIVE, "When the plan was first made.",
           lambda now: (((plan.plan_id,), plan.stored_at.timestamp()) for plan in now.plans)),
    _gauge("planner_rank_class_ranks", _CLASS, _ACTIVE,
           "Ranks of a rank class; rank_class is its lowest rank. Multiply by it to sum over a job.",
           _of_class(lambda one: one.count)),
    *(
        _gauge(f"planner_predicted_{name}_bytes", _CLASS, _ACTIVE, help_, _of_class(figure))
        for name, help_, figure in (
            ("device",
             "Predicted peak of one rank as NVML shows it: reserved bytes and what lies outside the allocator.",
             attrgetter("device_bytes")),
            ("reserved", "Predicted peak of reserved bytes of one rank.", attrgetter("reserved_bytes")),
            ("allocated", "Predicted peak of allocated bytes of one rank.", attrgetter("allocated_bytes")),
            ("device_lowest",
             "Lower end of the interval in which the device bytes of one rank lie with 95 % probability.",
             lambda one: one.interval_bytes[0]),
            ("device_highest",
             "Upper end of the interval in which the device bytes of one rank lie with 95 % probability.",
             lambda one: one.interval_bytes[1]),
        )
    ),
    _gauge("planner_predicted_category_bytes", f"{_CLASS} category", _ACTIVE,
           "Allocated bytes of one rank at its predicted peak by category; they add up to the allocated peak.",
           lambda now: (((plan, str(one.representative), category.value), value)
                         for plan, one in now.categorized for category, value in one.at_peak.items())),
    _gauge("planner_plans", "verdict", "plans", "Plans in the store.",
           lambda now: (((verdict.value,), now.plan_counts.get(verdict, 0)) for verdict in Verdict)),
    # To what it is bound
    _info("planner_job_info", f"{_PLAN} {_JOBS} team queue", _OPEN, "A job that has not ended and its active plan.",
          lambda now: (((job.plan_id, job.system, job.job_id, job.team, job.queue), 1) for job in now.jobs)),
    _info("planner_job_gpu_info", f"{_CLASS} {_JOBS} host gpu_uuid", _OPEN,
          "A GPU of a job that has not ended, and the rank class that runs on it; what is not known is empty.",
          lambda now: ((gpu, 1) for gpu in now.gpus)),
    _gauge("planner_job_measured_device_bytes", f"{_CLASS} {_JOBS}", _OPEN,
           "Highest device bytes that a rank of the class has reported so far.",
           lambda now: now.measured),
    # Capacity
    *(
        _gauge(f"planner_capacity_{name}", _GROUP, _CAPACITY, help_, _of_group(attrgetter(field)))
        for name, field, help_ in (
            ("jobs", "jobs", "Jobs that have not ended."),
            ("gpus", "gpus", "GPUs of jobs that have not ended."),
            ("requested_bytes", "requested_bytes", "Memory of the GPUs that open jobs asked for."),
            ("predicted_bytes", "predicted_bytes", "Device bytes that open jobs will take."),
            ("headroom_bytes", "headroom_bytes", "Requested less predicted bytes; negative if more is needed."),
            ("measured_bytes", "measured_bytes", "Device bytes that ranks of open jobs reported."),
            ("predicted_of_measured_bytes", "predicted_of_measured_bytes",
             "Device bytes that were predicted for the ranks that told theirs."),
            ("host_requested_bytes", "host_requested_bytes", "Main memory that open jobs say their nodes have."),
            ("host_predicted_bytes", "host_predicted_bytes", "Main memory that the nodes of open jobs take at least."),
            ("measured_gpus", "measured_gpus", "Ranks of open jobs that told their device bytes."),
            ("gpu_seconds", "gpu_seconds",
             "GPUs times seconds of remembered jobs that have started, to their end or now."),
            ("judged_jobs", "judged",
             "Remembered jobs that ended, finished or out of memory: those that show whether a verdict was right."),
        )
    ),
    _gauge("planner_capacity_wrong_verdicts", f"{_GROUP} kind", _CAPACITY,
           "Judged jobs whose verdict was wrong: it said fits and ran out, or said exceeds and ran.",
           _of_kinds({"said_fits_ran_out": "said_fits_ran_out", "said_exceeds_ran": "said_exceeds_ran"})),
    _gauge("planner_capacity_out_of_memory_jobs", f"{_GROUP} memory", _CAPACITY,
           "Remembered jobs that ended out of memory, of the GPU or of the host.",
           _of_kinds({"gpu": "ran_out_gpu", "host": "ran_out_host"})),
    _define_counter("planner_jobs_out_of_memory_total", "memory cause",
                    "Jobs that ended out of memory, by whose it was (gpu, host, not_told) and by cause.",
                    [(whose_memory(cause), cause or NOT_TOLD) for cause in (*Cause, None)], OUT_OF_MEMORY),
    # Checks and validations
    _define_counter("planner_verdicts_total", "verdict", "Verdicts given to checks.", [*Verdict], records.VERDICTS),
    _gauge("planner_checks", "verdict", "checks", "Checks in the store; pending is without a verdict so far.",
           lambda now: (((verdict.value if verdict else "pending",), now.check_counts.get(verdict, 0))
                         for verdict in (*Verdict, None))),
    _gauge("planner_validations", "state", _VALIDATIONS, "Validations in the store.",
           lambda now: (((state.value,), now.validation_counts.get(state, 0)) for state in ValidationState)),
    _distribution("planner_validation_error_ratio", _KIND,
                  "Errors of validations: how far the prediction lies from what was measured, relative.",
                  records.ERRORS, records.ERROR_BOUNDS),
    _gauge("planner_validation_last_error_ratio", _KIND, _VALIDATIONS, "Error of the newest validation.",
           _of_errors(lambda errors: errors[0])),
    _gauge("planner_validation_median_error_ratio", _KIND, _VALIDATIONS,
           "Median error of the newest validations, a thousand of all kinds.", _of_errors(statistics.median)),
    _gauge("planner_validation_worst_error_ratio", _KIND, _VALIDATIONS,
           "Largest error of the newest validations, a thousand of all kinds.", _of_errors(max)),
    # Calibration
    _info("planner_calibration_info", "calibration", _CALIBRATION, "The calibration that was learnt last.",
          lambda now: [((now.calibration.calibration_id,), 1)] if now.calibration else []),
    _gauge("planner_calibration_timestamp_seconds", "", _CALIBRATION, "When it was learnt.",
           _of_calibration(lambda stored: stored.stored_at.timestamp())),
    _gauge("planner_calibration_measurements", "", _CALIBRATION, "Measurements that it was learnt from.",
           _of_calibration(lambda stored: stored.measurements)),
    _gauge("planner_calibration_quarantined_measurements", "", _CALIBRATION,
           "Measurements that were set aside and taught nothing.",
           lambda now: [((), len(learnt.quarantined))] if (learnt := _calibration(now)) else []),
    _gauge("planner_calibration_correction_ratio", f"{_KIND} part", _CALIBRATION,
           "How far a part of what is measured lies from what is predicted, relative.",
           _corrections(lambda learnt: learnt.residual)),
    _gauge("planner_calibration_correction_measurements", f"{_KIND} part", _CALIBRATION,
           "Measurements on which the correction of a part stands.", _corrections(lambda learnt: learnt.measurements)),
    # The service
    _define_counter(REQUESTS, "method route status", "Requests answered; status 0: the client went before."),
    _distribution(REQUEST_SECONDS, "route", "How long answers took."),
    _level(WORKERS, "state", "Tracing processes."),
    _level(WAITING, "", "Jobs that wait for a tracing process."),
    _define_counter(JOBS_TRACED, "", "Jobs for which a trace was begun."),
    _define_counter(JOBS_JOINED, "", "Jobs that waited for the plan of an equal job in the making."),
    _define_counter(JOBS_REFUSED, "", "Jobs turned away because too many waited."),
    _define_counter(TRACE_RETRIES, "", "Traces begun again because their process died."),
    _define_counter(WORKERS_KILLED, "reason",
             "Tracing processes ended: over the limit of time or memory, or abandoned by those who waited.",
             KILL_REASONS),
    # This exposition
    _gauge("planner_series_dropped", "kind", "this exposition",
           "What was left out of this exposition to keep it small; capacity was added up as _other instead.",
           lambda now: (((kind,), count) for kind, count in now.left_out.items())),
    _gauge("planner_processes", "", "levels of living processes", "Processes that count and told so lately.",
           lambda now: [((), now.figures.writers)]),
    _info("planner_build_info", "planner torch python allocator_rules", "the process that answers",
          "What answers; the same in every replica.", lambda _: [(build_labels(), 1)]),
    _gauge("planner_store_read_seconds", "", "this exposition", "How long reading the store for it took.",
           lambda now: [((), now.seconds)]),
)  # fmt: skip

STORE_UP = Definition(
    name="planner_store_up", kind=Kind.GAUGE, labels=(), source="this exposition", rows=lambda _: [((), 1)],
    help="1 if the store could be read; 0 if not, and then nothing that lies in it is told.",
)  # fmt: skip


MOST_SERIES = 200


class PlannerCollector:
    """Reads the history anew for every scrape; what a registry of prometheus_client collects from."""

    def __init__(self, history: History) -> None:
        self._history = history

    def collect(self) -> Iterator[Metric]:
        """All metrics. If the history cannot be read, that it is so and what answers: a scrape does not fail."""
        try:
            now = overview(self._history)
        except HistoryError:
            yield _family(STORE_UP, [((), 0)])
            yield from (
                _family(metric, [(build_labels(), 1)]) for metric in METRICS if metric.name == "planner_build_info"
            )
            return
        yield _family(STORE_UP, [((), 1)])
        dropped = 0
        for metric in METRICS:
            if metric.name == "planner_series_dropped":
                now = replace(now, left_out={**now.left_out, "counter": dropped})
            rows, more = _limit_series(metric, metric.rows(now))
            dropped += more
            yield _family(metric, rows)


def exposition(history: History, accept: str = "") -> tuple[bytes, str]:
    encode, media_type = choose_encoder(accept)
    return encode(PlannerCollector(history)), media_type


def table() -> str:
    lines = ["| metric | type | labels | what it tells | read from |", "|---|---|---|---|---|"]
    for metric in (STORE_UP, *METRICS):
        labels = ", ".join(f"`{name}`" for name in metric.labels)
        help_ = metric.help.replace("|", r"\|")
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {help_} | {metric.source} |")
    return "\n".join(lines) + "\n"


def _limit_series(metric: Definition, rows: Iterable[Row]) -> tuple[list[Row], int]:
    """Each combination of labels once, or Prometheus refuses the scrape; counters as many as there may be."""
    unique = dict(rows)
    if metric.kind not in (Kind.COUNTER, Kind.HISTOGRAM):
        return list(unique.items()), 0
    width = len(metric.labels)
    groups = sorted({labels[:width] for labels in unique})
    kept = set(groups[:MOST_SERIES])
    return [row for row in sorted(unique.items()) if row[0][:width] in kept], len(groups) - len(kept)


def _family(metric: Definition, rows: Iterable[Row]) -> Metric:
    if metric.kind is not Kind.HISTOGRAM:
        make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family = make(metric.name, metric.help, labels=metric.labels)
        for labels, value in rows:
            family.add_metric(labels, value)
        return family
    histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    groups: dict[tuple[str, ...], dict[str, float]] = {}
    for labels, value in rows:
        groups.setdefault(labels[:-1], {})[labels[-1]] = value
    for labels, counts in groups.items():
        total = counts.pop("sum", 0.0)
        # What an earlier version counted into other bounds is counted on into the next of these.
        buckets = [
            (bound_text(bound), sum(count for le, count in counts.items() if float(le) <= bound))
            for bound in (*metric.bounds, math.inf)
        ]
        histogram.add_metric(labels, buckets, total)
    return histogram


if __name__ == "__main__":
    print(table(), end="")
