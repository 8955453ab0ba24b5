"""`python -m planner.upstream`: the digests of a package's sources, and what changed between two versions.

`write PACKAGE VERSION FOLDER` writes them down; `changed PACKAGE OLD NEW` shows which sources that planner relies on
are others. FOLDER is an unpacked package, as OLD and NEW may be too: then the sources are shown, line by line.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from planner.upstream import checking, table
from planner.upstream.entries import Entry
from planner.upstream.torch_releases import sort_versions
from planner.versions import minor_of


def write(package: str, version: str, folder: Path) -> None:
    """Takes the sources in `folder` (of an unpacked wheel, say) for those of this version."""
    content = json.loads(checking.DIGESTS.read_text()) if checking.DIGESTS.exists() else {}
    versions = {**content.get(package, {}), minor_of(version): _digests(package, folder)}
    content[package] = {number: versions[number] for number in sort_versions(versions)}
    checking.DIGESTS.write_text(json.dumps(content, indent=1) + "\n")


def changed(package: str, old: str, new: str) -> Iterator[str]:
    """One line for each target that is another in `new`, each a known version or a folder: what became of it, why
    planner relies on it and the test that fails if that is wrong; with two folders its sources too."""
    before, after = _read(package, old), _read(package, new)
    for entry in _entries(package):
        was, now = before.get(entry.target, ""), after.get(entry.target, "")
        if was == now:
            continue
        word = "changed" if was and now else "new" if now else "gone"
        yield f"{word:8} {entry.target} ({entry.kind}, {entry.change}): {entry.why} [{entry.test}]"
        if Path(old).is_dir() and Path(new).is_dir():
            was, now = (checking.source(entry, Path(folder)) for folder in (old, new))
            lines = difflib.unified_diff(was.splitlines(), now.splitlines(), n=2, lineterm="")
            yield from (f"    {line}" for line in list(lines)[2:])


def _read(package: str, version_or_folder: str) -> Mapping[str, str]:
    if Path(version_or_folder).is_dir():
        return _digests(package, Path(version_or_folder))
    known = checking.read_digests().get(package, {})
    if version_or_folder not in known:
        raise SystemExit(
            f"{version_or_folder}: neither a folder nor a known version of {package}\n  allowed: {', '.join(known)}"
        )
    return known[version_or_folder]


def _digests(package: str, folder: Path) -> dict[str, str]:
    return {entry.target: checking.digest(entry, folder) for entry in _entries(package)}


def _entries(package: str) -> list[Entry]:
    """Those with a source, each target once."""
    return list(
        {entry.target: entry for entry in table.TABLE if entry.package == package and entry.has_source}.values()
    )


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m planner.upstream", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, arguments in (("write", "PACKAGE VERSION FOLDER"), ("changed", "PACKAGE OLD NEW")):
        command = commands.add_parser(name)
        for argument in arguments.split():
            command.add_argument(argument)
    given = parser.parse_args(words)
    if given.command == "write":
        write(given.PACKAGE, given.VERSION, Path(given.FOLDER))
    else:
        print("\n".join(changed(given.PACKAGE, given.OLD, given.NEW)))


if __name__ == "__main__":
    main(sys.argv[1:])
