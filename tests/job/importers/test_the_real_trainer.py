"""What our tables say the programs do is what the installed programs do."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from importing_folder import LLAMA
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, OffloadPolicy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from planner.job.importers import fsdp, launch_lines, training_arguments
from planner.job.nodes import node_from_data
from planner.job.schema import DpShard
from planner.training.wraps import fsdp2

TINY = LlamaConfig(**{name: value for name, value in LLAMA.items() if name not in ("model_type", "dtype")})


def arguments_of(folder: Path, **changed: Any) -> TrainingArguments:
    return TrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none", **changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"optim": "adamw_torch"},
        {"optim": "adamw_torch_fused", "learning_rate": 1e-4, "adam_beta2": 0.95, "adam_epsilon": 1e-6},
        {"optim": "sgd", "optim_args": "momentum=0.9,nesterov=true"},
        {"optim": "adagrad", "optim_args": "lr_decay=0.1"},
        {"optim": "rmsprop", "optim_args": "centered=yes, alpha=0.5"},
    ],
)
def test_the_optimizer_is_that_of_the_trainer(tmp_path: Path, changed: dict[str, Any]) -> None:
    real = arguments_of(tmp_path, **changed)
    kind, named = Trainer.get_optimizer_cls_and_kwargs(real)
    written = json.loads(real.to_json_string())
    read = {name: node for name, node in node_from_data(written, "args.json").mapping().items() if name != "use_cpu"}

    ours = training_arguments.read_optimizer(training_arguments.of_nodes(read, Path()))

    assert ours.pop("name") == kind.__name__
    assert ours.pop("weight_decay") == named.pop("weight_decay", real.weight_decay)
    assert {key: tuple(value) if isinstance(value, list) else value for key, value in ours.items()} == named


@pytest.mark.parametrize(
    "words",
    [
        ["--per_device_train_batch_size", "4", "--fp16", "false", "--no_dataloader_pin_memory"],
        ["--per-device-train-batch-size=4", "--gradient_checkpointing", "--max_grad_norm", "0.5"],
        ["--gradient_checkpointing", "True", "--optim", "sgd", "--optim_args", "momentum=0.9", "--learning_rate=2e-5"],
        ["--torch_compile", "yes", "--eval_strategy", "steps", "--eval_steps", "50", "--ddp_bucket_cap_mb", "50"],
        ["--activation_checkpointing", "--activation_checkpointing_kwargs", '{"use_reentrant": false}'],
        ["--run_name", "1", "--weight_decay", "1", "--seed", "7", "--report_to", "none"],
    ],
)
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*deprecated:FutureWarning")
def test_flags_are_read_as_the_parser_of_transformers_reads_them(tmp_path: Path, words: list[str]) -> None:
    parser = HfArgumentParser(TrainingArguments)
    theirs = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path), "--use_cpu", *words])[0]
    line = launch_lines.read(shlex.join(["torchrun", "train.py", *words]), tmp_path)
    assert line.arguments is not None

    ours = {name: node.plain() for name, node in line.arguments.mattering.items()}

    assert ours == {name: getattr(theirs, name) for name in ours}
    assert set(line.not_read) == set()


@pytest.mark.parametrize("recomputes", [False, True])
def test_unused_parameters_are_looked_for_as_the_trainer_does(tmp_path: Path, recomputes: bool) -> None:
    trainer = Trainer(LlamaForCausalLM(TINY), arguments_of(tmp_path, activation_checkpointing=recomputes))

    handler = trainer.accelerator.ddp_handler

    assert handler.to_kwargs() == ({} if recomputes else {"find_unused_parameters": True})


@pytest.fixture
def two_ranks() -> Iterator[Any]:
    """A mesh of which one rank is there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,), mesh_dim_names=("dp_shard_cp",))
    dist.destroy_process_group()


def gathered_together(model: torch.nn.Module) -> list[tuple[list[str], bool]]:
    """The parameters of each group, and whether they are dropped after the forward, in the order of the modules."""
    names = {id(module): name for name, module in model.named_modules()}
    states = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
    # Modules that are gathered together share their group.
    groups = {id(state._fsdp_param_group): state._fsdp_param_group for state in states if state._fsdp_param_group}
    found = []
    for group in groups.values():
        infos = [param._module_info for param in group.fsdp_params]
        fields = sorted(f"{names[id(info.module)]}.{info.param_name}" for info in infos)
        found.append((fields, group.post_forward_mesh_info is not None))
    return found


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("reshard", [False, True])
def test_a_model_is_divided_as_accelerate_divides_it(two_ranks: Any, tied: bool, reshard: bool) -> None:
    config = LlamaConfig(**{**TINY.to_dict(), "tie_word_embeddings": tied})
    with torch.device("meta"):
        theirs, ours = LlamaForCausalLM(config), LlamaForCausalLM(config)
    theirs.tie_weights()
    ours.tie_weights()
    plugin = SimpleNamespace(
        set_auto_wrap_policy=lambda _: None, auto_wrap_policy=transformer_auto_wrap_policy,
        transformer_cls_names_to_wrap=None, reshard_after_forward=reshard, cpu_offload=OffloadPolicy(),
        mixed_precision_policy=None, ignored_modules=None, cpu_ram_efficient_loading=False,
    )  # fmt: skip
    accelerator: Any = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin), torch_device_mesh={("dp_shard_cp",): two_ranks},
        parallelism_config=SimpleNamespace(fsdp_dim_names=["dp_shard_cp"]), mixed_precision="no", device="cpu",
        is_main_process=False,
    )  # fmt: skip
    groups = fsdp.list_groups({**LLAMA, "tie_word_embeddings": tied})
    assert groups is not None

    fsdp2_prepare_model(accelerator, theirs)
    spec = DpShard(degree=2, groups=tuple(groups), keep_last=True, reshard_after_forward=reshard)
    fsdp2.shard(ours, list(ours.model.layers), spec, two_ranks, mixed=False)

    assert gathered_together(ours) == gathered_together(theirs)
    assert len(gathered_together(ours)) == (3 if tied else 4)
