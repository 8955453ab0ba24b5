"""Launch lines inside of schedulers, MPI, environments of Python, and shells: what decides rank and world."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from planner.errors import SpecError
from planner.job.launching.launched_ranks import rank_variables
from planner.job.launching.line import LaunchLine, parse

SLURM_SCRIPT = """#!/bin/bash
#SBATCH --job-name=sft --nodes=2
#SBATCH --ntasks-per-node=1   # one torchrun on each
#SBATCH --gres=gpu:h100:8
#SBATCH --time 04:00:00
set -euo pipefail
module load cuda/12.8
source ~/venv/bin/activate
export OMP_NUM_THREADS=8 WANDB_RUN_ID=$(date +%s)
GPUS=${SLURM_GPUS_ON_NODE:-4}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR="$head"
cd train
python prepare.py --out data
srun --export=ALL,NCCL_DEBUG=INFO torchrun --nnodes "$SLURM_NNODES" --nproc_per_node $GPUS \\
    --rdzv_id $RANDOM --rdzv_backend c10d --rdzv_endpoint $head:29500 \\
    train.py --ranks "$SLURM_NNODES" "$@" 2>&1 | tee log.txt
echo done
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def line(command: str, files: Mapping[str, str] | None = None, **inherited: str) -> LaunchLine:
    def text_of(path: str) -> str:
        if files is None or path not in files:
            raise SpecError("is not there", place=path)
        return files[path]

    return parse(shlex.split(command), text_of, inherited)


def shape(found: LaunchLine) -> tuple[str, int, int, int, str]:
    return found.launcher.value, found.nodes, found.processes_per_node, found.gpus, found.program


@pytest.mark.parametrize(
    ("command", "nodes", "per_node", "gpus"),
    [
        ("srun -N2 --ntasks-per-node=4 --gpus-per-node=4 python t.py", 2, 4, 4),
        ("srun -n 8 -N 2 -p gpu --cpu-bind=none python t.py", 2, 4, 4),
        ("srun -n8 --gpus-per-task=1 python t.py", 1, 8, 1),
        ("srun --ntasks=4 --ntasks-per-node=2 --gres=gpu:a100:8 -u -l python t.py", 2, 2, 8),
        ("srun -N 2 --gpus=16 python t.py", 2, 1, 8),
        ("mpirun -np 8 -x NCCL_DEBUG=INFO -x PATH --bind-to none -mca btl ^openib python t.py", 1, 8, 8),
        ("mpirun -np 8 --npernode 4 --allow-run-as-root python t.py", 2, 4, 4),
        ("mpirun -H a:4,b:4 python t.py", 2, 4, 4),
        ("mpiexec -n 16 --map-by ppr:8:node python t.py", 2, 8, 8),
    ],
)
def test_srun_and_mpirun_start_each_rank(command: str, nodes: int, per_node: int, gpus: int) -> None:
    assert shape(line(command)) == ("python", nodes, per_node, gpus, "t.py")


def test_slurm_says_what_decides_a_rank() -> None:
    found = rank_variables(line("srun -N 2 -n 8 --export=ALL,MODE=x python t.py"), 6)

    wanted = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_TASKS_PER_NODE")
    assert [found[name] for name in wanted] == ["6", "2", "1", "8", "2", "4(x2)"]
    assert "RANK" not in found


def test_mpi_says_what_decides_a_rank() -> None:
    started = line("mpirun -np 8 -N 4 -x MODE=x python t.py")
    found = rank_variables(started, 6)

    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK")
    assert [found[f"OMPI_COMM_WORLD_{name}"] for name in names] == ["6", "8", "2", "4", "2"]
    assert started.environment == {"MODE": "x"}


def test_under_srun_torchrun_starts_the_ranks_of_a_node() -> None:
    found = line("srun -N 2 torchrun --nnodes 2 --nproc-per-node 4 t.py")
    variables = rank_variables(found, 5)

    assert shape(found) == ("torchrun", 2, 4, 4, "t.py")
    assert [variables[name] for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS")] == ["5", "1", "1", "2"]


@pytest.mark.parametrize(
    ("command", "nodes", "processes"),
    [
        ("env PET_NNODES=2 PET_NPROC_PER_NODE=4 torchrun t.py", 2, 4),
        ("PET_NNODES=2:2 PET_NPROC_PER_NODE=4 bash -c 'torchrun --nproc-per-node 8 t.py'", 2, 8),
        ("env PET_NNODES=2 accelerate launch --num_processes 4 t.py", 1, 4),
    ],
)
def test_torchrun_asks_its_environment_for_what_is_not_written(command: str, nodes: int, processes: int) -> None:
    found = line(command)

    assert (found.nodes, found.processes_per_node) == (nodes, processes)


def test_a_batch_script_comes_to_its_srun_line() -> None:
    Path("train").mkdir()

    found = line("sbatch -J other run.sbatch --lr 3e-4", {"run.sbatch": SLURM_SCRIPT}, HOME="/home/me")

    assert shape(found) == ("torchrun", 2, 8, 8, "train.py")
    assert (found.arguments, found.folder) == (("--ranks", "2", "--lr", "3e-4"), "train")
    assert {**found.environment, "WANDB_RUN_ID": ""} == {
        "OMP_NUM_THREADS": "8", "NCCL_DEBUG": "INFO", "MASTER_ADDR": "127.0.0.1", "WANDB_RUN_ID": "",
    }  # fmt: skip
    assert found.environment["WANDB_RUN_ID"].isdigit()
    assert rank_variables(found, 9)["SLURM_JOB_NAME"] == "other"
    assert found.notes == (
        "run.sbatch: not run: module load cuda/12.8",
        "run.sbatch: not run: source /home/me/venv/bin/activate",
        "run.sbatch: not run: python prepare.py --out data",
    )


def test_a_batch_scripts_own_command_is_one_process_of_the_first_node() -> None:
    found = line("sbatch --gpus-per-node 4 -n 8 -N 2 --wrap 'python t.py'")

    assert shape(found) == ("python", 1, 1, 4, "t.py")
    assert [rank_variables(found, 0)[name] for name in ("SLURM_PROCID", "SLURM_NTASKS")] == ["0", "8"]


@pytest.mark.parametrize(
    "command",
    [
        "uv run --with einops --frozen -- torchrun --nproc-per-node 4 t.py --lr 1",
        "conda run --no-capture-output -n env torchrun --nproc-per-node 4 t.py --lr 1",
        "env -u X A=1 nohup torchrun --nproc-per-node 4 t.py --lr 1",
        "bash -lc 'ulimit -n 4096 && N=4 && exec torchrun --nproc-per-node $N t.py --lr 1'",
        "numactl --cpunodebind=0 timeout 10h python3 -m torch.distributed.run --nproc_per_node=4 t.py --lr 1",
        "ray job submit --address http://head:8265 --no-wait -- torchrun --nproc-per-node 4 t.py --lr 1",
        "docker run --gpus all -it --rm --ipc=host --ulimit memlock=-1 image:1 torchrun --nproc_per_node 4 t.py --lr 1",
        "podman run --device nvidia.com/gpu=all --security-opt=x img torchrun --nproc_per_node 4 t.py --lr 1",
        "docker exec -it box bash -c 'torchrun --nproc_per_node 4 t.py --lr 1'",
        "apptainer exec --nv --bind /data img.sif torchrun --nproc-per-node 4 t.py --lr 1",
        "singularity run --nv --no-home img.sif torchrun --nproc-per-node 4 t.py --lr 1",
        "enroot start --rw --mount .:/w img torchrun --nproc_per_node 4 t.py --lr 1",
        "nsys profile -w true -t cuda,nvtx -f true --stats=true torchrun --nproc_per_node 4 t.py --lr 1",
        "ncu --set full -o out -f --target-processes all torchrun --nproc_per_node 4 t.py --lr 1",
        "sudo -E -u me timeout -k 5 10h ionice -c2 -n7 torchrun --nproc_per_node 4 t.py --lr 1",
        "nice -n 10 taskset -c 0-7 stdbuf -oL numactl -N 0 -m 0 torchrun --nproc_per_node 4 t.py --lr 1",
        "xvfb-run -a -s '-screen 0 1x1x24' torchrun --nproc_per_node 4 t.py --lr 1",
        "poetry run torchrun --nproc_per_node 4 t.py --lr 1",
        "pixi run -e cuda hatch run torchrun --nproc_per_node 4 t.py --lr 1",
        "torchrun --nproc_per_node 4 t.py -- --lr 1",
        "python -m torch.distributed.launch --nproc_per_node 4 t.py --lr 1",
        "./run.sh --lr 1",
        "bash -e run.sh --lr 1",
    ],
)
def test_what_stands_around_torchrun_is_taken_off(command: str) -> None:
    found = line(
        command,
        {"./run.sh": 'torchrun --nproc-per-node 4 t.py "$@"\n', "run.sh": "torchrun --nproc-per-node=4 t.py $@"},
    )

    assert shape(found) == ("torchrun", 1, 4, 4, "t.py")
    assert found.arguments == ("--lr", "1")


def test_a_container_has_folders_and_variables_of_its_own() -> None:
    command = (
        "docker run -v /host/job:/workspace -w /workspace -e A=1 -e B img torchrun --nproc-per-node 2 /workspace/t.py"
    )
    inside = line(command)
    srun = line("srun --container-image=img --container-mounts=/host/job:/workspace python /workspace/t.py")
    Path("host/job").mkdir(parents=True)
    entered = line(f"docker run -v {Path.cwd()}/host:/w img bash -c 'cd /w/job && python t.py'")
    elsewhere = line("apptainer exec --pwd /opt/job --env A=1,B=2 img python t.py")

    assert (inside.program, inside.folder, inside.environment) == ("/host/job/t.py", "/host/job", {"A": "1"})
    assert (srun.program, entered.folder) == ("/host/job/t.py", "host/job")
    assert (elsewhere.folder, elsewhere.environment) == ("", {"A": "1", "B": "2"})
    assert elsewhere.notes == ("/opt/job of the container is assumed to be the folder that is here",)


def test_uv_runs_modules_and_files() -> None:
    assert line("uv run -m pkg.train --x").is_module
    assert shape(line("uv run t.py --x")) == ("python", 1, 1, 1, "t.py")


def test_ray_has_a_runtime_environment() -> None:
    runtime = json.dumps({"env_vars": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "working_dir": "job"})
    files = {"env.yaml": "working_dir: s3://bucket/job.zip\nenv_vars: {A: '1'}\n"}

    found = line(f"ray job submit --runtime-env-json '{runtime}' -- python t.py")
    other = line("ray job submit --runtime-env env.yaml --working-dir here -- python t.py", files)

    assert (found.environment, found.folder) == ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "job")
    assert (other.environment, other.folder) == ({"A": "1"}, "here")


def test_a_script_uses_what_it_finds_and_what_it_is_given() -> None:
    files = {
        "run.sh": 'A="$HOME/x"; B=${MODE:-fast}\nCUDA_VISIBLE_DEVICES=0 python t.py "$A" \'$A\' $B $1 ${2:-two} "a  b"'
    }

    found = line("bash run.sh one", files, HOME="/home/me")

    assert found.arguments == ("/home/me/x", "$A", "fast", "one", "two", "a  b")
    assert found.environment == {"CUDA_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize(
    ("command", "script", "said"),
    [
        ("srun --gpu 4 python t.py", "", "unknown option --gpu"),
        ("srun -N 2-4 python t.py", "", "Slurm decides how many"),
        ("srun -n 3 -N 2 python t.py", "", "3 tasks on 2 nodes"),
        ("srun -n 8 torchrun --nproc-per-node 8 t.py", "", "srun starts 8 processes of torchrun, which says 1 nodes"),
        ("srun --multi-prog conf", "", "--multi-prog is not read"),
        ("srun -n 2 mpirun -np 2 python t.py", "", "srun starts another of its kind"),
        ("mpirun python t.py", "", "-np is missing"),
        ("mpirun -np 2 python a.py : -np 2 python b.py", "", "mpirun starts several programs"),
        ("sbatch run.sh", "#SBATCH -N 2\ntorchrun --nnodes 2 t.py", "on the first of 2 nodes only"),
        ("bash run.sh", "python t.py --name 'x", "unexpected EOF while looking for matching"),
        ("bash run.sh", "python t.py --out $SCRATCH/x", r"\$SCRATCH decides a part of the launch line"),
        ("bash run.sh", "echo hello", "the script has no launch line"),
        ("bash other.sh", "", "is not there"),
        ("docker run --gpus all img", "", "docker has no command to start in img: what its image starts is not known"),
        ("docker build .", "", "starts 'docker', which is not a known launcher"),
        ("nice -Z python t.py", "", "unknown option --Z"),
        ("uv run --withal x t.py", "", "unknown option --withal"),
        ("ray job submit -- ", "", "no entrypoint"),
        ("env " * 30 + "python t.py", "", "wrapped too often"),
    ],
)
def test_what_is_not_read_is_named(command: str, script: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        line(command, {"run.sh": script} if script else None)
