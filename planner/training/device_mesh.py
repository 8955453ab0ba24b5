"""The device mesh of a job as torch has it: process groups for every axis along which ranks talk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from planner.job.layout import MESH_AXES, Mesh
from planner.job.schema import Parallel


@dataclass(frozen=True)
class World:
    """Where this rank stands, and the groups of its axes; made inside torch.distributed unless it is alone."""

    mesh: Mesh
    rank: int
    device_type: str

    @classmethod
    def of(cls, parallel: Parallel, rank: int, device: torch.device) -> World:
        return cls(Mesh.of(parallel), rank, device.type)

    def degree(self, axis: str) -> int:
        return self.mesh.degrees[MESH_AXES.index(axis)]

    def coordinate(self, axis: str) -> int:
        return self.mesh.coordinates(self.rank)[axis]

    @property
    def shards(self) -> bool:
        """Whether parameters are sharded: along `dp_shard`, or along an axis whose ranks see other tokens."""
        return any(self.degree(axis) > 1 for axis in ("dp_shard", "cp", "ep"))

    @property
    def splits(self) -> bool:
        return any(self.degree(axis) > 1 for axis in ("dp_shard", "cp", "tp", "pp", "ep"))

    @cached_property
    def device_mesh(self) -> DeviceMesh:
        """The mesh with the axes that have more than one rank, outermost first."""
        axes = [axis for axis in MESH_AXES if self.degree(axis) > 1]
        return init_device_mesh(self.device_type, tuple(self.degree(axis) for axis in axes), mesh_dim_names=tuple(axes))

    def sharding_mesh(self) -> DeviceMesh:
        """What fully_shard takes: the ranks that share a shard's parameters, beside those that hold its replicas."""
        shards = [axis for axis in ("dp_shard", "cp", "ep") if self.degree(axis) > 1]
        name = shards[0] if len(shards) == 1 else "shards"
        if len(shards) > 1:
            flat = self.device_mesh[tuple(shards)]._flatten(name)
            if self.degree("dp_replicate") == 1:
                return flat
        return self.device_mesh[("dp_replicate", name) if self.degree("dp_replicate") > 1 else (name,)]

    @cached_property
    def expert_mesh(self) -> DeviceMesh:
        """The same ranks as experts see them, as transformers lays them out (5.23, distributed/utils.py): `ep`, and
        `efsdp` for the ranks that hold the same experts. Neither `pp` nor `tp` goes with `ep`."""
        copies = self.degree("dp_shard") * self.degree("cp")
        shape = (self.degree("dp_replicate"), copies, self.degree("ep"))
        return init_device_mesh(self.device_type, shape, mesh_dim_names=("dp_replicate", "efsdp", "ep"))

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """The group along an axis; None for the whole world."""
        return None if self.degree(axis) == self.mesh.world_size else self.device_mesh[axis].get_group()
