"""docs/reference/importers.md says of every key what the tables say; run this file to write its tables anew."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from planner.job import launchers
from planner.job.importers import (
    accelerate,
    axolotl,
    fsdp,
    llama_factory,
    peft,
    torchtitan,
    training_arguments,
    trl,
)
from planner.job.importers.drafts import Key
from planner.job.importers.training_arguments import KEYS, RETIRED

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reference" / "importers.md"
TABLES: Mapping[str, Mapping[str, Key]] = {
    "TrainingArguments": KEYS,
    "activation_checkpointing_kwargs": training_arguments.RECOMPUTE_KEYS,
    "accelerator_config": training_arguments.ACCELERATOR_KEYS,
    "gradient_accumulation_kwargs": training_arguments.ACCUMULATION_KEYS,
    "fields of transformers 4": RETIRED,
    "TRL": trl.KEYS,
    "accelerate": accelerate.KEYS,
    "fsdp_config": fsdp.KEYS,
    "deepspeed_config": accelerate.DEEPSPEED_KEYS,
    "parallelism_config": accelerate.PARALLELISM_KEYS,
    "dynamo_config": accelerate.DYNAMO_KEYS,
    "LoraConfig": peft.KEYS,
    "torchtitan": torchtitan.KEYS,
    "Axolotl": axolotl.KEYS,
    "LLaMA-Factory": llama_factory.KEYS,
}


def table_of(known: Mapping[str, Key]) -> str:
    """A row for the keys that matter in the same way; the command itself lists those that do not matter."""
    rows: dict[str, list[str]] = {}
    for name, key in known.items():
        if key.only and not key.to:
            values = ", ".join(f"`{_shown(value)}`" for value in key.only)
            rows.setdefault(f"refused unless {values}: {key.why}", []).append(name)
        elif key.to:
            rows.setdefault(f"`{key.to}`{f': {key.why}' if key.why else ''}", []).append(name)
        elif key.supposed:
            rows.setdefault(f"planned in its place: {key.supposed}", []).append(name)
    lines = [f"| {', '.join(f'`{name}`' for name in names)} | {becomes} |" for becomes, names in rows.items()]
    return "\n".join(["| key | becomes |", "|---|---|", *lines])


def _shown(value: object) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value).strip("'") or '""'
    )


def _pattern(name: str) -> re.Pattern[str]:
    marker = re.escape(f"<!-- keys of {name} -->")
    return re.compile(f"{marker}\n(.*?)\n<!-- end -->", re.DOTALL)


@pytest.mark.parametrize("name", TABLES)
def test_the_page_holds_the_table(name: str) -> None:
    found = _pattern(name).search(PAGE.read_text(encoding="utf-8"))

    assert found is not None
    assert found[1] == table_of(TABLES[name])


def test_the_page_holds_the_options_of_launchers() -> None:
    text = (DOCS / "importers.md").read_text(encoding="utf-8")

    for name in sorted(launchers.ACCELERATE_READ):
        assert f"`--{name}`" in text, name


def write() -> None:
    """Puts the tables of today into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, known in TABLES.items():
        block = f"<!-- keys of {name} -->\n{table_of(known)}\n<!-- end -->"
        text = _pattern(name).sub(lambda _, block=block: block, text)  # type: ignore[misc]
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
