"""Column types: times as whole microseconds, documents as JSON, large texts compressed."""

from __future__ import annotations

import json
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Dialect, LargeBinary, Text
from sqlalchemy.types import TypeDecorator

from planner.history.history_errors import HistoryError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FAST = 1
"""zlib's level: a plan of a thousand holders shrinks tenfold within 2 ms; more effort gains little."""


class UtcMicroseconds(TypeDecorator[datetime]):
    """A moment with its time zone, as microseconds since 1970: the same order in every database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        if value is None:
            return None
        return (value - _EPOCH) // timedelta(microseconds=1)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else _EPOCH + timedelta(microseconds=value)


class JsonText(TypeDecorator[Any]):
    """A small JSON value as text, its keys in the order in which they came."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:  # noqa: ARG002
        return compact_json(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


class CompressedText(TypeDecorator[str]):
    """A long text, compressed."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes:  # noqa: ARG002
        return zlib.compress((value or "").encode("utf-8"), _FAST)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str:  # noqa: ARG002
        return "" if value is None else zlib.decompress(value).decode("utf-8")


def compact_json(value: Any) -> str:
    """JSON without blanks, in ASCII: no character that a database would refuse.

    Raises HistoryError for what JSON does not have, such as NaN.
    """
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as wrong:
        raise HistoryError(
            f"this is no JSON value: {wrong}", allowed="numbers that are finite, texts, lists, objects"
        ) from wrong
