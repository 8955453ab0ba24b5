"""Pictures of the page for docs/images, made where PLANNER_SCREENSHOTS says that they are wanted."""

from __future__ import annotations

import os
from pathlib import Path

from browser import Browser

FOLDER = Path(__file__).parents[2] / "docs" / "images"


def photograph_if_asked(browser: Browser, name: str) -> None:
    """`docs/images/page-NAME.png` of the page as it is now."""
    if os.environ.get("PLANNER_SCREENSHOTS"):
        browser.photograph(FOLDER / f"page-{name}.png")
