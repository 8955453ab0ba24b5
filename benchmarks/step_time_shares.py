"""How much slower products are within training than alone (TRAINING_SHARES), by half of llm-foundry's large models.

    python benchmarks/step_time_shares.py        # prices their steps at every share; some minutes

Every second row of an architecture, in the order of names, is fitted on: the share is the one at which the mean of
their errors is nearest 0. The other rows say how far off the model is at that share.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import step_times
import yaml

from planner.hardware import catalog, kernel_speeds
from planner.job.loading import load_job
from planner.planning.plan import plan_job
from planner.timing.step_time import time_step

KEPT = step_times.DATA / "shares.json"
_AROUND = range(-5, 6)
"""Hundredths around the share in use."""

Priced = Mapping[str, Mapping[str, float]]
"""Milliseconds of a row at each share."""


def read_priced() -> dict[str, Priced]:
    """By architecture what is kept."""
    kept: dict[str, Priced] = json.loads(KEPT.read_text(encoding="utf-8"))
    return kept


def errors_at(share: str, rows: Sequence[str], priced: Priced) -> list[float]:
    """Relative, of these rows."""
    published = {step.row: step.published_ms for step, _ in step_times.read_published()}
    return [priced[row][share] / published[row] - 1 for row in rows]


def fit_share(rows: Sequence[str], priced: Priced) -> str:
    """The share at which the mean error of these rows is nearest 0."""
    return min(priced[rows[0]], key=lambda share: abs(sum(errors_at(share, rows, priced))))


def main() -> None:
    """Writes what is kept."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    planned = {step.row for step in step_times.read_all() if step.planned_ms and not step.obstacle}
    for step, config in step_times.read_published():
        record = catalog.by_name(step.gpu)
        if step.row not in planned or step.row.split()[0] not in step_times.FITTED or record is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "job.yaml"
            path.write_text(yaml.safe_dump(step_times.spec_of(step, config, Path(folder))), encoding="utf-8")
            job = load_job(path)
            traces = plan_job(job).traces
        in_use, priced = kernel_speeds.TRAINING_SHARES[record.arch], {}
        for hundredths in _AROUND:
            share = round(in_use + hundredths / 100, 2)
            kernel_speeds.TRAINING_SHARES[record.arch] = share
            timed = [time_step(each.trace.work, step.gpu, job.cluster.gpus_per_node) for each in traces]
            priced[f"{share:.2f}"] = round(1e3 * max(each.step for each in timed if each is not None), 1)
        kernel_speeds.TRAINING_SHARES[record.arch] = in_use
        found.setdefault(record.arch, {})[step.row] = priced
        print(f"{step.row}: {priced}", flush=True)
    KEPT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
