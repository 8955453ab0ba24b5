"""What a command has said on standard error, without the lines that tell how far it is: a slow machine has some."""

from __future__ import annotations

import re

_PROGRESS = re.compile(r"^planner: .* \(\d+ s\)\n", re.MULTILINE)


def without_progress(said: str) -> str:
    return _PROGRESS.sub("", said)
