"""What a launcher sets for each of its ranks, and puts before the program's arguments."""

from __future__ import annotations

from planner.job.launching.line import Launcher, LaunchLine
from planner.job.launching.schedulers import ADDRESS

_PORT = "29500"


def rank_variables(line: LaunchLine, rank: int) -> dict[str, str]:
    """What the launcher sets for this rank, besides what it inherits; for accelerate without accelerate's own.

    Nodes are filled one after the other, as every launcher here does. Variables of torchrun: torch 2.13,
    torch/distributed/elastic/agent/server/local_elastic_agent.py; of deepspeed: 0.19.8, launcher/launch.py. Those of
    accelerate are accelerate's own, which is asked for them.
    """
    node, local_rank = divmod(rank, line.processes_per_node)
    # A node's one task that starts the node's ranks itself is each of them.
    is_rank = line.launcher is Launcher.PYTHON and (
        line.tasks is None or line.tasks.per_node == line.processes_per_node
    )
    task = rank if is_rank else node
    variables = {} if line.tasks is None else line.tasks.variables(task)
    # A single process of accelerate is started without torchrun, and has no world.
    is_alone = line.launcher is Launcher.ACCELERATE and line.world_size == 1
    if line.launcher is Launcher.PYTHON or is_alone:
        return variables
    options = {} if line.launcher is Launcher.ACCELERATE else line.options
    variables |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(line.world_size),
        "MASTER_ADDR": options.get("master_addr") or ADDRESS,
        "MASTER_PORT": options.get("master_port") or _PORT,
    }
    if line.launcher is Launcher.DEEPSPEED:
        return variables | {
            "LOCAL_SIZE": str(line.processes_per_node),
            "CROSS_RANK": str(node),
            "CROSS_SIZE": str(line.nodes),
        }
    return variables | {
        "LOCAL_WORLD_SIZE": str(line.processes_per_node),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(line.nodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(line.world_size),
        "ROLE_NAME": options.get("role") or "default",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": options.get("max_restarts") or "0",
        "TORCHELASTIC_RUN_ID": options.get("rdzv_id") or "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def extra_arguments(line: LaunchLine, rank: int) -> tuple[str, ...]:
    """What the launcher puts before the program's arguments. torch.distributed.launch spells it as torch 2.0 and later
    do (torch/distributed/launcher/api.py, distributed/run.py); 1.x, which planner does not run, had an underscore."""
    if line.says_local_rank:
        return (f"--local-rank={rank % line.processes_per_node}",)
    if line.launcher is not Launcher.DEEPSPEED or "no_local_rank" in line.options:
        return ()
    return (f"--local_rank={rank % line.processes_per_node}",)
