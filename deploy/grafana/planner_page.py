"""planner itself: how right it is, how fast, and what it says."""

from __future__ import annotations

from parts import BLUE, COUNT, GREEN, ORANGE, PER_SECOND, RATIO, RED, SECONDS, Page, Variable, View

_RATE = "[$__rate_interval]"
_KIND = 'gpu=~"$gpu"'


def _rate(name: str, by: str, keep: str) -> str:
    """Over series, each taken once however many replicas are scraped. `keep` are all labels of the metric."""
    return f"sum by ({by}) (max by ({keep}) (rate({name}{_RATE})))"


def _quantile(share: float) -> str:
    buckets = f"rate(planner_request_duration_seconds_bucket{_RATE})"
    return f"histogram_quantile({share}, sum by (route, le) (max by (route, le) ({buckets})))"


PAGE = Page(
    uid="planner-itself",
    title="planner / The planner itself",
    tells="How far predictions lie from what is measured, how long answers take, what the verdicts are.",
    variables=(
        Variable(name="gpu", label="GPU", tells="The type of GPU that was validated or measured.", many=True,
                 query="label_values(planner_validation_last_error_ratio, gpu)"),
    ),
    span="now-24h",
    rows=(
        ("Health", (
            View(title="Store", kind="stat", unit=COUNT, width=4, height=4, tells="1: the store can be read.",
                 steps=((None, RED), (1, GREEN)), queries=(("min(planner_store_up)", "up"),)),
            View(title="Processes", kind="stat", unit=COUNT, width=4, height=4,
                 tells="Processes of the service that told so within half a minute.",
                 queries=(("max(planner_processes)", "processes"),)),
            View(title="Turned away", kind="stat", unit=RATIO, width=4, height=4, decimals=1,
                 tells="Share of requests answered with 429 or 503 within five minutes.",
                 steps=((None, GREEN), (0.01, ORANGE), (0.05, RED)),
                 queries=(("planner:requests_shed:ratio_rate5m", "share"),)),
            View(title="Error of nine in ten", kind="stat", unit=RATIO, width=4, height=4, decimals=1,
                 tells="Nine of ten validations err by less, on the worst type of GPU chosen.",
                 steps=((None, GREEN), (0.03, ORANGE), (0.1, RED)),
                 queries=((f"max(gpu:planner_validation_error:ratio90{{{_KIND}}})", "error"),)),
            View(title="Calibration", kind="stat", unit=SECONDS, width=4, height=4,
                 tells="How long ago something was learnt from measurements.",
                 steps=((None, GREEN), (14 * 86400, ORANGE), (30 * 86400, RED)),
                 queries=(("time() - max(planner_calibration_timestamp_seconds)", "age"),)),
            View(title="Version", kind="stat", named=True, unit=COUNT, width=4, height=4,
                 tells="Of planner and of the PyTorch that it plans with.", steps=((None, BLUE),),
                 queries=(("max by (planner, torch) (planner_build_info)", "{{planner}} (torch {{torch}})"),)),
        )),
        ("Error and coverage", (
            View(title="Error of validations", unit=RATIO, decimals=2,
                 tells="How far predictions lie from validations: the newest, the median, nine in ten, the worst.",
                 steps=((None, GREEN), (0.1, RED)),
                 queries=(
                     (f"max by (gpu) (planner_validation_last_error_ratio{{{_KIND}}})", "{{gpu}}: newest"),
                     (f"max by (gpu) (planner_validation_median_error_ratio{{{_KIND}}})", "{{gpu}}: median"),
                     (f"gpu:planner_validation_error:ratio90{{{_KIND}}}", "{{gpu}}: nine in ten"),
                     (f"max by (gpu) (planner_validation_worst_error_ratio{{{_KIND}}})", "{{gpu}}: worst"),
                 )),
            View(title="Coverage of the interval", unit=RATIO, decimals=1,
                 tells="Share of measured rank classes of running jobs that lie in their interval. 95 % is what it "
                       "promises; below it lie also those that have not seen their peak.",
                 steps=((None, RED), (0.8, ORANGE), (0.95, GREEN)),
                 queries=(
                     (f"gpu:planner_interval_coverage:ratio{{{_KIND}}}", "{{gpu}}: within"),
                     (f"gpu:planner_rank_classes_above_interval:ratio{{{_KIND}}}", "{{gpu}}: above"),
                     (f"gpu:planner_rank_classes_below_interval:ratio{{{_KIND}}}", "{{gpu}}: below"),
                 )),
            View(title="What was learnt", kind="table", unit=RATIO, decimals=2,
                 tells="By GPU and PyTorch: how far each part of what is measured lies from what is predicted, and on "
                       "how many measurements that stands.",
                 queries=(
                     (f"max by (gpu, torch, part) (planner_calibration_correction_ratio{{{_KIND}}})", ""),
                     (f"max by (gpu, torch, part) (planner_calibration_correction_measurements{{{_KIND}}})", ""),
                 ),
                 columns=("correction", "measurements"), units={"measurements": COUNT}),
            View(title="Verdicts that were wrong", unit=RATIO, decimals=1,
                 tells="Of remembered jobs that ended: said fits and ran out of memory, or said exceeds and ran.",
                 steps=((None, GREEN), (0.02, ORANGE), (0.05, RED)),
                 queries=((
                     "sum by (kind) (max by (team, queue, gpu, kind) (planner_capacity_wrong_verdicts))"
                     " / on () group_left () (sum(max by (team, queue, gpu) (planner_capacity_judged_jobs)) > 0)",
                     "{{kind}}"),)),
            View(title="Validations", kind="stacked", unit=COUNT, tells="Validations in the store by state.",
                 queries=(("max by (state) (planner_validations)", "{{state}}"),)),
            View(title="Measurements", unit=COUNT,
                 tells="What the calibration stands on, and what was set aside because it cannot be right.",
                 queries=(
                     ("max(planner_calibration_measurements)", "learnt from"),
                     ("max(planner_calibration_quarantined_measurements)", "set aside"),
                 )),
        )),
        ("Verdicts", (
            View(title="Verdicts a second", kind="stacked", unit=PER_SECOND, tells="Answers to checks.",
                 queries=((_rate("planner_verdicts_total", "verdict", "verdict"), "{{verdict}}"),)),
            View(title="Plans and checks in the store", unit=COUNT,
                 tells="By verdict; a pending check is one whose plan is being made.",
                 queries=(
                     ("max by (verdict) (planner_plans)", "plans: {{verdict}}"),
                     ("max by (verdict) (planner_checks)", "checks: {{verdict}}"),
                 )),
        )),
        ("Latency and load", (
            View(title="Time to answer", unit=SECONDS,
                 tells="What half, and 95 of 100, answers stay below, by route.",
                 queries=((_quantile(0.5), "{{route}}: half"), (_quantile(0.95), "{{route}}: 95 of 100"))),
            View(title="Requests", kind="stacked", unit="reqps", tells="Answers a second by route and status.",
                 queries=((_rate("planner_requests_total", "route, status", "method, route, status"),
                           "{{route}} {{status}}"),)),
            View(title="Tracing processes", kind="stacked", unit=COUNT,
                 tells="Busy and idle ones. All busy and jobs waiting: give the service more.",
                 queries=(
                     ("max by (state) (planner_trace_workers)", "{{state}}"),
                     ("max(planner_trace_waiting_jobs)", "jobs waiting"),
                 )),
            View(title="Jobs traced", unit=PER_SECOND,
                 tells="Jobs a second that were traced, joined an equal one in the making, or were refused because too "
                       "many waited.",
                 queries=(
                     (f"max(rate(planner_jobs_traced_total{_RATE}))", "traced"),
                     (f"max(rate(planner_jobs_joined_total{_RATE}))", "joined"),
                     (f"max(rate(planner_jobs_refused_total{_RATE}))", "refused"),
                 )),
            View(title="Tracing processes that ended", unit=COUNT,
                 tells="Since the beginning: over the limit of time or memory, abandoned, or died and tried again.",
                 queries=(
                     ("max by (reason) (planner_trace_workers_killed_total)", "{{reason}}"),
                     ("max(planner_trace_retries_total)", "tried again"),
                 )),
            View(title="This exposition", unit=COUNT,
                 tells="What was left out of the metrics because more is active than a scrape holds; and how long "
                       "reading the store took, in milliseconds.",
                 queries=(
                     ("max by (kind) (planner_series_dropped)", "left out: {{kind}}"),
                     ("max(planner_store_read_seconds) * 1000", "milliseconds"),
                 )),
        )),
    ),
)  # fmt: skip
