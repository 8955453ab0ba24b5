"""Notes what a spec can say of a program, while it runs: its model, optimizers, inputs, precision and how it is split.

What is noted are plain values, so that they travel; what they mean for a spec is planner.planning.program_spec's.
"""

from __future__ import annotations

import inspect
import json
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from planner.training.blocks import find_blocks
from planner.training.wraps.fsdp2 import parameter_groups

_MOST_TEXT = 200
_WRAPPED = "_checkpoint_wrapped_module"
"""By torch, of what recomputes (torch 2.13, distributed/algorithms/_checkpoint/checkpoint_wrapper.py)."""


class JobOutline:
    """Follows the first iterations of one program."""

    def __init__(self) -> None:
        self._root: weakref.ref[nn.Module] | None = None
        self._inputs: dict[str, Any] = {}
        self._autocast = ""
        self._optimizers: dict[int, dict[str, Any]] = {}
        self._forwards = 0
        self._accumulation: Counter[int] = Counter()
        self._clips = 0.0
        self._output: weakref.ref[Tensor] | None = None
        self._keeps_output: list[bool] = []
        self._depth = 0

    def document(self) -> dict[str, Any]:
        """What was noted, as values of JSON; empty if no module was trained."""
        root = self._root() if self._root is not None else None
        if root is None:
            return {}
        inner = _inner(root)
        parameters = list(inner.parameters())
        dtypes: Counter[str] = Counter()
        for parameter in parameters:
            dtypes[_dtype(parameter)] += parameter.numel()
        return {
            "model": {
                "class": _path(_model_class(inner)),
                "config": _config(inner),
                "attention": str(getattr(getattr(inner, "config", None), "_attn_implementation", None) or ""),
                "recomputed": _recomputed(inner),
                "wrapped": sum(isinstance(module, CheckpointWrapper) for module in inner.modules()),
                "dtypes": dict(dtypes),
                "frozen": sum(not parameter.requires_grad for parameter in parameters),
            },
            "inputs": self._inputs,
            "autocast": self._autocast,
            "optimizers": list(self._optimizers.values()),
            "accumulation": self._accumulation.most_common(1)[0][0] if self._accumulation else 1,
            "clips": self._clips,
            "keeps_output": bool(self._keeps_output) and all(self._keeps_output),
            "engine": "DeepSpeed" if type(root).__name__ == "DeepSpeedEngine" else "",
            "ddp": _ddp(root),
            "fsdp": _fsdp(inner),
            "meshes": _meshes(parameters),
        }

    def forward_begins(self, module: nn.Module, arguments: Any) -> None:
        """Of any module, in a program that is not compiling."""
        if not torch.is_grad_enabled():
            return
        self._depth += 1
        if self._depth > 1:
            if not self._autocast and torch.is_autocast_enabled("cuda"):
                self._autocast = str(torch.get_autocast_dtype("cuda")).removeprefix("torch.")
            return
        if self._root is None and any(parameter.requires_grad for parameter in module.parameters()):
            self._root = weakref.ref(module)
            # Positional arguments by the names that the model's own forward has for them.
            names = list(inspect.signature(_inner(module).forward).parameters)
            names += (f"argument_{at}" for at in range(len(names), len(arguments)))
            self._inputs = _shapes(dict(zip(names, arguments, strict=False)))
        if self._root is not None and module is self._root():
            if self._output is not None:
                self._keeps_output.append(self._output() is not None)
            self._forwards += 1

    def forward_ends(self, module: nn.Module, *named_and_output: Any) -> None:
        """The arguments by name are here, where global hooks are told them; not from a forward that raised."""
        if not torch.is_grad_enabled() or not self._depth:
            return
        self._depth -= 1
        if self._depth == 0 and self._root is not None and module is self._root():
            *named, output = named_and_output
            for arguments in named:
                self._inputs = {**_shapes(arguments), **self._inputs}
            parts = list(output.values()) if isinstance(output, Mapping) else output
            parts = parts if isinstance(parts, list | tuple) else [parts]
            tensors = (part for part in parts if isinstance(part, Tensor))
            largest = max(tensors, key=Tensor.numel, default=None)
            self._output = None if largest is None else weakref.ref(largest)

    def step_starts(self, optimizer: Optimizer) -> None:
        """Of any optimizer."""
        if self._forwards:
            self._accumulation[self._forwards] += 1
        self._forwards = 0
        if id(optimizer) not in self._optimizers:
            group = optimizer.param_groups[0] if optimizer.param_groups else {}
            self._optimizers[id(optimizer)] = {
                "class": _path(type(optimizer)),
                "arguments": {
                    name: group[name]
                    for name, parameter in inspect.signature(type(optimizer)).parameters.items()
                    if name in group
                    and name != "params"
                    and group[name] != parameter.default
                    and _is_plain(group[name])
                },
                "groups": len(optimizer.param_groups),
                "parameters": sum(len(group["params"]) for group in optimizer.param_groups),
            }

    def clipping(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """What stands for `clip_grad_norm_`."""

        def clip(parameters: Any, max_norm: float, *arguments: Any, **named: Any) -> Any:
            self._clips = float(max_norm)
            return real(parameters, max_norm, *arguments, **named)

        return clip


def _inner(root: nn.Module) -> nn.Module:
    module: Any = root
    while True:
        inner = getattr(module, "_orig_mod", None)
        if isinstance(module, DistributedDataParallel) or type(module).__name__ == "DeepSpeedEngine":
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module  # type: ignore[no-any-return]
        module = inner


def _model_class(module: nn.Module) -> type:
    """fully_shard makes a class of its own and the model's (torch 2.13, fsdp/_fully_shard/_fully_shard.py)."""
    return type(module).__bases__[-1] if isinstance(module, FSDPModule) else type(module)


def _path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _config(module: nn.Module) -> dict[str, Any] | None:
    """Of a transformers model, what differs from its class's defaults, and which model it is."""
    config: Any = getattr(module, "config", None)
    if config is None or not _model_class(module).__module__.startswith("transformers."):
        return None
    fields = json.loads(json.dumps(config.to_diff_dict(), default=str))
    for name in ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "use_cache"):
        fields.pop(name, None)
    return {**fields, "model_type": config.model_type, "architectures": [_model_class(module).__name__]}


def _recomputed(model: nn.Module) -> list[bool]:
    """Of each block, whether it is recomputed: by transformers all of them, by torch those inside a wrapper."""
    wrappers = [module for module in model.modules() if isinstance(module, CheckpointWrapper)]
    inside = {module for wrapper in wrappers for module in wrapper.modules()}
    everywhere = bool(getattr(model, "is_gradient_checkpointing", False))
    return [everywhere or block in inside for block in find_blocks(model)]


def _shapes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {"shape": list(tensor.shape), "dtype": _dtype(tensor)}
        for name, tensor in arguments.items()
        if isinstance(tensor, Tensor)
    }


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or (isinstance(value, bool | int | float | str) and len(str(value)) < _MOST_TEXT)


def _ddp(root: nn.Module) -> dict[str, Any] | None:
    module: Any = root
    while not isinstance(module, DistributedDataParallel):
        module = getattr(module, "_orig_mod", None)
        if module is None:
            return None
    names = ("gradient_as_bucket_view", "find_unused_parameters", "static_graph", "broadcast_buffers")
    return {
        "bucket_cap_mb": module.bucket_bytes_cap / 2**20,
        **{name: getattr(module, name) for name in names},
        "degree": module.process_group.size(),
    }


def _fsdp(model: nn.Module) -> dict[str, Any] | None:
    """Of fully_shard: which modules, and the policies of the first that has parameters of its own."""
    sharded = {path: module for path, module in model.named_modules() if isinstance(module, FSDPModule)}
    states = {path: module._get_fsdp_state() for path, module in sharded.items()}
    firsts = {path: groups[0] for path, state in states.items() if (groups := parameter_groups(state))}
    if not firsts:
        return None
    path, first = next(((path, group) for path, group in firsts.items() if path), next(iter(firsts.items())))
    policy = states[path]._mp_policy  # of a group up to torch 2.14, then of each parameter; of the state in all
    return {
        "modules": [path.replace(f".{_WRAPPED}", "") for path in sharded],
        "policy_of": path,
        "mesh": list(first.mesh_info.mesh.shape),
        "reshards": first.post_forward_mesh_info is not None,
        "param_dtype": str(policy.param_dtype or "").removeprefix("torch."),
        "reduce_dtype": str(policy.reduce_dtype or "").removeprefix("torch."),
        "offload": type(first.offload_policy).__name__ == "CPUOffloadPolicy",
    }


def _meshes(parameters: Iterable[nn.Parameter]) -> list[list[Any]]:
    meshes = {
        (tuple(parameter.device_mesh.mesh_dim_names or ()), tuple(parameter.device_mesh.shape))
        for parameter in parameters
        if isinstance(parameter, DTensor)
    }
    return [[list(names), list(shape)] for names, shape in sorted(meshes, key=repr)]
