"""Peaks that a benchmark script of linkedin/Liger-Kernel measures, in one process and in its order.

    python liger_measurements.py benchmark/scripts/benchmark_rope.py ROWS [ARGUMENT...]

ROWS is a file of JSON: a list of `{"name": "7", "kernel": "rope", "provider": ..., "mode": ..., "x_name": "T", "x":
1024, "config": {...}}`. The script runs unedited, with one function in the place of the repository's `run_benchmarks`:
of each series it measures the sizes of rows, of one without rows the smallest only, since what earlier measurements
leave in the process (cuBLAS's workspaces) is part of later figures. Medians lie in ROWS with the suffix `.peaks`, by
the rows' names; of an error its text. They stay when planner runs the program again, another way at a branch.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def read_config(row: Mapping[str, Any], dtypes: Any) -> dict[str, Any]:
    """Settings as a row prints them; data types, `torch.bfloat16`, are attributes of the module `dtypes`."""
    is_dtype = {name: isinstance(value, str) and value.startswith("torch.") for name, value in row.items()}
    return {
        name: getattr(dtypes, value.removeprefix("torch.")) if is_dtype[name] else value for name, value in row.items()
    }


class Measurements:
    """Rows that are measured as the series come to them. `make_input` is the repository's SingleBenchmarkRunInput."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], make_input: Callable[..., Any], dtypes: Any) -> None:
        self._rows = [{**row, "config": read_config(row["config"], dtypes)} for row in rows]
        self._make_input = make_input
        self.peaks: dict[str, float | str] = {}

    def run_benchmarks(
        self, bench_test_fn: Callable[[Any], Any], kernel_name: str, metric_name: str, x_name: str,
        x_values: Sequence[Any], kernel_providers: Sequence[str], extra_benchmark_configs: Sequence[dict[str, Any]],
        kernel_operation_modes: Sequence[str], **_shown: Any,
    ) -> None:  # fmt: skip
        """Under the name and with the arguments of the repository's."""
        for config in extra_benchmark_configs:
            for mode in kernel_operation_modes:
                for provider in kernel_providers:
                    series = {
                        "kernel": kernel_name, "x_name": x_name, "config": config, "mode": mode, "provider": provider
                    }  # fmt: skip
                    rows = (
                        [row for row in self._rows if series.items() <= row.items()] if metric_name == "memory" else []
                    )
                    for row in rows or [{**series, "x": x_values[0], "name": ""}]:
                        self.measure(row, bench_test_fn)
        for row in self._rows:  # of settings that the script of this commit has no more, or not yet
            is_left = row["name"] not in self.peaks
            if metric_name == "memory" and is_left and (row["kernel"], row["x_name"]) == (kernel_name, x_name):
                self.measure(row, bench_test_fn)

    def measure(self, row: Mapping[str, Any], measure: Callable[[Any], Any]) -> None:
        """One row; what it raises is its figure."""
        given = self._make_input(
            x=row["x"], kernel_provider=row["provider"], kernel_operation_mode=row["mode"],
            extra_benchmark_config=row["config"],
        )  # fmt: skip
        try:
            self.peaks[row["name"]] = measure(given).y_50
        except Exception as error:
            self.peaks[row["name"]] = f"{type(error).__name__}: {error}"

    def run_megatron_cross_entropy(self, script: Mapping[str, Any], make_output: Callable[..., Any]) -> None:
        """By the function for memory of the script that starts processes of its own and has no `run_benchmarks`."""
        import torch

        torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:29500", rank=0, world_size=1)
        group, device = torch.distributed.group.WORLD, torch.device("cuda:0")

        def measure(given: Any) -> Any:
            config = given.extra_benchmark_config
            sizes = (config["S"], config["B"], given.x, config["TP"])
            median, low, high = script["_bench_memory_one"](given.kernel_provider, *sizes, group, device)
            return make_output(y_50=median, y_20=low, y_80=high)

        for row in self._rows:
            self.measure(row, measure)


def main(path: str, rows_path: str, *arguments: str) -> None:
    """Measures and writes, unless that was done."""
    peaks_path = Path(rows_path).with_suffix(".peaks")
    if peaks_path.exists():
        return
    # In the place of this file's folder, whose neighbours have names of packages (megatron).
    sys.path[:1] = [str(Path(path).resolve().parent), str(Path("src").resolve())]
    import torch

    utils: Any = importlib.import_module("utils")  # of the repository
    sys.argv = [path, *arguments]
    rows = json.loads(Path(rows_path).read_text(encoding="utf-8"))
    measurements = Measurements(rows, utils.SingleBenchmarkRunInput, torch)
    if any(row["kernel"] == "megatron_cross_entropy" for row in rows):
        script = runpy.run_path(path, run_name="script")
        measurements.run_megatron_cross_entropy(script, utils.SingleBenchmarkRunOutput)
    else:
        utils.run_benchmarks = measurements.run_benchmarks
        runpy.run_path(path, run_name="__main__")
    peaks_path.write_text(json.dumps(measurements.peaks), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
