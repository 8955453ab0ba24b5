"""`python -m planner.upstream PACKAGE VERSION FOLDER`: writes down the digests of a package's sources."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from planner.upstream import checking, sources, table


def write(package: str, version: str, folder: Path) -> None:
    """Takes the sources in `folder` (of an unpacked wheel, say) for those of this version."""
    content = json.loads(checking.DIGESTS.read_text()) if checking.DIGESTS.exists() else {}
    found = {
        entry.target: sources.digest(entry, folder)
        for entry in table.TABLE
        if entry.package == package and entry.has_source
    }
    versions = {**content.get(package, {}), checking.minor(version): found}
    content[package] = dict(sorted(versions.items(), key=lambda it: tuple(map(int, it[0].split(".")))))
    checking.DIGESTS.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
