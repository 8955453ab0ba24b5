"""Every planner command of README.md and docs/ runs in the environment that README's install makes.

Small files of the names that a page gives are brought (tests/fakes/page_files.py). A comment with `needs: ...` marks a
command that needs more than these and that install; its options are parsed. `make test-readme` runs this file where the
extra `plan` alone is installed.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from page_files import REPOSITORY, write_files

from planner.cli.shell import _parse

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?:console|bash|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[|&;]\s*)\s*(?:[A-Z_]+=\S+ )*planner (?P<words>[^|;&]*)")
DONE, DOES_NOT_FIT = 0, 3
ONLY_PARSED = {
    "docs/calibration.md: planner gpu-truth --out FACTS": "the GPU, with nothing else on it",
    "docs/calibration.md: PLANNER_FACTS=FACTS planner plan job.yaml": "FACTS",
    "docs/importers.md: planner plan config.json --gpus 4xA100 --from-training-arguments args.json": "DeepSpeed",
    "docs/monitoring.md: planner capacity": "a service",
    "docs/monitoring.md: planner capacity --since 30d --on A100-SXM-40GB": "a service",
    "docs/monitoring.md: planner capacity --on A100-SXM-40GB --on H100-SXM-80GB --on H200-SXM-141GB": "a service",
    "docs/out-of-memory.md: planner explain train.log --job slurm/4711 --server URL":
        "a service, which stores how the job ended",
    "docs/run.md: PYTHONPATH=Megatron-LM planner run --gpu B200-SXM-180GB": "Megatron-LM",
    "docs/run.md: planner measure -- torchrun --nproc-per-node 8 train.py": "8 GPUs; writes measurements.jsonl",
    "docs/search.md: planner search meta-llama/Llama-3.1-70B --gpus 64xH100": "120 s",
    "docs/search.md: planner search job.yaml --gpus 64 --gpu H100,A100": "120 s",
    "docs/search.md: planner sweep job.yaml micro_batch_size=1..8": "minutes",
    "docs/torch.md: planner run --torch 2.8 -- torchrun --nproc-per-node 8 train.py": "torch 2.8",
    "docs/torch.md: planner torch 2.6 2.8": "5 GB each; makes environments for specs; alone: lists them",
    "docs/torch.md: planner plan --set software.torch=2.8 job.yaml": "torch 2.8",
    "docs/torch.md: planner serve": "the extra service",
}  # fmt: skip
"""By page and command, of a long one its beginning: what it needs that is not there."""


@dataclass(frozen=True)
class Shown:
    """A command of a page."""

    page: str
    line: str
    needs: str

    @property
    def words(self) -> list[str]:
        """Behind `planner`, in front of a redirection."""
        found = COMMAND.search(self.line)
        assert found
        return shlex.split(re.sub(r"\s>\s*\S+", "", found["words"]))


def shown() -> list[Shown]:
    found = []
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for typed in re.findall(r"^\$ (.*)$", block.replace("\\\n", " "), re.MULTILINE):
                line, _, comment = typed.partition(" #")
                if COMMAND.search(line):
                    needs = comment.partition("needs: ")[2]
                    found.append(Shown(str(page.relative_to(REPOSITORY)), line.strip(), needs))
    return list({(each.line, each.needs): each for each in found}.values())


SHOWN = shown()
RUN = [each for each in SHOWN if not each.needs]


def name_of(each: Shown) -> str:
    return f"{each.page}: {each.line}"


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By page, with what its commands read; each finds what those before it wrote."""

    @cache
    def made(page: str) -> Path:
        folder = tmp_path_factory.mktemp("checkout")
        write_files(folder, page)
        return folder

    return made


def test_only_the_extra_that_readme_installs_is_there() -> None:
    others = ("ray", "deepspeed", "kubernetes", "shtab", "psycopg")

    assert [name for name in others if importlib.util.find_spec(name)] == []


def test_commands_that_are_only_parsed_say_what_they_need() -> None:
    found = [(name_of(each), each.needs) for each in SHOWN if each.needs]

    assert [(name[: len(known)], needs) for (name, needs), known in zip(found, ONLY_PARSED, strict=True)] == list(
        ONLY_PARSED.items()
    )


@pytest.mark.parametrize("each", SHOWN, ids=name_of)
def test_the_options_of_every_command_exist(each: Shown) -> None:
    """`--` ends planner's own."""
    words = each.words
    own = words[: words.index("--")] if "--" in words else words

    assert _parse(own).run is not None


@pytest.mark.parametrize("each", RUN, ids=name_of)
def test_every_command_runs(each: Shown, folder_of: Callable[[str], Path]) -> None:
    line = re.sub(r"> job\.", "> written.", each.line)  # the others read the one of README
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=folder_of(each.page), capture_output=True, text=True, check=False,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(Path.home()), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip

    assert ended.returncode in (DONE, DOES_NOT_FIT), f"{ended.stdout}{ended.stderr}"
    assert "Traceback" not in ended.stderr
