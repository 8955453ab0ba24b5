"""The exposition for Prometheus: all metrics, read anew from the history for every scrape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from planner.history.history_errors import HistoryError
from planner.history.overview import overview
from planner.history.store import History
from planner.history.totals import bound_text
from planner.metrics.definitions import METRICS, STORE_UP, Definition, Kind, Row, build_labels

MOST_SERIES = 200
"""Of one counter, or histograms of one name."""


class PlannerCollector:
    """Reads the history anew for every scrape; what a registry of prometheus_client collects from."""

    def __init__(self, history: History) -> None:
        self._history = history

    def collect(self) -> Iterator[Metric]:
        """All metrics. If the history cannot be read, that it is so and what answers: a scrape does not fail."""
        try:
            seen = overview(self._history)
        except HistoryError:
            yield _family(STORE_UP, [((), 0)])
            yield from (_family(each, [(build_labels(), 1)]) for each in METRICS if each.name == "planner_build_info")
            return
        yield _family(STORE_UP, [((), 1)])
        dropped = 0
        for each in METRICS:
            if each.name == "planner_series_dropped":
                seen = replace(seen, left_out={**seen.left_out, "counter": dropped})
            rows, more = _limit_series(each, each.rows(seen))
            dropped += more
            yield _family(each, rows)


def exposition(history: History, accept: str = "") -> tuple[bytes, str]:
    """The metrics in the format that the Accept header asks for (text 0.0.4, or OpenMetrics), and its media type."""
    encode, media_type = choose_encoder(accept)
    collector = PlannerCollector(history)
    if media_type.startswith("text/plain"):
        return _encode_families(collector.collect(), open_=False), media_type
    if "version=1.0.0" in media_type:
        return _encode_families(collector.collect(), open_=True), media_type
    return encode(collector), media_type


def table() -> str:
    """The metrics as a table in Markdown."""
    lines = ["| metric | type | labels | what it tells | read from |", "|---|---|---|---|---|"]
    for each in (STORE_UP, *METRICS):
        labels = ", ".join(f"`{name}`" for name in each.labels)
        lines.append(
            f"| `{each.name}` | {each.kind} | {labels} | {each.help.replace('|', chr(92) + '|')} | {each.source} |"
        )
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
    if metric.kind is Kind.HISTOGRAM:
        return _histogram(metric, rows)
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def _histogram(metric: Definition, rows: Iterable[Row]) -> Metric:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    groups: dict[tuple[str, ...], dict[str, float]] = {}
    for labels, value in rows:
        groups.setdefault(labels[:-1], {})[labels[-1]] = value
    for labels, told in groups.items():
        total = told.pop("sum", 0.0)
        # What an earlier version counted into other bounds is counted on into the next of these.
        buckets = [
            (bound_text(bound), sum(count for le, count in told.items() if float(le) <= bound))
            for bound in (*metric.bounds, math.inf)
        ]
        family.add_metric(labels, buckets, total)
    return family


def _encode_families(families: Iterable[Metric], open_: bool) -> bytes:
    """What prometheus_client's encoders give for names as ours, in a third of their time; `open_` for OpenMetrics.

    They look anew at every name of every sample, whether it needs to be escaped.
    """
    lines = []
    for family in families:
        # OpenMetrics names a counter without `_total` and its samples with it.
        name = f"{family.name}_total" if family.type == "counter" and not open_ else family.name
        help_ = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {name} {help_}\n# TYPE {name} {family.type}\n")
        lines += [f"{each.name}{_labels(each.labels)} {_number(each.value)}\n" for each in family.samples]
    return "".join((*lines, "# EOF\n" if open_ else "")).encode()


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{_escape_label(value)}"' for name, value in sorted(labels.items())]) + "}"


def _escape_label(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


_number = lru_cache(maxsize=10_000)(floatToGoString)
