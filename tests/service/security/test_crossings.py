"""docs/reference/threats.md lists every place where bytes of tenants are read, as the list that the tests have."""

from __future__ import annotations

import re
from pathlib import Path

from crossings import CROSSINGS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "threats.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## Where bytes of tenants are read\n")[2].partition("\n## ")[0]


def test_the_page_has_every_crossing_with_its_limits_and_no_other() -> None:
    rows = [row for row in SECTION.splitlines() if row.startswith("| ") and not row.startswith("| what | ")]

    assert rows == [each.row for each in CROSSINGS]


def test_each_reader_and_each_test_is_there() -> None:
    for each in CROSSINGS:
        file, _, name = each.test.partition("::")
        assert (ROOT / each.reader).is_file(), each.what
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), each.what
