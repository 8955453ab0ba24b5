"""docs/reference.md and the JSON Schema say what the schema says; run this file to write the page's tables anew."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from planner import cli
from planner.job import reference, spec_keys
from planner.job.spec_json_schema import json_schema

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "reference.md"
BLOCKS = {"keys": reference.tables, "models": reference.model_names, "gpus": reference.gpu_names}
SPECS = sorted(REPOSITORY.glob("examples/**/*.yaml"))


def pattern_of(name: str) -> re.Pattern[str]:
    return re.compile(f"<!-- {name} -->\n(.*?)<!-- end -->", re.DOTALL)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_holds_what_the_schema_says(name: str) -> None:
    found = pattern_of(name).search(PAGE.read_text(encoding="utf-8"))

    assert found is not None
    assert found[1] == BLOCKS[name]() + "\n"


def test_every_key_has_a_meaning_in_one_sentence_or_a_few_words() -> None:
    assert [key.path for key in spec_keys.all_keys() if not key.meaning] == []


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_the_json_schema_takes_every_example(spec: Path) -> None:
    document = yaml.safe_load(spec.read_text(encoding="utf-8"))

    jsonschema.validate(document, json_schema())


def small(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "model": {"hf_config": "Qwen/Qwen3-8B"},
        "train": {"sequence_length": "4k"},
        "cluster": {"gpu": "H100"},
    }
    return {**document, **changes}


def test_the_json_schema_takes_short_forms() -> None:
    jsonschema.validate(small(), json_schema())
    jsonschema.validate(small(parallel={"tp": 8, "dp_shard": {"degree": 2}}), json_schema())
    jsonschema.validate(small(cluster={"gpu": None}), json_schema())


@pytest.mark.parametrize(
    "document",
    [
        small(trian={}),
        small(train={"micro_batch_size": "four"}),
        small(train={"micro_batch_size": 0}),
        small(train={"precision": "bf16"}),
        small(train={"sequence_length": "4K tokens"}),
        small(cluster={"nodes": 1}),
        small(parallel={"tp": "all"}),
        small(model={"adapter": {"r": 1.5}}),
    ],
)
def test_the_json_schema_refuses_what_the_reader_refuses(document: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json_schema())


def test_the_command_prints_the_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["spec", "--json-schema"]) == 0

    assert json.loads(capsys.readouterr().out) == json_schema()


def write() -> None:
    """Puts the tables of today into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, made in BLOCKS.items():
        block = f"<!-- {name} -->\n{made()}\n<!-- end -->"
        text = pattern_of(name).sub(lambda _, block=block: block, text)  # type: ignore[misc]
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
