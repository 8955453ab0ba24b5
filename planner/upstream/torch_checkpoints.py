"""What saving and loading checkpoints relies on in torch: state dicts, torch.distributed.checkpoint."""

from __future__ import annotations

from functools import partial

from planner.upstream import entries as listing
from planner.upstream.entries import Change, Kind

Entry = partial(listing.Entry, part="checkpoints")
entries = partial(listing.entries, part="checkpoints")

_SAVES = "tests/traces/test_checkpoint_cpu_runs.py"
_RUN = "tests/running/test_program_checkpoints.py"
_DCP = "torch.distributed.checkpoint"

CHECKPOINTS = (
    Entry(
        target=f"{_DCP}.utils:_DistWrapper.__init__", kind=Kind.PATCH, group="checkpoint peers", test=_SAVES,
        why="plans for all ranks on rank 0: with absent peers each rank plans its own part",
    ),
    Entry(
        target=f"{_DCP}.default_planner:_validate_global_plan", kind=Kind.PATCH, group="checkpoint peers",
        has_source=False, test=_RUN,
        why="a checkpoint of which this rank writes its part is not whole: the parts of absent peers are missing",
    ),
    *(
        Entry(
            target=f"{module}:_broadcast_state_dict", kind=Kind.PATCH, group="checkpoint peers",
            has_source="utils" in module, test=_SAVES,
            why="rank 0 announces what it sends: of absent peers the names and shapes are those of this rank's own",
        )
        for module in ("torch.distributed._state_dict_utils", f"{_DCP}.state_dict")
    ),
    Entry(
        target="torch.distributed:broadcast_object_list", kind=Kind.PATCH, group="state dict announced",
        has_source=False, test=_SAVES, why="as above: the announcement",
    ),
    Entry(
        target="torch.distributed._state_dict_utils:_TensorInfo", kind=Kind.PRIVATE, test=_SAVES,
        why="how the announcement describes a tensor",
    ),
    Entry(
        target="torch.distributed._state_dict_utils:_iterate_state_dict", kind=Kind.PATCH, group="state dicts told",
        change=Change.REPORTED, test=_SAVES, why="where whole tensors are gathered, which are told as a checkpoint's",
    ),
    *entries(
        "torch.cuda._pin_memory_utils", "pin_memory", "unpin_memory",
        kind=Kind.PATCH, group="checkpoints not pinned", optional=True, test=_SAVES,
        why="what async_save stages is pinned by the driver, which is not there",
    ),
    *listing.entries(
        f"{_DCP}.state_dict", "_get_model_state_dict", "_get_optim_state_dict", "_load_model_state_dict",
        "_load_optim_state_dict",
        kind=Kind.PATCH, group="program watched", has_source=False, change=Change.REPORTED, test=_RUN,
        why="where a program gathers a state dict or loads one, which begins a phase",
    ),
    Entry(
        target="safetensors.torch:serialize_file", kind=Kind.PATCH, group="tensors unwritten", has_source=False,
        test=_SAVES, why="writes a file of tensors that have no bytes",
    ),
    Entry(
        target=f"{_DCP}.filesystem:_write_files_from_queue", kind=Kind.MIRROR, change=Change.REPORTED, test=_SAVES,
        why="writes by the writer's file system and transforms, which a plan replaces",
    ),
)  # fmt: skip
