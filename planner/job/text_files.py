"""Files on their way in: text that is no larger than a person would write."""

from __future__ import annotations

from pathlib import Path

from planner.errors import SpecError

_MOST_BYTES = 16 * 2**20


def file_text(path: Path, written: str, place: str = "") -> str:
    """The UTF-8 text of a file that the person called `written` at `place`; SpecError if there is none to read."""
    try:
        if path.is_dir():
            raise SpecError(f"{written} is a folder", allowed="a file", place=place)
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        remedy = "a relative path starts from the folder of the spec" if place else ""
        raise SpecError(f"there is no file {written}", remedy=remedy, place=place) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(f"{written} cannot be read: {reason}", place=place) from None
    if len(content) > _MOST_BYTES:
        raise SpecError(f"{written} is larger than 16 MiB", place=place)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{written} is no UTF-8 text (byte {error.start})", place=place) from None
