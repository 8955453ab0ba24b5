"""Every planner command of README.md and docs/ runs in the environment that README's install makes.

A comment with `needs: ...` marks a command that needs what neither the page nor that install brings; its options are
parsed. `make test-readme` runs this file where the extra `plan` alone is installed.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from planner.cli.shell import _parse

REPOSITORY = Path(__file__).parents[3]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?:console|bash|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[|&;]\s*)\s*(?:[A-Z_]+=\S+ )*planner (?P<words>[^|;&]*)")
DONE, DOES_NOT_FIT = 0, 3
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1024,
}  # fmt: skip
"""The `config.json` of the job that README shows: a small one, so that its plans take seconds."""


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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the job of README, its config and the examples: what README says is there."""
    made = tmp_path_factory.mktemp("checkout")
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    (made / "job.yaml").write_text(readme.partition("$ cat job.yaml\n")[2].partition("$ ")[0])
    (made / "config.json").write_text(json.dumps(CONFIG))
    (made / "examples").symlink_to(REPOSITORY / "examples")
    return made


def test_only_the_extra_that_readme_installs_is_there() -> None:
    others = ("ray", "deepspeed", "kubernetes", "shtab", "psycopg")

    assert [name for name in others if importlib.util.find_spec(name)] == []


def test_commands_that_need_more_are_few() -> None:
    assert (len(RUN), len(SHOWN) - len(RUN)) == (10, 29)


@pytest.mark.parametrize("each", SHOWN, ids=name_of)
def test_the_options_of_every_command_exist(each: Shown) -> None:
    """`--` ends planner's own."""
    words = each.words
    own = words[: words.index("--")] if "--" in words else words

    assert _parse(own).run is not None


@pytest.mark.parametrize("each", RUN, ids=name_of)
def test_every_command_runs(each: Shown, folder: Path) -> None:
    line = re.sub(r">\s*job\.(\w+)", r"> written.\1", each.line)  # the others read the one of README
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=folder, capture_output=True, text=True, check=False,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(Path.home()), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip

    assert ended.returncode in (DONE, DOES_NOT_FIT), f"{ended.stdout}{ended.stderr}"
    assert "Traceback" not in ended.stderr
