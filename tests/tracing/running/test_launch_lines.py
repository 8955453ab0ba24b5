"""The command behind `planner run --`: who is started, as how many ranks, with which environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planner.errors import SpecError
from planner.job.launching.launched_ranks import extra_arguments, rank_variables
from planner.job.launching.line import Launcher, LaunchLine, parse


def line(command: str) -> LaunchLine:
    return parse(command.split())


def test_python_starts_one_process() -> None:
    found = line("python3.11 -u train.py --lr 0.1")

    assert found == LaunchLine(launcher=Launcher.PYTHON, program="train.py", arguments=("--lr", "0.1"))
    assert rank_variables(found, 0) == {}


@pytest.mark.parametrize("command", ["python -m pkg.train --x 1", "env A=1 python -X dev -m pkg.train --x 1"])
def test_python_starts_a_module(command: str) -> None:
    found = line(command)

    assert (found.program, found.is_module, found.arguments) == ("pkg.train", True, ("--x", "1"))


def test_variables_before_the_command_are_the_programs_own() -> None:
    assert line("PYTORCH_ALLOC_CONF=a:b python t.py").environment == {"PYTORCH_ALLOC_CONF": "a:b"}


@pytest.mark.parametrize("launcher", ["torchrun", "python -m torch.distributed.run"])
def test_torchrun_has_nodes_and_processes(launcher: str) -> None:
    found = line(f"{launcher} --nnodes=2 --nproc-per-node 4 --rdzv_id run7 -m train cfg.toml")

    assert (found.nodes, found.processes_per_node, found.world_size) == (2, 4, 8)
    assert (found.program, found.is_module, found.arguments) == ("train", True, ("cfg.toml",))


def test_torchrun_sets_what_decides_a_rank() -> None:
    found = rank_variables(line("torchrun --nnodes 2 --nproc_per_node 4 --rdzv-id run7 t.py"), 6)

    assert {name: found[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")} == {
        "RANK": "6", "LOCAL_RANK": "2", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    }  # fmt: skip
    assert found["TORCHELASTIC_RUN_ID"] == "run7"


def test_deepspeed_says_the_local_rank_as_an_argument() -> None:
    found = line("deepspeed --num_gpus 8 train.py --deepspeed ds.json")

    assert (found.launcher, found.world_size, found.arguments) == (Launcher.DEEPSPEED, 8, ("--deepspeed", "ds.json"))
    assert extra_arguments(found, 5) == ("--local_rank=5",)
    assert extra_arguments(line("deepspeed --num_gpus 8 --no_local_rank train.py"), 5) == ()


def test_the_old_launcher_says_the_local_rank_as_an_argument_unless_it_is_told_not_to() -> None:
    old = "python -m torch.distributed.launch --nproc_per_node 4"
    lines = (f"{old} t.py", f"{old} --use-env t.py", f"{old} --use_env t.py", "torchrun --nproc_per_node 4 t.py")

    assert [extra_arguments(line(each), 3) for each in lines] == [("--local-rank=3",), (), (), ()]


def test_a_launcher_takes_as_many_gpus_as_are_visible_where_it_is_told_no_number() -> None:
    lines = ("accelerate launch t.py", "deepspeed t.py", "torchrun --nproc_per_node gpu t.py")

    assert [line(f"CUDA_VISIBLE_DEVICES=0,2 {each}").world_size for each in lines] == [2, 2, 2]
    assert [line(f"srun --gres=gpu:8 {each}").world_size for each in lines] == [8, 8, 8]


def test_python_sees_the_gpus_that_are_visible() -> None:
    visible = ("CUDA_VISIBLE_DEVICES=0,1", "env CUDA_VISIBLE_DEVICES=3", "CUDA_VISIBLE_DEVICES=0,1,2 nohup", "")

    assert [line(f"{each} python t.py").gpus for each in visible] == [2, 1, 3, 1]
    assert parse(["CUDA_VISIBLE_DEVICES=0,1", "python", "t.py"], node_gpus=8).gpus == 2
    assert line("CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc_per_node 2 t.py").gpus == 2


def test_deepspeed_reads_a_file_of_hosts(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# of the job\nworker-0 slots=4\nworker-1 slots=4\nworker-2 slots=4\n")
    uneven = tmp_path / "uneven"
    uneven.write_text("worker-0 slots=4\nworker-1 slots=2\n")

    found = [
        line(f"deepspeed --hostfile={hosts} {options} t.py")
        for options in ("", "--num_gpus 2", "--include worker-0@worker-2", "-e worker-1", "--num_nodes 1")
    ]

    assert [(each.nodes, each.processes_per_node) for each in found] == [(3, 4), (3, 2), (2, 4), (2, 4), (1, 4)]
    with pytest.raises(SpecError, match="its hosts have 2, 4 slots"):
        line(f"deepspeed --hostfile={uneven} t.py")


def test_what_pip_installs_for_a_command_is_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "train-it"
    command.write_text(f"#!{sys.executable}\nprint()\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    assert line("train-it --lr 1") == LaunchLine(
        launcher=Launcher.PYTHON, program=str(command), arguments=("--lr", "1")
    )


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ("--num_accelerators 4 --quiet", (1, 4)),
        ("-q --num_gpus=4 --log_level warning --num_nodes 2", (2, 4)),
        ("--hostfile hosts --num_nodes 2 --num_gpus 8", (2, 8)),
        ("--include localhost:1,2,3", (1, 3)),
        ("-i worker-0:0,1@worker-1:2,3", (2, 2)),
    ],
)
def test_deepspeed_says_how_many_ranks_there_are(options: str, ranks: tuple[int, int]) -> None:
    found = line(f"deepspeed {options} train.py --lr 1")

    assert (found.nodes, found.processes_per_node) == ranks
    assert (found.program, found.arguments) == ("train.py", ("--lr", "1"))


def test_accelerate_has_its_processes_on_all_machines() -> None:
    found = line("accelerate launch --num_processes 8 --num_machines 2 --mixed_precision bf16 --use_fsdp train.py x")

    assert (found.nodes, found.processes_per_node, found.program, found.arguments) == (2, 4, "train.py", ("x",))
    assert found.launcher_words[:2] == ("--num_processes", "8")


def test_accelerate_reads_how_many_from_its_config(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("num_processes: 4\nnum_machines: 1\n")

    assert line(f"accelerate launch --config_file {config} train.py").world_size == 4


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "starts 'nothing'"),
        ("make train", "starts 'make'.*\n.*\n.*make -n TARGET"),
        ("sky launch job.yaml", "starts 'sky'.*\n.*\n.*the command that stands in its file"),
        ("python", "no program"),
        ("python -c print()", "stands in the command"),
        ("torchrun --nproc-per-node gpu t.py", "--nproc-per-node is gpu, which the machine decides"),
        ("torchrun --nnodes 1:4 t.py", "changes while the job runs"),
        ("torchrun --nproc 4 t.py", "unknown option --nproc"),
        ("torchrun --nproc-per-node", "no value"),
        ("accelerate launch train.py", "--num_processes is missing"),
        ("accelerate launch --config_file /none.yaml train.py", "cannot be read"),
        ("accelerate launch --num_processes 3 --num_machines 2 train.py", "3 processes on 2 machines"),
        ("deepspeed train.py", "--num_gpus is missing"),
        ("deepspeed --hostfile hosts --num_gpus 8 train.py", "--num_nodes is missing"),
        ("deepspeed --include worker-0:0,1@worker-1 train.py", "--num_gpus is missing"),
        ("deepspeed --num_gpus 8 --autotuning run train.py", "asks for autotuning"),
        ("deepspeed --num_gpus 8 --elastic_training train.py", "unknown option --elastic_training"),
    ],
)
def test_what_is_not_understood_is_named(command: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        line(command)
