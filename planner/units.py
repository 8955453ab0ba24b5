"""Bytes: read from what people write, shown as what people read."""

from __future__ import annotations

import re

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_FACTORS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": KIB, "MIB": MIB, "GIB": GIB, "TIB": TIB,
}  # fmt: skip
_LONGEST = 60
"""Characters of a size; a pattern takes time that grows faster than the text."""
_WRITTEN = re.compile(r"\s*(\d+)(?:\.(\d+))?\s*([A-Za-z]*)\s*")


def parse_bytes(written: str | int) -> int:
    """Bytes, exactly: `80GB` is 80 * 10**9, `79.1GiB` the whole bytes of 79.1 * 2**30.

    Raises ValueError if the text is not a size or the size is negative.
    """
    if isinstance(written, bool) or not isinstance(written, int | str):
        raise ValueError(f"{written!r} is not a size")
    if isinstance(written, int):
        if written < 0:
            raise ValueError(f"{written} is negative")
        return written
    match = _WRITTEN.fullmatch(written) if len(written) <= _LONGEST else None
    if match is None or match[3].upper() not in _FACTORS:
        raise ValueError(f"{written[:_LONGEST]!r} is not a size: a number with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB")
    decimals = match[2] or ""
    scaled = int(match[1] + decimals) * _FACTORS[match[3].upper()]
    return scaled // int(10 ** len(decimals))


def show_bytes(count: int) -> str:
    """For screens only: the largest binary unit in which the size has a digit before the point."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} B"
