"""docs/torch.md shows the table of what planner relies on inside other packages; run this file to write it anew."""

from __future__ import annotations

from pathlib import Path

from planner.upstream import checking, table
from planner.upstream.entries import Change, Entry

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
BEGIN, END = "<!-- the table -->\n", "<!-- the end -->\n"


def rows() -> str:
    """The versions that are known, and the table: targets that share everything else in one row."""
    digests = checking.read_digests()
    together: dict[tuple[str, ...], list[str]] = {}
    for entry in table.TABLE:
        kind = f"{entry.kind}, {entry.change}" if entry.change != Change.REFUSED else str(entry.kind)
        key = (entry.module, kind, entry.why + _fewer_versions(entry))
        together.setdefault(key, []).append(entry.name)
    versions = "; ".join(f"{package} {', '.join(known)}" for package, known in digests.items())
    lines = [f"Known versions: {versions}; of other packages any.", ""]
    lines += ["| what | kind | why |", "|---|---|---|"]
    for (module, kind, why), names in together.items():
        shown = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| `{module}`: {shown} | {kind} | {why} |")
    return "\n".join(lines) + "\n"


def _fewer_versions(entry: Entry) -> str:
    """Said where not every known version has the target."""
    known = checking.read_digests().get(entry.package, {})
    found = [version for version, digests in known.items() if digests.get(entry.target, "-") != ""]
    return "" if found == list(known) else f" ({entry.package} {', '.join(found)})"


def test_the_page_shows_the_table() -> None:
    text = PAGE.read_text()

    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == rows()


if __name__ == "__main__":
    page = PAGE.read_text()
    PAGE.write_text(page[: page.index(BEGIN) + len(BEGIN)] + rows() + page[page.index(END) :])
