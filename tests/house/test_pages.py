"""The README and docs/: short enough, with links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]
OTHERS = [REPOSITORY / name / "README.md" for name in ("examples", "helm/planner")]
OF_HABIT = [REPOSITORY / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


def test_the_glossary_is_short() -> None:
    terms = re.findall(r"^\| (?!term \|)(.+?) \|", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert 10 < len(terms) <= 25
    assert terms == sorted(terms, key=str.lower)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS, *OF_HABIT], ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        known = anchors(path.read_text(encoding="utf-8")) if path.suffix == ".md" and path.is_file() else set()
        if not path.exists() or (anchor and anchor not in known):
            dead.append(f"{target}#{anchor}")

    assert dead == []


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda path: str(path.relative_to(DOCS)))
def test_the_readme_leads_to_every_page(page: Path) -> None:
    assert f"(docs/{page.relative_to(DOCS)})" in PAGES[0].read_text(encoding="utf-8")
