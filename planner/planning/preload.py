"""What a fork server loads once for all of its children that trace, and how many of them a machine has room for."""

from __future__ import annotations

import contextlib
import importlib
import os

from planner.tracing.isolated import drop_shell_variables

PRELOAD = f"{__name__}:load"
TRACER = f"{__name__}:load_tracer"
"""For children of fork servers: what every plan needs, and what traces most jobs."""
MOST_PROCESSES = 8
_MODULES = (
    "torch._dynamo",
    "torch._inductor.utils",
    "torch.distributed._tools.mem_tracker",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.debug",
    "torch.distributed.tensor.parallel",
    "torch.nn.utils",
    "torch.testing._internal.distributed.fake_pg",
    "torch.utils.flop_counter",
    "transformers",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
)
"""Of other projects, loaded by most traces besides what planner imports; a job's own are loaded by its child."""


def load_tracer() -> None:
    """Import what traces most jobs, sooner than all that some of them need, without the shell's variables: torch reads
    some while it is imported."""
    drop_shell_variables()
    from planner import programs  # noqa: F401
    from planner.tracing import job_program  # noqa: F401
    from planner.training import step  # noqa: F401


def load() -> None:
    """Import what every plan needs, and register the paper GPU's kernels, in a process that then forks for each piece
    of work. No step is run: autograd's threads do not survive a fork."""
    load_tracer()
    from planner import paper
    from planner.training import pipelined_loop  # noqa: F401
    from planner.training.models import transformers_models  # noqa: F401
    from planner.upstream import checking

    for name in _MODULES:
        with contextlib.suppress(ImportError):  # not in every supported torch, or not installed
            importlib.import_module(name)
    paper.prepare()
    checking.enforce()


def usable() -> int:
    """How many processes of this kind the machine has room for."""
    return min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
