"""Shell scripts: which command they come to, as far as what decides it is known; what is not known is named."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from planner.errors import SpecError
from planner.job.launching.line import LaunchLine, parse
from planner.runtime import scripts

TUTORIAL = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
set -ex
# Which node is the first
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
nodes_array=($nodes)
head_node=${nodes_array[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
echo Node IP: $head_node_ip

srun python -m torch.distributed.launch --use-env --nnodes ${#nodes[@]} --nproc_per_node 8 \\
  --rdzv_id $RANDOM --rdzv_backend c10d --rdzv_endpoint $head_node_ip:29500 \\
  train.py
"""
HOSTS = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:8
MASTER_ADDR=10.0.0.1
srun --jobid $SLURM_JOBID bash -c "source activate venv; deepspeed --hostfile=config/hostfile \\
  --master_addr=$MASTER_ADDR train.py"
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def script(
    text: str, *arguments: str, gpus: int = 0, files: Mapping[str, str] = MappingProxyType({}), **inherited: str
) -> LaunchLine:
    """What a script comes to; it is a batch script if it says so."""
    for name, content in {"run.sh": text, **files}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)
        Path(name).chmod(0o755)
    starter = "sbatch" if "#SBATCH" in text else "bash"
    return parse([starter, "run.sh", *arguments], inherited=inherited, node_gpus=gpus)


def ranks(found: LaunchLine) -> tuple[str, int, int, str]:
    return found.launcher.value, found.nodes, found.processes_per_node, found.program


def test_the_form_of_the_tutorial_for_several_nodes() -> None:
    found = script(TUTORIAL)

    assert ranks(found) == ("torchrun", 2, 8, "train.py")
    assert not found.says_local_rank


@pytest.mark.parametrize("files", [{}, {"config/hostfile": "a slots=8\nb slots=8\n"}])
def test_a_file_of_hosts_lies_beside_the_script_or_on_the_cluster(files: dict[str, str]) -> None:
    assert ranks(script(HOSTS, files=files)) == ("deepspeed", 2, 8, "train.py")


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        # branches
        ("N=2\nif [ $N -gt 1 ]; then python t.py many; else python t.py one; fi", "many"),
        ('if [ -z "$UNSET" ]; then A=empty; elif true; then A=no; fi\npython t.py $A', "empty"),
        ('if [[ $MODE == fast* && ! -n "$X" ]]; then A=1; else A=2; fi\npython t.py $A', "1"),
        ("case $MODE in slow) A=1;; fast|quick) A=2;; *) A=3;; esac\npython t.py $A", "2"),
        ("[ -n \"$MODE\" ] && A=set || A=unset\npython t.py $A", "set"),
        ("if [ -f x ]; then A=--resume; fi; python t.py $A", ""),
        ("if which nvidia-smi; then echo yes; else exit 1; fi\npython t.py", ""),
        ("if ! git diff --quiet; then echo dirty; fi\npython t.py", ""),
        # loops
        ("for x in 1 2 {3..4}; do A+=$x; done\npython t.py $A", "1234"),
        ("for ((i=0; i<3; i++)); do A=$A$i; done\npython t.py $A", "012"),
        ("while [ $i -lt 3 ]; do ((i++)); done; if ((2 > 1)); then python t.py 1; fi", "1"),
        ("i=0; while [ $i -lt 3 ]; do i=$((i+1)); done; python t.py $i", "3"),
        ("while [[ $# -gt 0 ]]; do case $1 in --lr) LR=$2; shift 2;; *) shift;; esac; done\npython t.py $LR", "3e-4"),
        ("while true; do nvidia-smi; sleep 60; done &\npython t.py", ""),
        ("while true; do nvidia-smi; done &\npython t.py", ""),
        ("for x in a b c; do [ $x = b ] && break; done; python t.py $x", "b"),
        # functions, lists and what they keep
        ("run() { local n=$1; python t.py $n; }\nrun 5", "5"),
        ("function run { A=in; }\nA=out; (run); python t.py $A; ", "out"),
        ("{ A=1; python t.py $A; } 2>&1 | tee log", "1"),
        ("eval 'A=3'; CMD=\"python t.py $A\"; eval $CMD", "3"),
        ("source settings.sh\npython t.py $A", "of the file"),
        # here-documents
        ("cat <<EOF > hosts\nif don't\nEOF\npython t.py", ""),
        ("read -r -d '' ARGS <<EOF\n--a 1\n--b $MODE\nEOF\npython t.py $ARGS", "--a 1 --b fast"),
        # arrays
        ('A=(--lr 1)\nA+=(\n  --x "a b"  # its name\n)\npython t.py "${A[@]}" ${#A[@]}', "--lr 1 --x a b 4"),
        ("declare -A S=([small]=8 [large]=64)\nk=large\npython t.py ${S[$k]} ${A:-none}", "64 none"),
        ("A=(a b c d)\npython t.py ${A[1]} ${A[-1]} ${A[@]:1:2}", "b d b c"),
        # values
        ("N=$((2*(1+1))); python t.py $N $((N/3)) $((-7%3)) $((N>=4))", "4 1 -1 1"),
        ("P=ab.tar.gz; python t.py ${P%%.*} ${P%.gz} ${P#*.} ${P/ab/x} ${#P} ${P:1:2} ${P^^}",
         "ab ab.tar tar.gz x.tar.gz 9 b. AB.TAR.GZ"),
        ('D=$(cd "$(dirname "$0")" && ls run.sh); python t.py $D $(basename /x/y.py .py) `echo a b`',
         "run.sh y a b"),
        ("python t.py $(echo 0,1,2 | tr ',' '\\n' | wc -l) $(seq 1 3) $(echo a:b | cut -d: -f2)", "3 1 2 3 b"),
        ("python t.py ${A:=x} $A ${MODE:+y} ${10} $'a\\tb'", "x x y a\tb"),
        ("N=$(nvidia-smi -L | wc -l)\npython t.py $N $(python -c 'import torch; print(torch.cuda.device_count())')",
         "8 8"),
        ("python t.py --name run-$(date -d 2026-01-02 +%F)", "--name run-2026-01-02"),
        ("if grep -qE '^\\s*A=' settings.sh && ! grep -q B= settings.sh; then A=1; fi; python t.py $A", "1"),
        ("python t.py $(grep A= settings.sh | cut -d= -f2) $(cat settings.sh | wc -l)", "'of the file' 1"),
        ("bash -c \"export X='$UNSET'; python t.py $MODE\"", "fast"),
        ("bash <<EOF\nexport N=1\npython t.py $MODE \\$N\nEOF", "fast 1"),
        ('ARGS="$ARGS --a"; ARGS="${ARGS} --b"; python t.py $ARGS', "--a --b"),
    ],
)  # fmt: skip
def test_what_decides_is_followed(text: str, arguments: str) -> None:
    files = {"settings.sh": "A='of the file'\n"}

    found = script(text, "--lr", "3e-4", gpus=8, files=files, MODE="fast", PWD="/here")

    assert (found.program, " ".join(found.arguments)) == ("t.py", arguments)


def test_a_job_has_as_many_gpus_as_its_lines_ask_for() -> None:
    text = (
        "#SBATCH --gpus-per-node=4 -N 2\nN=$(nvidia-smi -L | wc -l)\nsrun torchrun --nnodes 2 --nproc_per_node $N t.py"
    )

    assert ranks(script(text)) == ("torchrun", 2, 4, "t.py")


def test_a_script_submits_what_it_writes() -> None:
    text = "N=2\nsbatch <<EOF\n#!/bin/bash\n#SBATCH -N $N --gres=gpu:4 --err=log\nsrun torchrun --nnodes $N t.py\nEOF"

    assert ranks(script(text)) == ("torchrun", 2, 1, "t.py")


def test_the_program_that_trains_is_the_one_that_is_meant() -> None:
    text = "torchrun --nproc_per_node 2 tokenize_data.py\ntorchrun --nproc_per_node 2 train.py\npython evaluate.py\n"
    again = "for lr in 1 2; do torchrun --nproc_per_node 2 train.py --lr $lr; done"

    assert (script(text).program, script(again).arguments) == ("train.py", ("--lr", "2"))
    assert script(text).notes == (
        "run.sh: not run: torchrun --nproc_per_node 2 tokenize_data.py",
        "run.sh: not run: python evaluate.py",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("python t.py $A $B", r"\$A and \$B decides a part of the launch line"),
        (
            "#SBATCH -N 2\nsrun bash -c 'if [ $SLURM_NODEID -eq 0 ]; then A=1; else A=2; fi; python t.py $A'",
            r"\$SLURM_NODEID decides a part",
        ),
        (
            "#SBATCH -N 2\nsrun bash -c 'if [ $SLURM_NODEID -eq 0 ]; then python a.py; else python b.py; fi'",
            r"\$SLURM_NODEID decides what a task starts",
        ),
        (
            "python t.py $(python settings.py --lr)",
            "output of python settings.py --lr decides a part of the launch line",
        ),
        ("torchrun base.py\ntorchrun sft.py", "the script starts 2 programs: torchrun base.py; torchrun sft.py"),
        (
            "if [ $# -lt 1 ]; then echo 'Usage: run.sh SIZE'; exit 1; fi\npython t.py $1",
            "ends in line 1.*'Usage: run.sh SIZE'",
        ),
        ("python t.py ${DATA:?where the data lies}", "ends in line 1.*DATA: where the data lies"),
        ("set -euo pipefail\ncd $DATA\npython t.py", "ends in line 2.*DATA: unbound variable"),
        ("set -euo pipefail\npython t.py $DATA", r"\$DATA decides a part of the launch line"),
        ("set -e\necho before\nfalse\npython t.py", "ends in line 3.*'before'"),
        (
            "torchrun --nproc_per_node $(nvidia-smi -L | wc -l) t.py",
            "decides a part of the launch line.*\n.*\n.*--gpus NUMBER",
        ),
        ("which torchrun; pip install deepspeed; echo srun", "the script has no launch line"),
        ("if true; then python t.py", "syntax error: unexpected end of file"),
        ("echo\nfi\npython t.py", "line 2: syntax error near unexpected token `fi'"),
        ("python t.py )", r"syntax error near unexpected token `\)'"),
    ],
)
def test_what_is_not_known_is_named(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        script(text)


BROUGHT = """#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8 --ntasks-per-node=1
#SBATCH --environment=site-image
set -euo pipefail
trap 'echo ended' EXIT
hosts=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
launch() { local size=$1; shift; srun torchrun "${args[@]}" train.py --size "$size" "$@"; }
args=(--nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node 8 --rdzv-endpoint "${hosts[0]}:29500")
case "${SIZE:-large}" in small) batch=16 ;; large) batch=8 ;; esac
if [[ -n "${DEBUG:-}" ]]; then launch small; else launch "${SIZE:-large}" --batch "$batch"; fi
"""


def test_what_bash_has_is_read_by_bash() -> None:
    found = script(BROUGHT)

    assert ranks(found) == ("torchrun", 2, 8, "train.py")
    assert found.arguments == ("--size", "large", "--batch", "8")
    assert found.notes == ("options of Slurm that are not known here, and were passed over: --environment=site-image",)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("/opt/none/bin/python train.py", "train.py"),
        ("exec /opt/none/bin/python -u train.py", "train.py"),
        ("PYTHON=/opt/none/bin/python; $PYTHON train.py", "train.py"),
        ('set -u; CUDA_VISIBLE_DEVICES=0 "$PWD/env/bin/python" train.py', "train.py"),
        ("source env/bin/activate; python train.py", "train.py"),
        ("PATH=$PWD/env/bin:$PATH; ./started.py --lr 1", "./started.py"),
        ("./inner.sh one", "inner.py"),
        ("exec ./inner.sh one", "inner.py"),
        ("sh inner.sh one", "inner.py"),
        ("(cd sub && bash ../inner.sh) &\nwait", "inner.py"),
    ],
)
def test_commands_by_their_path_are_not_run_either(text: str, program: str) -> None:
    files = {
        "inner.sh": "#!/bin/sh\npython inner.py $1",
        "started.py": "#!/usr/bin/env python\nraise SystemExit(open('run', 'w'))",
        "env/bin/activate": "export PATH=$PWD/env/bin:$PATH\n",
        "env/bin/python": "#!/bin/sh\necho started >&2; exit 3\n",
        "sub/a": "",
    }

    assert script("set -e\n" + text, files=files).program == program


def test_what_a_script_writes_is_gone_but_for_what_its_launch_line_names() -> None:
    text = "rm kept; mkdir made; N=4\ncat > made/a.yaml <<E\nnum_processes: $((2 * N))\nE\n"
    text += "accelerate launch --config_file made/a.yaml t.py"

    found = script(text, files={"kept": "kept"})

    assert (ranks(found), Path("kept").read_text(), Path("made").exists()) == (
        ("accelerate", 1, 8, "t.py"), "kept", False,
    )  # fmt: skip
    assert found.files == {str(Path("made/a.yaml").absolute()): "num_processes: 8\n"}


def test_a_script_reaches_no_network_and_no_other_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = (
            f"if (exec 3<>/dev/tcp/127.0.0.1/{port}); then A=reached; else A=none; fi\n"
            f"kill -0 {os.getpid()} && B=seen || B=none\npython t.py $A $B $(ls -d /proc/[0-9]* | wc -l | grep -c ..)"
        )

        assert script(text).arguments == ("none", "none", "0")


def test_a_script_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "LIMITS", replace(scripts.LIMITS, seconds=2.0))

    with pytest.raises(SpecError, match="the script does not end within 2 s"):
        script("while [ 1 -lt 2 ]; do :; done; python t.py")


@pytest.mark.parametrize(
    ("text", "which"),
    [
        (
            "for n in 96 192 336; do python train.py --length $n; done",
            "`--length 336`, not `--length 96`; `--length 192`",
        ),
        ("python train.py --a 1 --b 2\npython train.py --b 2 --fast", "`--fast`, not `--a 1`"),
        ("python train.py --lr=1 x\npython train.py --lr=2 x", "`--lr=2`, not `--lr=1`"),
        ("python train.py --warm\npython train.py", "the line without them, not `--warm`"),
    ],
)
def test_of_several_trainings_it_is_said_which_one_is_planned(text: str, which: str) -> None:
    count = 3 if "for" in text else 2

    found = script(text)

    assert (found.planned, found.notes) == ((f"run.sh starts train.py {count} times: planned is {which}",), ())


@pytest.mark.parametrize(
    ("array", "found"),
    [
        ("0-15:4", ("0", "4", "0", "12")),
        ("7,3,5-6%2", ("3", "4", "3", "7")),
        ("2", ("2", "1", "2", "2")),
    ],
)
def test_of_a_job_array_the_first_task_is_planned(array: str, found: tuple[str, ...]) -> None:
    names = ("TASK_ID", "TASK_COUNT", "TASK_MIN", "TASK_MAX")
    read = " ".join(f"$SLURM_ARRAY_{name}" for name in names)

    line = script(f"#SBATCH --array={array}\nsrun python train.py {read}")

    assert line.arguments == found
    assert line.planned == (f"the job array {array} starts run.sh {found[1]} times: planned is its task {found[0]}",)
    assert line.tasks is not None
    assert line.tasks.variables(0)["SLURM_ARRAY_TASK_ID"] == found[0]


@pytest.mark.parametrize("array", ["x", "5-2", "1-3:0", "0-3,", "0-12345678"])
def test_a_job_array_without_tasks_is_refused(array: str) -> None:
    with pytest.raises(SpecError, match="--array is"):
        script(f"#SBATCH --array={array}\npython t.py")


def test_a_folder_that_is_not_here_is_said() -> None:
    found = script("cd /scratch/job\npython t.py")

    assert (found.folder, found.notes) == (
        "", ("run.sh: cd /scratch/job: there is no such folder here, and the script stays where it is",),
    )  # fmt: skip


def test_files_are_those_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text("if [ -d /nowhere ] || [ ! -f run.sh ]; then A=1; else A=2; fi\npython t.py $A")

    assert parse(["bash", "run.sh"]).arguments == ("2",)
