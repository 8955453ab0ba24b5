"""Reads Megatron-LM's arguments: its step is planned as one of torch's own, and every difference is said.

What the arguments do is in megatron-core 0.20 (distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py,
pipeline_parallel/schedules.py); the spec has FSDP 2 or DistributedDataParallel in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.importers import megatron_arguments, megatron_models
from planner.importers.megatron_arguments import Arguments
from planner.importers.recipes import Recipe

STEP = (
    "Megatron-LM's step is another implementation than a spec's, and the interval is wider for it: its kernels"
    " (TransformerEngine's, or its own) keep other tensors. The program itself on paper is nearer to what was"
    " published: planner run -- torchrun ... pretrain_gpt.py ..."
)
SHARDED = (
    "the distributed optimizer is planned as FSDP 2 that keeps gathered parameters and whole float32 gradients"
    " (reshard_after_forward: false, no_sync); Megatron-LM has them in contiguous buffers for as long as it trains,"
    " and no float32 shards of the gradients"
)
REPLICATED = (
    "without --use-distributed-optimizer: DistributedDataParallel with float32 parameters under autocast, in place of"
    " bfloat16 parameters with float32 copies and contiguous float32 gradients"
)
CORE_ATTENTION = "recomputing core attention is planned as none: flash attention keeps no scores"
_SHARD = "parallel.dp_shard"
_ROTATIONS = {"p2p": "alltoall", "all_gather": "allgather"}


def read(given: str, folder: Path) -> tuple[Recipe, Arguments]:
    """The job of a line or file. Raises SpecError for what is refused, missing or contradictory."""
    arguments = megatron_arguments.read(given, folder)
    recipe = Recipe(source=arguments.source, folder=folder, ignored=tuple(arguments.ignored), supposed=(STEP,))
    megatron_models.tell_model(arguments, recipe)
    _Reading(arguments, recipe).tell()
    if arguments.noted:
        recipe.supposed += (f"of Megatron-LM's own kernels and buffers, not planned: {', '.join(arguments.noted)}",)
    return recipe, arguments


class _Reading:
    """What the arguments of one line come to, but for the model."""

    def __init__(self, arguments: Arguments, recipe: Recipe) -> None:
        self._given, self._recipe = arguments, recipe

    def tell(self) -> None:
        self._training()
        self._optimizer()
        self._recompute()
        self._data_parallelism()
        self._split()
        self._pipeline()

    def _say(self, name: str, path: str, value: Any) -> None:
        """A value that is written, or Megatron-LM's default, which other sources may replace."""
        if name in self._given.written:
            self._recipe.say(path, value, self._given.place(name))
        else:
            self._recipe.suppose(path, value)

    def _training(self) -> None:
        given = self._given
        self._say("seq_length", "train.sequence_length", given["seq_length"])
        self._say("micro_batch_size", "train.micro_batch_size", given["micro_batch_size"])
        self._say("clip_grad", "train.gradient_clipping", float(given["clip_grad"]))
        self._recipe.samples_of_a_step = given["global_batch_size"] or 0
        self._recipe.suppose("model.parameter_dtype", "float32")
        self._recipe.suppose("software.step", "megatron")
        self._recipe.precisions = ("fsdp_mixed", "bf16_autocast") if given["bf16"] else ("none", "none")

    def _optimizer(self) -> None:
        given = self._given
        numbers = {name: given[name] for name in ("lr", "weight_decay") if given[name] is not None}
        if given["optimizer"] == "adam":
            betas = [given["adam_beta1"], given["adam_beta2"]]
            found = {"name": "AdamW", **numbers, "betas": betas, "eps": given["adam_eps"], "fused": True}
        elif given["optimizer"] == "sgd":
            found = {"name": "SGD", **numbers, "momentum": given["sgd_momentum"], "fused": True}
        else:
            raise given.fault("optimizer", f"is {given['optimizer']}", "adam, sgd", "write train.optimizer in JOB.yaml")
        self._say("optimizer", "train.optimizer", found)

    def _recompute(self) -> None:
        given, granularity = self._given, self._given["recompute_granularity"]
        if given["recompute_activations"] and granularity not in (None, "selective"):
            raise given.fault("recompute_activations", f"stands beside --recompute-granularity {granularity}", "one")
        if given["recompute_activations"] or granularity == "selective":
            self._recipe.supposed += (CORE_ATTENTION,)
            self._recipe.say("train.recompute", "none", given.place("recompute_granularity"))
        elif granularity == "full":
            mode = "full" if self._recomputes_layers() else "none"
            self._recipe.say("train.recompute", mode, given.place("recompute_granularity"))
        elif granularity is not None:
            raise given.fault("recompute_granularity", f"is {granularity}", "full, selective")

    def _recomputes_layers(self) -> bool:
        """Each layer for itself, or none of them; other groups of layers are refused."""
        given, method, count = self._given, self._given["recompute_method"], self._given["recompute_num_layers"]
        of_a_stage = given["num_layers"] // max(1, given["pipeline_model_parallel_size"])
        if method == "uniform" and count in (None, 1):
            return True
        if method == "block" and count in (0, of_a_stage):
            return bool(count)
        raise given.fault(
            "recompute_num_layers",
            f"is {count} of --recompute-method {method}",
            f"uniform with 1, block with 0 or all layers of a stage ({of_a_stage})",
            "write train.recompute in JOB.yaml beside a line without it",
        )

    def _data_parallelism(self) -> None:
        given, name = self._given, "use_distributed_optimizer"
        if not given[name] and given["context_parallel_size"] <= 1 and given["expert_model_parallel_size"] <= 1:
            self._recipe.suppose("parallel.dp_replicate.gradient_as_bucket_view", True)
            self._recipe.supposed += (REPLICATED,)
            return
        if not given[name]:
            raise given.fault(
                name,
                "is missing beside --context-parallel-size or --expert-model-parallel-size",
                "these with sharded states of the optimizer",
                f"add {megatron_arguments.option(name)}",
            )
        self._recipe.shards = True
        self._recipe.supposed += (SHARDED,)
        self._say(name, f"{_SHARD}.reshard_after_forward", False)
        self._say(name, f"{_SHARD}.no_sync", True)
        if given["grad_reduce_in_bf16"]:
            self._say("grad_reduce_in_bf16", f"{_SHARD}.reduce_dtype", "bfloat16")

    def _split(self) -> None:
        given, tp = self._given, self._given["tensor_model_parallel_size"]
        self._say("tensor_model_parallel_size", "parallel.tp.degree", tp)
        if tp > 1:
            self._say("sequence_parallel", "parallel.tp.sequence_parallel", given["sequence_parallel"])
            self._recipe.suppose("parallel.tp.loss_parallel", True)
        self._say("context_parallel_size", "parallel.cp.degree", given["context_parallel_size"])
        if given["context_parallel_size"] > 1:
            kind = given["cp_comm_type"]
            if kind not in _ROTATIONS:
                raise given.fault("cp_comm_type", f"is {kind}, which is not planned", ", ".join(_ROTATIONS))
            self._say("cp_comm_type", "parallel.cp.rotate", _ROTATIONS[kind])
        self._say("expert_model_parallel_size", "parallel.ep.degree", given["expert_model_parallel_size"])

    def _pipeline(self) -> None:
        """Every stage has as many layers as any other, as Megatron-LM has it."""
        given, name, degree = self._given, "pipeline_model_parallel_size", self._given["pipeline_model_parallel_size"]
        self._say(name, "parallel.pp.degree", degree)
        layers, split = given["num_layers"], self._layers_of_stages()
        if degree <= 1:
            return
        if sum(split) != layers or len(split) % degree:
            raise given.fault(
                name,
                f"is {degree} and makes stages of {split[0]} layers, which do not divide --num-layers ({layers})",
                "stages with as many layers each, and as many on every rank",
                "change one of them; for uneven stages write parallel.pp.split in JOB.yaml beside --model",
            )
        self._recipe.suppose("parallel.pp.schedule", "1F1B" if len(split) == degree else "Interleaved1F1B")
        self._recipe.suppose("parallel.pp.split", split)

    def _layers_of_stages(self) -> Sequence[int]:
        given, degree = self._given, max(1, self._given["pipeline_model_parallel_size"])
        layers = given["num_layers"]
        each, stages = given["num_layers_per_virtual_pipeline_stage"], given["num_virtual_stages_per_pipeline_rank"]
        if (each or stages) and (degree == 1 or (each and stages)):
            name = "num_layers_per_virtual_pipeline_stage" if each else "num_virtual_stages_per_pipeline_rank"
            raise given.fault(
                name,
                "stands without a pipeline, or beside another that says the same",
                "one of --num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank, with a"
                " pipeline",
                "take one out",
            )
        if each:
            return [each] * (layers // each or 1)
        count = degree * (stages or 1)
        return [max(1, layers // count)] * count
