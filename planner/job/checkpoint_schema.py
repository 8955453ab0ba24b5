"""Checkpoints in the job spec: what is loaded before training and what is saved during it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLoad:
    """A checkpoint is loaded before training: onto `cpu` or onto the `device`, its state dict dropped or kept."""

    map_location: str = "cpu"
    """Where the checkpoint's tensors are put."""
    keep_reference: bool = False
    """The program holds on to the state dict while it trains."""
    mmap: bool = False
    """The file is mapped (safetensors, torch.load(mmap=True)): ranks of a node share its pages, which can be given
    back. Otherwise each rank reads a copy of its own."""
    kind: str = "state_dict"
    """state_dict: torch.load and load_state_dict; full_state_dict: set_state_dict of a whole one, whose parts become
    the shards; dcp: torch.distributed.checkpoint.load into the shards"""
    broadcast_from_rank0: bool = False
    """Of full_state_dict: rank 0 alone loads the file, and sends tensor by tensor."""
    optimizer: bool = False
    """The optimizer's state is loaded as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSave:
    """A checkpoint is saved after every `every` iterations, or after the last if none came before."""

    kind: str = "full_state_dict"
    """full_state_dict: gathered, torch.save on rank 0; sharded_state_dict: torch.save on each rank; dcp, dcp_async:
    torch.distributed.checkpoint.save, async_save; huggingface: gathered to rank 0, save_pretrained"""
    cpu_offload: bool = False
    """Of StateDictOptions: tensors go to the host one by one; a full state dict is then kept by rank 0 alone."""
    optimizer: bool = True
    """The optimizer's state is saved as well; without effect on huggingface."""
    every: int = 100
    """After how many iterations it is saved."""
    pinned: bool = False
    """Of dcp_async: what waits on the host to be written is pinned (StagingOptions.use_pinned_memory)."""
