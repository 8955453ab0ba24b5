"""The tables of docs/parts-of-gpus.md. `python tests/hardware/test_parts_page.py` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.hardware.gpus import GPUS
from planner.hardware.mig import MIG_PROFILES
from planner.units import GIB

PAGE = Path(__file__).parents[2] / "docs" / "parts-of-gpus.md"


def slices() -> Iterator[str]:
    yield "| GPU | slices: GiB, multiprocessors | source |"
    yield "|---|---|---|"
    for gpu, (profiles, source) in MIG_PROFILES.items():
        rows = "; ".join(f"{one.name} {one.memory_mib / 1024:.2f}, {one.multiprocessors}" for one in profiles)
        yield f"| `{gpu}` | {rows} | {source} |"


def pools() -> Iterator[str]:
    yield "| GPU | the device's, GiB | source | the pool: GiB, the system's at rest, and left free | source |"
    yield "|---|---|---|---|---|"
    for gpu in GPUS:
        if gpu.pool is not None or "two" in gpu.note:
            pool, about = gpu.pool, "none, HBM of its own | "
            if pool is not None:
                sizes = ", ".join(f"{n / GIB:.2f}" for n in (pool.total_bytes, pool.system_bytes, pool.floor_bytes))
                about = f"{sizes} | {pool.source}"
            yield f"| `{gpu.name}` | {gpu.total_bytes / GIB:.2f} | {gpu.provenance} | {about} |"


TABLES = {"slices": slices, "pools": pools}


def table_in(page: str, name: str) -> re.Match[str]:
    found = re.search(rf"(<!-- {name}: .*? -->\n)(.*?)(<!-- end of {name} -->)", page, re.DOTALL)
    assert found is not None
    return found


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_the_catalog(name: str) -> None:
    assert table_in(PAGE.read_text(encoding="utf-8"), name)[2] == "\n".join(TABLES[name]()) + "\n"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for name, rows in TABLES.items():
        found = table_in(text, name)
        text = text[: found.start(2)] + "\n".join(rows()) + "\n" + text[found.end(2) :]
    PAGE.write_text(text, encoding="utf-8")
