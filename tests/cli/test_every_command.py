"""`planner` lists every command and explains each on an installation that has PyYAML alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from planner import cli

COMMANDS = [
    "plan", "run", "check", "search", "max", "min", "sweep", "spec", "replay", "explain", "measure", "compare",
    "validate", "gpu-truth", "serve", "capacity", "webhook", "kueue", "torch", "completion",
]  # fmt: skip
ABSENT = [
    "alembic", "fastapi", "kubernetes", "numpy", "prometheus_client", "pydantic", "ray", "shtab", "sqlalchemy",
    "starlette",
    "torch", "transformers", "uvicorn",
]  # fmt: skip


ALL_HELP = f"""
import contextlib, io, json
from planner.cli import main
told = {{}}
for command in {COMMANDS}:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main([command, "--help"])
    told[command] = [code, out.getvalue()[: len("usage: planner ") + len(command)]]
print(json.dumps(told))
"""


def run(
    *arguments: str, code: str = "from planner.cli import main; sys.exit(main())"
) -> subprocess.CompletedProcess[str]:
    """The command line, or other code, where none of the extras is installed."""
    code = f"import sys; sys.modules.update(dict.fromkeys({ABSENT}))\n{code}"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_help_lists_the_commands() -> None:
    ended = run("--help")

    assert (ended.returncode, ended.stderr) == (0, "")
    listed = [line.split()[0] for line in ended.stdout.splitlines() if line.startswith("    ") and line[4] != " "]
    assert listed == COMMANDS


def test_each_command_explains_itself() -> None:
    ended = run(code=ALL_HELP)

    assert ended.stderr == ""
    assert json.loads(ended.stdout) == {command: [0, f"usage: planner {command}"] for command in COMMANDS}


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["webhook", "--certificate", "tls.crt", "--key", "tls.key"], "'kubernetes>=37'"),
        (["kueue"], "'kubernetes>=37'"),
        (["gpu-truth", "--out", "truth"], "'torch>=2.6,<2.16'"),
        (["validate", "job.yaml"], "'ray[serve]>=2.60'"),
        (["serve"], "'ray[serve]>=2.60'"),
        (["completion", "bash"], "'shtab>=1.7'"),
    ],
    ids=lambda each: each if isinstance(each, str) else each[0],
)
def test_a_command_without_its_packages_says_how_to_install_them(arguments: list[str], first: str) -> None:
    ended = run(*arguments)

    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    assert f"  change:  pip install {first}" in ended.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab", reason="shtab is of the extra `completion`")

    assert cli.main(["completion", shell]) == 0

    script = capsys.readouterr().out
    assert "planner" in script
    assert [each for each in ("--gpus", "--from-accelerate", *COMMANDS) if each not in script] == []
