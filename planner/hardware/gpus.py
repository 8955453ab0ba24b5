"""The records of all GPUs that a job can name, as gpus.toml has them."""

from __future__ import annotations

import tomllib
from pathlib import Path

from planner.hardware.gpu_records import GpuRecord
from planner.records import from_plain

_TABLE = Path(__file__).with_name("gpus.toml")
GPUS = tuple(from_plain(GpuRecord, entry) for entry in tomllib.loads(_TABLE.read_text(encoding="utf-8"))["gpu"])
