"""`planner run`: what it prints where, and how it ends."""

from __future__ import annotations

import getpass
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from program_runs import run_planner

from planner import cli
from planner.job.launching.line import parse
from planner.job.named_gpus import look_up
from planner.job.schema import Software
from planner.planning.inputs import inputs_of
from planner.report.plan_text import render
from planner.report.statement import from_json, to_json
from planner.report.style import Style
from planner.units import GIB

PROGRAMS = Path(__file__).parents[1] / "tracing/running/programs"
WORLD = ["torchrun", "--nproc-per-node", "4", str(PROGRAMS / "classifier.py"), "--eval-every", "1000"]
LARGE = """
import torch
model = torch.nn.Linear(65536, 65536, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.zeros(2, 65536, device="cuda")).sum().backward()
    optimizer.step()
"""
READS_ON_THE_FIRST = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
weight = torch.zeros(8 << 20, device="cuda", requires_grad=True)
optimizer, square = torch.optim.SGD([weight], lr=0.1), torch.ones(40960, 40960, dtype=torch.bfloat16, device="cuda")
for step in range(4):
    loss = (weight * 2 + square.mm(square)[0, 0]).sum()  # some 0.1 s of the GPU
    loss.backward()
    dist.all_reduce(weight.grad, async_op=True)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(loss.item())
"""
TEACHES = """
import torch
teacher, model = (torch.nn.Linear(64, 64, device="cuda") for _ in range(2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    with torch.no_grad():
        target = teacher(torch.zeros(2, 64, device="cuda"))
    (model(target) - target).sum().backward()
    optimizer.step()
"""
GROWS = """
import torch
model = torch.nn.Linear(1024, 1024, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2000):
    batch_size = 1024 if step < 900 else 8192
    model(torch.zeros(batch_size, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


Ended = subprocess.CompletedProcess[str]


def planner(*words: str) -> Ended:
    return subprocess.run([sys.executable, "-m", "planner", *words], capture_output=True, text=True, check=False)


@pytest.fixture
def planner_here(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The command in this process, with children that have loaded PyTorch already."""
    return partial(run_planner, capfd)


@pytest.mark.parametrize(("torch", "cuda"), [("2.6", "12.4"), ("2.10", "12.8"), ("2.13", "13.0")])
def test_an_older_torch_comes_with_its_own_cuda(torch: str, cuda: str) -> None:
    """By which attention is chosen, for one."""
    command = ["python", str(PROGRAMS / "fine_tune.py")]
    known = look_up("H100-SXM-80GB", place="--gpu")

    work = inputs_of(parse(command, inherited={}), command, known, torch=torch)

    assert work.software == Software(torch=torch, cuda=cuda)


def test_json_is_one_object_on_standard_output() -> None:
    ended = planner(
        "run", "--allow-writes", "--patience", "0.5", "--format", "json", "--gpu", "A10G-24GB", "--", *WORLD
    )

    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert list(found) == [
        "schema", "plan_id", "trace_id", "verdict", "calibrated", "command", "metadata", "gpu", "nodes",
        "gpus_per_node", "allocator_conf", "ending", "iterations", "repeated", "counted", "seen", "unseen",
        "communicators", "rank_classes", "host", "out_of_memory", "assumptions", "branches", "provenance", "notes",
        "sources", "seconds",
    ]  # fmt: skip
    assert (found["schema"], found["command"], found["gpu"]) == ("planner.plan/2", WORLD, "A10G-24GB")
    assert found["counted"]["max_allocated_bytes"] == found["rank_classes"][0]["peak"]["allocated_bytes"]
    assert [each["ranks"] for each in found["rank_classes"]] == ["0-3"]
    assert 0 < found["repeated"] < found["iterations"]
    (branch,) = found["branches"]
    assert (branch["taken"], branch["outcome"].partition(":")[0]) == (True, "not tried")
    assert found["host"]["verdict"] is None
    assert [(each["nodes"], each["ranks"]) for each in found["host"]["nodes"]] == [("0", "0-3")]
    assert found["unseen"] == ["no evaluation was seen", "no checkpoint was seen being saved"]
    assert {each["about"] for each in found["assumptions"]} == {"host", "ranks", "value"}
    assert set(found["rank_classes"][0]["peak"]) >= {"allocated_bytes", "reserved_bytes", "device_bytes"}


def test_a_gpu_that_the_catalog_does_not_have_is_given_by_its_figures(planner_here: Callable[..., Ended]) -> None:
    gpu = "{total_bytes: 9.5GiB, arch: sm_80}"
    fine_tune = str(PROGRAMS / "fine_tune.py")
    ended = planner_here("run", "--allow-writes", "--steps", "2", "--format", "json", "--gpu", gpu,
                         "--", "python", fine_tune)  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    (found,) = json.loads(ended.stdout)["rank_classes"]
    assert found["capacity_bytes"] == 19 * GIB // 2


def test_nothing_of_planners_is_left_among_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, folder = tmp_path / "compiled.py", tmp_path / "temporary"
    compiled.write_text(
        LARGE.replace("65536", "64").replace("while True:", "model = torch.compile(model)\nwhile True:")
    )
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("PLANNER_CACHE", "none")
    ended = planner("run", "--allow-writes", "--patience", "0", "--", "python", str(compiled))

    assert ended.returncode == 0, ended.stderr
    assert {path.name for path in folder.iterdir()} <= {f"torchinductor_{getpass.getuser()}"}  # torch's own


def test_a_program_that_does_not_fit(tmp_path: Path, planner_here: Callable[..., Ended]) -> None:
    path = tmp_path / "large.py"
    path.write_text(LARGE)

    ended = planner_here("run", "--allow-writes", "--patience", "0", "--gpu", "A10G-24GB", "--", "python", str(path))

    assert ended.returncode == 3, ended.stderr
    assert "Does not fit: rank 0 needs" in ended.stdout
    said = " ".join(ended.stdout.split())
    assert "The first allocation that fails on rank 0 is in iteration 1, backward" in said
    assert "CUDA out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of" in said
    assert "What this rests on, besides the program" in ended.stdout


def test_the_first_rank_is_not_taken_for_the_others(tmp_path: Path, planner_here: Callable[..., Ended]) -> None:
    path = tmp_path / "reads.py"
    path.write_text(READS_ON_THE_FIRST)

    ended = planner_here("run", "--allow-writes", "--", "torchrun", "--nproc-per-node", "4", str(path))

    assert ended.returncode == 0, ended.stderr
    heads = [line for line in ended.stdout.splitlines() if line.startswith("rank")]
    assert heads == ["ranks 1-3, like rank 1"]  # the fullest, and a line of the other
    assert [line.split()[:2] for line in ended.stdout.splitlines() if line.startswith("  rank ")] == [["rank", "0"]]
    said = " ".join(ended.stdout.split())
    assert (
        "with the same allocations ranks 1-3 hold 32.00 MiB more at the peak than rank 0: there the host reads" in said
    )
    assert f"reads values of the GPU ({tmp_path.name}/reads.py:13), waits for it by that" in said
    assert "not every rank was run: 1-3 are taken to do as rank 1 does" in said


def test_below_its_command_stands_which_of_several_runs_is_planned(
    tmp_path: Path, planner_here: Callable[..., Ended]
) -> None:
    (tmp_path / "distils.py").write_text(TEACHES)
    script = tmp_path / "all.sh"
    script.write_text(f"#SBATCH --array=2-3\nfor SEED in 1 7; do python {tmp_path}/distils.py --seed $SEED; done\n")

    ended = planner_here("run", "--format", "json", "--", "sbatch", str(script))

    found = json.loads(ended.stdout)
    assert found["planned"] == [
        f"the job array 2-3 starts {script} 2 times: planned is its task 2",
        f"{script} starts distils.py 2 times: planned is `--seed 7`, not `--seed 1`",
    ]
    lines = render(from_json(found), Style(width=300)).splitlines()
    at = lines.index(f"sbatch {script}")
    assert lines[at + 1 : at + 3] == found["planned"]


def test_forwards_without_gradients_within_iterations_are_told_from_evaluations(
    tmp_path: Path, planner_here: Callable[..., Ended]
) -> None:
    path = tmp_path / "distils.py"
    path.write_text(TEACHES)

    ended = planner_here("run", "--allow-writes", "--format", "json", "--", "python", str(path))

    found = json.loads(ended.stdout)
    assert "eval" in {phase["phase"] for phase in found["rank_classes"][0]["phases"]}
    assert found["unseen"] == [
        "no evaluation was seen besides the forwards without gradients that are part of iterations",
        "no checkpoint was seen being saved",
    ]


def test_a_schedule_is_said_and_its_steps_are_run(tmp_path: Path, planner_here: Callable[..., Ended]) -> None:
    path = tmp_path / "grows.py"
    path.write_text(GROWS)

    unasked = planner_here("run", "--allow-writes", "--", "python", str(path))
    short = planner_here("run", "--allow-writes", "--batches", "0", "--", "python", str(path))
    told = planner_here("run", "--allow-writes", "--steps-at", "0,900", "--format", "json", "--", "python", str(path))

    said = " ".join(short.stdout.split())
    in_figure = " ".join(unasked.stdout.split())
    line = f"{tmp_path.name}/grows.py:6 (batch_size = 1024 if step < 900 else 8192)"
    assert f"the size of the batch depends on the step at {line}; what later steps take is in no figure" in said
    assert f"Of all steps the size of the batch at {line} is 8,192 at most." in in_figure
    assert "in no figure" not in in_figure
    found = json.loads(told.stdout)
    assert [each["step"] for each in found["steps_at"]] == [0, 900]
    at_first, later = (each["allocated_bytes"] for each in found["steps_at"])
    assert later == found["rank_classes"][0]["peak"]["allocated_bytes"]
    assert later - at_first == 2 * 7168 * 4096
    again = from_json(found)
    assert to_json(again) == found
    printed = render(again, Style())
    assert "Where its loop was made to count to these steps, rank 0 holds at most:\n- step 0: 0." in printed


def test_the_traceback_of_a_program_is_marked_as_its_own(tmp_path: Path, planner_here: Callable[..., Ended]) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise KeyError('data')\n")

    ended = planner_here("run", "--allow-writes", "--", "python", str(path))

    assert (ended.returncode, ended.stdout) == (2, "")
    lines = ended.stderr.splitlines()
    assert lines[0] == "--- the program's own traceback ---"
    said = "the program ended with an error of its own on rank 0: KeyError: 'data'"
    assert lines[-3] == f"{tmp_path.name}/broken.py:1: {said}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "the command starts 'nothing'"),
        (["run", "--gpu", "H1000", "--", "python", "t.py"], "there is no GPU `H1000`"),
        (["run", "--ranks", "9", "--", "torchrun", "--nproc-per-node", "8", "t.py"], "there is no rank 9"),
        (["run", "--steps", "-1", "--", "python", "t.py"], "--steps is -1"),
        (["run", "--gpus", "8x", "--", "python", "t.py"], "--gpus is '8x'"),
        (["run", "--gpus", "99999x120", "--", "python", "t.py"], "--gpus is '99999x120'"),
        (["run", "--steps-at", "0,x", "--", "python", "t.py"], "--steps-at is '0,x'"),
        (["run", "--steps-at", "900,0", "--", "python", "t.py"], "--steps-at is '900,0'"),
        (
            ["run", "--steps-at", "0,900", "--steps", "3", "--", "python", "t.py"],
            "--steps and --steps-at were both given",
        ),
        (["run", "--patience", "-1", "--", "python", "t.py"], "--patience is -1"),
        (["run", "--", "python", "/nowhere/t.py"], "there is no such program"),
    ],
)
def test_wrong_input_is_one_message(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert cli.main(words) == 2
    assert said in capsys.readouterr().err
