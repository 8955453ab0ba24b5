"""Formats the service's logs: one JSON object a line, with request and plan ids, without bodies and secrets."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime

from planner.job.masking import mask_text

_OWN = (
    "request_id", "plan_id", "trace_id", "validation_id", "search_id", "method", "route", "status", "seconds",
)  # fmt: skip
"""What a record may carry beyond its message: `logger.info(..., extra={"plan_id": ...})`."""


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in _OWN if getattr(record, name, None) is not None},
        }
        if record.exc_info:
            line["error"] = "".join(traceback.format_exception(*record.exc_info))
        return mask_text(json.dumps(line, default=str))


def start_logging(level: str) -> None:
    """From now on everything of planner goes to standard error as JSON lines; again is the same as once."""
    logger = logging.getLogger("planner")
    logger.setLevel(level)
    if any(isinstance(handler.formatter, JsonLines) for handler in logger.handlers):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.propagate = False
