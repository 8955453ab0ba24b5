"""Commands that were installed with a package: its files are the program's own. And what runs on the host alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from program_runs import Program, Run, judge, run_planner

from planner.errors import ProgramError
from planner.job.launching.line import parse
from planner.tracing.program.program_files import own_files
from planner.tracing.program.rank_process import CrashedError

Installed = Callable[..., str]
"""Installs a package of these modules, whose command `fit-potential` calls `main` of its `cli`; the command's path."""

SCRIPT = """#!{python}
import sys
from potentials.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""
CLI = "from potentials.fitting import loop\n\ndef main():\n    loop.statistics()\n    loop.train()\n"
LOOP = """
import torch
model = torch.nn.Linear(256, 256)

def statistics():
    with torch.no_grad():
        for _ in range(12):
            model(torch.ones(2, 256))

def train():
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 256, device="cuda")).sum().backward()
        optimizer.step()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    packages, command = tmp_path / "site-packages", tmp_path / "bin" / "fit-potential"
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.syspath_prepend(str(packages))

    def install(loop: str) -> str:
        for path, text in {
            packages / "potentials" / "__init__.py": "",
            packages / "potentials" / "cli.py": CLI,
            packages / "potentials" / "fitting" / "__init__.py": "",
            packages / "potentials" / "fitting" / "loop.py": loop,
            packages / "potentials-1.0.dist-info" / "METADATA": "Metadata-Version: 2.1\nName: potentials\nVersion: 1.0",
            packages / "potentials-1.0.dist-info" / "entry_points.txt": "[console_scripts]\n"
            "fit-potential = potentials.cli:main\n",
            command: SCRIPT.format(python=sys.executable),
        }.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        command.chmod(0o755)
        return str(command)

    return install


def test_the_files_of_its_package_are_its_own(installed: Installed, tmp_path: Path) -> None:
    command = installed(LOOP)

    files = {str(path.relative_to(tmp_path)) for path in own_files(parse([command]), tmp_path)}

    inside = {f"site-packages/potentials/{name}.py" for name in ("__init__", "cli", "fitting/__init__", "fitting/loop")}
    assert files == {"bin/fit-potential"} | inside


@pytest.mark.parametrize("module", ["potentials.cli", "potentials.fitting.loop"])
def test_so_are_those_of_the_package_of_a_module(installed: Installed, tmp_path: Path, module: str) -> None:
    installed(LOOP)

    files = own_files(parse(["python", "-m", module]), tmp_path)

    assert tmp_path / "site-packages" / "potentials" / "fitting" / "loop.py" in files
    assert "potentials" not in sys.modules


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_forwards_before_its_training_are_not_its_purpose(run: Run, installed: Installed, device: str) -> None:
    lines = LOOP.replace("torch.nn.Linear(256, 256)", f'torch.nn.Linear(256, 256, device="{device}")')
    command = installed(lines.replace("torch.ones(2, 256)", f'torch.ones(2, 256, device="{device}")'))

    found = run(command)

    assert (found.infers, found.iterations, found.ending) == (False, 3, "the program ran to its end")


def test_an_error_is_said_at_the_line_of_its_package(run: Run, installed: Installed) -> None:
    command = installed("def statistics():\n    raise ValueError('no data')\n")

    with pytest.raises(CrashedError) as caught:
        run(command)

    assert caught.value.place == "potentials/fitting/loop.py:2"


HIDDEN = """
import torch
model = torch.nn.Linear(256, 256)
with torch.no_grad():
    for _ in range(40):
        model(torch.ones(2, 256))
trained = model.cuda()
optimizer = getattr(torch, "op" + "tim").SGD(trained.parameters(), lr=0.1)
for _ in range(3):
    getattr(trained(torch.ones(2, 256, device="cuda")).sum(), "back" + "ward")()
    optimizer.step()
"""


def test_forwards_on_the_host_are_no_purpose_either_where_no_training_is_in_sight(run: Run, program: Program) -> None:
    found = run(f"python {program(HIDDEN)}")

    assert (found.infers, found.iterations) == (False, 3)


def test_one_that_infers_though_it_could_train_says_so(run: Run, installed: Installed) -> None:
    command = installed(LOOP.replace("range(3)", "range(0)").replace("2, 256)", '2, 256, device="cuda")').replace(
        "torch.nn.Linear(256, 256)", "torch.nn.Linear(256, 256).cuda()"
    ))  # fmt: skip

    found = run(command)

    assert (found.infers, found.is_whole, found.iterations) == (True, True, 12)
    assert "Its own files speak of training, which it did not come to." in [each.text for each in found.assumptions]


ON_THE_HOST = """
import torch
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 256)).sum().backward()
    optimizer.step()
"""


def test_one_that_never_uses_a_gpu_has_no_verdict(program: Program, capfd: pytest.CaptureFixture[str]) -> None:
    found = run_planner(capfd, "run", "--format", "json", "--", "python", program(ON_THE_HOST))

    assert (found.returncode, found.stdout) == (2, "")
    assert (
        "the program held nothing on a GPU, so there is no verdict on it (the program ran to its end)" in found.stderr
    )
    assert "--device cuda" in found.stderr


def test_one_of_which_some_ranks_use_a_gpu_has_one(program: Program) -> None:
    lines = 'import os\nimport torch\nif os.environ["RANK"] == "0": torch.Tensor.cuda = lambda tensor: tensor\n'
    lines += "def cuda(tensor): return tensor.cuda()\n"
    path = program(
        lines
        + """
weight = cuda(torch.ones(256)).requires_grad_()
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    weight.sum().backward()
    optimizer.step()
"""
    )

    plan = judge("torchrun", "--nproc-per-node", "2", path)

    assert sorted(each.peak.allocated_bytes for each in plan.rank_classes) == [0, 3 * 1024]


def test_forwards_alone_on_the_host_are_no_plan(program: Program) -> None:
    lines = "import torch\nfor _ in range(9): torch.nn.Linear(4, 4)(torch.ones(2, 4))\n"

    with pytest.raises(ProgramError, match="held nothing on a GPU"):
        judge("python", program(lines))
