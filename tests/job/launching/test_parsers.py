"""The options of launchers: the table that planner has of them, and their own parsers, of which it was written.

python tests/job/launching/test_parsers.py     writes the table anew
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import planner
from planner.errors import SpecError
from planner.job.launching import line as launching
from planner.job.launching.launchers import TABLES, read_options
from planner.job.launching.line import parse
from planner.runtime.launcher_parsers import ask_parser
from planner.versions import installed_version, minor_of

TABLE = Path(planner.__file__).parent / "job/launching/parsers.json"
MODULES = {
    "torch.distributed.run": "torch",
    "torch.distributed.launch": "torch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_OPTION = re.compile(r"^  (-.*?)(?:  .*)?$", re.MULTILINE)


def shown_help(module: str) -> str:
    launcher: Any = importlib.import_module(module)
    if "accelerate" in module:
        with mock.patch.object(sys, "argv", ["accelerate"]):  # it shows less to who gives some of its options
            return str(launcher.launch_command_parser().format_help())
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
        launcher.parse_args(["--help"])
    return said.getvalue()


def options_of(module: str) -> dict[str, list[str]]:
    """Names of options with and without a value, as the launcher's help shows them."""
    found: dict[str, set[str]] = {"with_value": set(), "alone": set()}
    for shown in _OPTION.findall(shown_help(module)):
        kind = "with_value" if " " in re.sub(r", -", ",-", shown) else "alone"
        names = re.findall(r"(?:^|, )-+([\w-]+)", shown)
        found[kind] |= {name.replace("-", "_") for name in names} - {"h", "help"}
    if "accelerate" in module:  # its other options have a value, and it has more with each version
        del found["with_value"]
    return {kind: [" ".join(sorted(names))] for kind, names in found.items()}


def written_table() -> dict[str, Any]:
    return {
        module: {"package": package, "version": minor_of(installed_version(package)), **options_of(module)}
        for module, package in MODULES.items()
    }


def test_the_table_is_what_the_installed_launchers_show() -> None:
    assert json.loads(TABLE.read_text()) == written_table()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            "torch.distributed.run",
            "--nnodes=2 --nproc-per-node 4 --rdzv_id run7 --standalone --module pkg.train --lr 1 x",
        ),
        ("torch.distributed.launch", "--use_env --nproc_per_node 8 train.py --nnodes 3"),
        ("accelerate.commands.launch", "--num_processes 8 --num_machines=2 --multi_gpu --mixed_precision bf16 t.py x"),
        ("deepspeed.launcher.runner", "--num_gpus 8 --num_nodes=2 --no_local_rank --hostfile hosts train.py --fp16"),
    ],
)
def test_a_launcher_reads_its_line_as_the_table_does(module: str, words: str) -> None:
    assert ask_parser(module, words.split()) == read_options(words.split(), TABLES[module])


def test_a_launcher_of_another_version_reads_its_line_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "installed_version", lambda _: "2.6.0")

    found = parse(["torchrun", "--nnode", "2", "--nproc-per-n", "4", "t.py", "--lr", "1"])

    assert (found.nodes, found.processes_per_node, found.program, found.arguments) == (2, 4, "t.py", ("--lr", "1"))
    assert found.launcher_words == ("--nnode", "2", "--nproc-per-n", "4")
    with pytest.raises(SpecError, match=r"torch\.distributed\.run refuses its options: .*ambiguous option: --r"):
        parse(["torchrun", "--r", "1", "t.py"])


if __name__ == "__main__":
    TABLE.write_text(json.dumps(written_table(), indent=2) + "\n")
