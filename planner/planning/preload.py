"""Imports what every plan needs, in a process that then forks for each piece of work."""

from __future__ import annotations

import contextlib
import importlib

PRELOAD = "planner.planning.preload:load"
_MODULES = (
    "torch._dynamo",
    "torch._inductor.utils",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
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


def load() -> None:
    """Import, and register the paper GPU's kernels. No step is run: autograd's threads do not survive a fork."""
    from planner import paper  # before torch
    from planner.planning import pipeline  # noqa: F401
    from planner.tracing.spec import step_trace  # noqa: F401
    from planner.training import folding, pipelined_loop  # noqa: F401
    from planner.training.models import transformers_models  # noqa: F401

    for name in _MODULES:
        with contextlib.suppress(ImportError):  # not in every supported torch, or not installed
            importlib.import_module(name)
    with paper.gpu("sm_90"):
        return
