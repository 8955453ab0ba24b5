"""Imports what every trace needs, in a process that then forks for each trace."""

from __future__ import annotations

import contextlib
import importlib

PRELOAD = "planner.tracing.preload:load"
_MODULES = (
    "planner.advice",
    "planner.tracing.trace",
    "torch._dynamo",
    "torch._inductor.utils",
    "torch.distributed._tools.mem_tracker",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.nn.utils",
    "torch.testing._internal.distributed.fake_pg",
    "torch.utils.flop_counter",
    "transformers",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
)
"""Loaded by most traces after `planner.tracing.trace` itself; a job's own modules are loaded by its child."""


def load() -> None:
    """Import, and register the paper GPU's kernels. No step is run: autograd's threads do not survive a fork."""
    from planner import paper  # before torch

    for name in _MODULES:
        with contextlib.suppress(ImportError):  # not in every supported torch, or not installed
            importlib.import_module(name)
    with paper.gpu("sm_90"):
        return
