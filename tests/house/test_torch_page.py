"""The pages show what planner relies on inside other packages, by version; run this file to write the tables anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.units import GIB
from planner.upstream import checking, table, torch_releases
from planner.upstream.entries import Change, Entry
from planner.upstream.torch_releases import read_peaks

DOCS = Path(__file__).parents[2] / "docs"


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
    lines += [f"| {each.name} | {each.versions} | {each.why} |" for each in torch_releases.FEATURES.values()]
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


def _fewer_versions(entry: Entry) -> str:
    """Said where not every known version has the target."""
    known = checking.read_digests().get(entry.package, {})
    found = [version for version, digests in known.items() if digests.get(entry.target, "-") != ""]
    return "" if found == list(known) else f" ({entry.package} {', '.join(found)})"


TABLES = {
    "table": (DOCS / "reference" / "torch-internals.md", rows),
    "features": (DOCS / "torch.md", features),
    "examples": (DOCS / "results" / "torch-versions.md", examples),
}
"""By the name of their markers: the page, and what makes the table."""


def _parts(name: str) -> tuple[str, str, str]:
    """The page until its table, the table, and the rest."""
    head, begin, rest = TABLES[name][0].read_text(encoding="utf-8").partition(f"<!-- the {name} -->\n")
    table, end, tail = rest.partition(f"<!-- the end of the {name} -->\n")
    return head + begin, table, end + tail


@pytest.mark.parametrize("name", TABLES)
def test_the_page_shows_the_table(name: str) -> None:
    assert _parts(name)[1] == TABLES[name][1]()


if __name__ == "__main__":
    for name, (page, made) in TABLES.items():
        head, _, tail = _parts(name)
        page.write_text(head + made() + tail, encoding="utf-8")
