"""docs/torch.md shows the table of what planner relies on inside other packages; run this file to write it anew."""

from __future__ import annotations

from pathlib import Path

from planner.units import GIB
from planner.upstream import checking, table, versions
from planner.upstream.entries import Change, Entry
from planner.upstream.versions import read_peaks

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
BEGIN, END = "<!-- the table -->\n", "<!-- the end -->\n"
FEATURES_BEGIN, FEATURES_END = "<!-- the features -->\n", "<!-- the end of the features -->\n"
EXAMPLES_BEGIN, EXAMPLES_END = "<!-- the examples -->\n", "<!-- the end of the examples -->\n"


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


def features() -> str:
    """What a version may lack, and since when it does not."""
    lines = ["| what | with | otherwise |", "|---|---|---|"]
    lines += [f"| {each.name} | {each.versions} | {each.why} |" for each in versions.FEATURES.values()]
    return "\n".join(lines) + "\n"


def examples() -> str:
    """What each version plans for each example, in GiB; why not is said below, by number."""
    known = read_peaks()
    names = sorted({name for planned in known.values() for name in planned})
    lines = [f"| example | {' | '.join(known)} |", f"|---|{'---:|' * len(known)}"]
    reasons: dict[str, int] = {}
    for name in names:
        cells = []
        for planned in known.values():
            found = planned.get(name, "")
            if isinstance(found, str):
                cells.append(f"({reasons.setdefault(found, len(reasons) + 1)})" if found else "")
            else:
                cells.append(f"{found[1] / GIB:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", *(f"({number}) `{why.replace('`', '')}`\\" for why, number in reasons.items())]
    return "\n".join(lines).rstrip("\\").rstrip() + "\n"


def _replaced(text: str, begin: str, end: str, new: str) -> str:
    return text[: text.index(begin) + len(begin)] + new + text[text.index(end) :]


def _fewer_versions(entry: Entry) -> str:
    """Said where not every known version has the target."""
    known = checking.read_digests().get(entry.package, {})
    found = [version for version, digests in known.items() if digests.get(entry.target, "-") != ""]
    return "" if found == list(known) else f" ({entry.package} {', '.join(found)})"


def test_the_page_shows_the_tables() -> None:
    text = PAGE.read_text()

    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == rows()
    assert text[text.index(FEATURES_BEGIN) + len(FEATURES_BEGIN) : text.index(FEATURES_END)] == features()
    assert text[text.index(EXAMPLES_BEGIN) + len(EXAMPLES_BEGIN) : text.index(EXAMPLES_END)] == examples()


if __name__ == "__main__":
    page = _replaced(PAGE.read_text(), FEATURES_BEGIN, FEATURES_END, features())
    page = _replaced(page, EXAMPLES_BEGIN, EXAMPLES_END, examples())
    PAGE.write_text(_replaced(page, BEGIN, END, rows()))
