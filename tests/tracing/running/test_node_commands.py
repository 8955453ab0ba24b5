"""Commands that programs start on their node."""

from __future__ import annotations

import subprocess
from pathlib import Path

from program_runs import STEP, Program, Run

from planner.tracing.program.node_commands import node_commands
from planner.tracing.program.rank_orders import Gpu

H100 = Gpu(product="NVIDIA H100 80GB HBM3", arch="sm_90", total_bytes=81559 << 20)


def test_nvidia_smi_lists_the_gpus_and_refuses_other_questions() -> None:
    with node_commands(H100, 2):
        listed, asked = (
            subprocess.run(["nvidia-smi", word], capture_output=True, text=True)
            for word in ("-L", "--query-gpu=memory.used")
        )

    assert listed.stdout == "".join(f"GPU {index}: NVIDIA H100 80GB HBM3, 81559 MiB (on paper)\n" for index in range(2))
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "--query-gpu=memory.used" in asked.stderr


ASKS_SLURM = """
import os, subprocess, torch
names = subprocess.check_output(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]], text=True)
os.environ["MASTER_ADDR"] = subprocess.getoutput("scontrol show hostname $SLURM_NODELIST | head -n1")
assert (names.split(), os.environ["MASTER_ADDR"]) == (["node1", "node2"], "node1")
other = subprocess.run(["scontrol", "show", "job"], capture_output=True, text=True)
assert other.returncode == 2 and "does not know: show job" in other.stderr
"""


def test_scontrol_names_the_nodes_of_a_job_of_slurm(run: Run, program: Program) -> None:
    """As mmcv, InternLM and DINOv3 find the first one's address."""
    path: Path = program(ASKS_SLURM + STEP)

    assert run(f"srun -N 2 --ntasks-per-node 4 python {path}", rank=5).iterations
