"""Keys and values as other programs write them, and what a spec says instead: for the errors of unknown ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.job import schema, spec_keys
from planner.job.nodes import Node

_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True)
class Word:
    """What a spec writes; `{}` stands for the value where it can stay as it is, else for the example."""

    written: str
    example: str = ""
    """Empty: the value cannot be carried over."""
    number: bool = True
    """The value is a whole number in both."""


_WORDS_BY_NAMES: Mapping[str, Word] = {
    "per_device_train_batch_size per_gpu_train_batch_size train_micro_batch_size_per_gpu batch_size micro_batch"
    " local_batch_size mbs": Word("train: {{micro_batch_size: {}}}", "1"),
    "global_batch_size train_batch_size total_batch_size effective_batch_size": Word(
        "train: {micro_batch_size: ..., gradient_accumulation_steps: ...}, whose product is the batch of one rank"
    ),
    "gradient_accumulation accumulate_grad_batches accumulation_steps grad_accum_steps grad_accumulation_steps": Word(
        "train: {{gradient_accumulation_steps: {}}}", "8"
    ),
    "seq_len seqlen seq_length max_seq_len max_seq_length max_length max_len block_size context_length"
    " context_window cutoff_len sequence_len model_max_length n_ctx": Word(
        "train: {{sequence_length: {}}}", "4096", number=False
    ),
    "gradient_checkpointing activation_checkpointing activation_checkpoint checkpoint_activations"
    " enable_activation_checkpointing recompute_activations recompute_granularity use_gradient_checkpointing": Word(
        "train: {recompute: full}; none for false"
    ),
    "bf16 mixed_precision amp autocast use_amp": Word(
        "train: {precision: bf16_autocast}, or fsdp_mixed where fully_shard casts"
    ),
    "fp16": Word("train: {precision: fp16_autocast}"),
    "optim optimizer_name": Word("train: {optimizer: {name: AdamW}}, any class of torch.optim"),
    "lr learning_rate": Word("train: {{optimizer: {{name: AdamW, lr: {}}}}}", "1.0e-5", number=False),
    "weight_decay": Word("train: {{optimizer: {{name: AdamW, weight_decay: {}}}}}", "0.01", number=False),
    "max_grad_norm clip_grad grad_clip grad_clip_norm gradient_clip_val clip_grad_norm max_norm": Word(
        "train: {{gradient_clipping: {}}}", "1.0", number=False
    ),
    "torch_compile use_compile": Word("train: {compile: true}"),
    "torch_dtype dtype model_dtype param_dtype": Word("model: {parameter_dtype: bfloat16}, or float32"),
    "attn_implementation attention_implementation flash_attention use_flash_attn": Word("model: {attention: sdpa}"),
    "model_name_or_path model_name model_id pretrained pretrained_model_name_or_path name_or_path base_model"
    " hf_model hf_assets_path": Word("model: {{hf_config: {}}}", "Qwen/Qwen3-8B", number=False),
    "lora peft lora_config use_lora peft_config lora_rank lora_r": Word("model: {adapter: {kind: lora, r: 16}}"),
    "lora_alpha": Word("model: {{adapter: {{kind: lora, alpha: {}}}}}", "16"),
    "qlora load_in_4bit quantization_bit": Word("model: {adapter: {kind: qlora, r: 16}}"),
    "fsdp fsdp2 fully_shard fsdp_config fsdp_size data_parallel_shard_degree dp_shard_size dp_shard_degree"
    " data_parallel_shard": Word("parallel: {{dp_shard: {}}}", "8"),
    "zero zero_stage zero_optimization deepspeed_stage": Word(
        "parallel: {dp_shard: N} for stage 3 by PyTorch (stage 2: {degree: N, reshard_after_forward: false}), or"
        " parallel: {dp_replicate: N, deepspeed: {zero_optimization: {stage: 3}}} for DeepSpeed's own engine"
    ),
    "sharding_strategy": Word("parallel: {dp_shard: {degree: N, reshard_after_forward: true}}"),
    "num_workers dataloader_num_workers loader_workers": Word("train: {{data_loader: {{workers: {}}}}}", "4"),
    "dataloader_pin_memory": Word("train: {data_loader: {pin_memory: true}}"),
    "dataloader_prefetch_factor": Word("train: {{data_loader: {{prefetch_factor: {}}}}}", "2"),
    "ram main_memory cpu_memory node_memory memory_per_node": Word("cluster: {host_memory: 480GiB}"),
    "cpu_offload offload_params": Word("parallel: {dp_shard: {degree: N, offload: cpu}}"),
    "ddp data_parallel data_parallel_size dp dp_size dp_degree data_parallel_degree data_parallel_replicate_degree"
    " dp_replicate_size": Word("parallel: {{dp_replicate: {}}}", "8"),
    "tensor_parallel_degree tensor_parallel_size tensor_model_parallel_size tensor_parallel tp_size tp_degree": Word(
        "parallel: {{tp: {}}}", "8"
    ),
    "pipeline_parallel_degree pipeline_parallel_size pipeline_model_parallel_size pipeline_parallel pp_size"
    " pp_degree": Word("parallel: {{pp: {}}}", "4"),
    "pipeline_parallel_schedule pp_schedule": Word("parallel: {pp: {degree: 4, schedule: 1F1B}}"),
    "context_parallel_degree context_parallel_size context_parallel cp_size cp_degree": Word(
        "parallel: {{cp: {}}}", "2"
    ),
    "expert_parallel_degree expert_parallel_size expert_model_parallel_size expert_parallel ep_size ep_degree": Word(
        "parallel: {{ep: {}}}", "8"
    ),
    "nproc_per_node gpus num_gpus n_gpus ngpus gpu_count num_gpus_per_node devices": Word(
        "cluster: {{gpus_per_node: {}}}", "8"
    ),
    "nnodes num_nodes num_machines n_nodes": Word("cluster: {{nodes: {}}}", "2"),
    "world_size num_processes": Word("cluster: {nodes: ..., gpus_per_node: ...}, whose product it is"),
    "gpu_type gpu_name device device_type accelerator": Word("cluster: {gpu: H100-SXM-80GB}"),
    "gpu_memory vram memory": Word("cluster: {gpu: {total_bytes: 79.1GiB, arch: sm_90}}"),
    "pytorch_alloc_conf pytorch_cuda_alloc_conf alloc_conf cuda_alloc_conf expandable_segments": Word(
        "allocator: {conf: 'expandable_segments:True'}"
    ),
}  # fmt: skip
WORDS = {name: word for names, word in _WORDS_BY_NAMES.items() for name in names.split()}
"""transformers, accelerate, DeepSpeed, torchtitan, Megatron, Lightning, Axolotl, LLaMA-Factory, PEFT, and what people
say; letters of either case, dashes as underscores."""


def key_remedy(key: str, child: Node, known: Iterable[str]) -> str:
    """What to write instead of an unknown key: that of another program, or one of another section; empty if it is
    neither."""
    folded = key.casefold().replace("-", "_")
    if folded in {name.casefold() for name in known}:
        return ""  # only its letters are of another case
    is_short = not isinstance(child.value, dict | list) and len(child.summary) <= _LONGEST_VALUE
    is_identifier = isinstance(child.value, str) and child.value.isidentifier()
    shown = "" if not is_short else str(child.value) if is_identifier else child.summary
    if (word := WORDS.get(folded)) is not None and len(key) <= 100:
        if not word.example:
            return f"write {word.written}"
        is_carried = type(child.value) in ((int,) if word.number else (str, int, float))
        return f"write {word.written.format((shown if is_carried else '') or word.example)}"
    places = sorted(spec_keys.places_of(folded), key=lambda path: path.count("."))
    if not places or (len(places) > 1 and places[0].count(".") == places[1].count(".")):
        return ""
    *sections, name = places[0].split(".")
    inner = f"{name}: {shown or '...'}"
    for section in reversed(sections[1:]):
        inner = f"{section}: {{{inner}}}"
    return f"it goes elsewhere: {sections[0]}: {{{inner}}}" if sections else f"{name} stands at the top of a spec"


OPTIMIZERS: Mapping[str, dict[str, Any]] = {
    **{key: {"name": "AdamW"} for key in ("adamw", "adamw_torch", "adamw_hf")},
    **{key: {"name": "AdamW", "fused": True} for key in ("adamw_torch_fused", "fused_adamw")},
    **{key: {"name": "bitsandbytes.AdamW8bit"} for key in ("adamw_8bit", "adamw8bit")},
    "paged_adamw_8bit": {"name": "bitsandbytes.PagedAdamW8bit"},
    **{key: {"name": "bitsandbytes.PagedAdamW"} for key in ("paged_adamw", "paged_adamw_32bit")},
    "lion_8bit": {"name": "bitsandbytes.Lion8bit"},
    "adamw_torch_8bit": {"name": "torchao.AdamW8bit"},
    "adamw_torch_4bit": {"name": "torchao.AdamW4bit"},
    **{name.lower(): {"name": name} for name in ("Adam", "SGD", "Adagrad", "Adafactor", "RMSprop", "Muon")},
}
"""transformers' `optim` and what people say, to `train.optimizer`; adamw_bnb_8bit is not here: transformers' Trainer
keeps the state of embeddings in 32 bits, and others do not."""

_DTYPES = {
    **dict.fromkeys(("bf16", "torch.bfloat16"), "write bfloat16"),
    **dict.fromkeys(("fp16", "half", "torch.float16"), "write float16"),
    **dict.fromkeys(("fp32", "float", "torch.float32"), "write float32"),
}
_MIXED = "write bf16_autocast; or fsdp_mixed, where fully_shard casts (parallel.dp_shard)"
_DEGREE = dict.fromkeys(
    ("-1", "auto"), "write how many ranks it has; `planner plan JOB --fsdp` takes the rest of the GPUs"
)
_ON_HOST = {"true": "write cpu", "cpu_offload": "write cpu"}

_REMEDIES: Mapping[tuple[type, str], Mapping[str, str]] = {
    (schema.Model, "parameter_dtype"): {**_DTYPES, "auto": "write the dtype of the config: bfloat16, for most models"},
    (schema.Model, "attention"): {
        **dict.fromkeys(
            ("flash_attention_2", "flash_attention_3", "flash_attention", "flash", "flash_attn"),
            "write sdpa, which takes PyTorch's flash kernel where the GPU would",
        ),
        "flex_attention": "write sdpa; flex_attention is not planned",
    },
    (schema.Loss, "dtype"): _DTYPES,
    (schema.Loss, "name"): dict.fromkeys(("ce", "nll", "crossentropyloss", "causal_lm"), "write cross_entropy"),
    (schema.Train, "precision"): {
        **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed", "amp", "mixed", "16-mixed"), _MIXED),
        **dict.fromkeys(("fp16", "float16", "half", "16"), "write fp16_autocast"),
        **dict.fromkeys(("fp32", "float32", "no", "32", "32-true"), "write none"),
        "bf16-true": "write none, with model: {parameter_dtype: bfloat16}",
        "fp8": "fp8 is not planned; write bf16_autocast for an upper bound of the activations",
    },
    (schema.Optimizer, "name"): {
        "adamw_bnb_8bit": "write {name: bitsandbytes.AdamW8bit, embeddings_in_32_bits: true}, as transformers' Trainer"
        " keeps them",
    },
    (schema.Recompute, "mode"): {
        **dict.fromkeys(("true", "block", "blocks", "all", "uniform", "on", "yes"), "write full"),
        **dict.fromkeys(("false", "off", "no", "null"), "write none"),
        **dict.fromkeys(("sac", "op", "selective_op"), "write selective"),
    },
    (schema.CheckpointLoad, "map_location"): dict.fromkeys(("cuda", "gpu", "cuda:0"), "write device"),
    (schema.DpReplicate, "kind"): {"fsdp": "sharding is parallel: {dp_shard: N}"},
    (schema.DpShard, "kind"): {
        **dict.fromkeys(("fsdp", "2", "fully_shard"), "write fsdp2"),
        **dict.fromkeys(("1", "fullyshardeddataparallel"), "write fsdp1"),
    },
    (schema.DpShard, "backward_prefetch"): {
        **dict.fromkeys(("pre", "post"), "write BACKWARD_PRE or BACKWARD_POST"),
        **dict.fromkeys(("no_prefetch", "none", "false"), 'write ""'),
    },
    (schema.DpShard, "reshard_after_forward"): {
        **dict.fromkeys(("full_shard", "always", "zero3"), "write true"),
        **dict.fromkeys(("shard_grad_op", "never", "zero2"), "write false"),
        "hybrid_shard": "write true, with dp_replicate over the nodes",
    },
    (schema.DpShard, "offload"): _ON_HOST,
    (schema.DpShard, "reduce_dtype"): _DTYPES,
    (schema.Cp, "rotate"): dict.fromkeys(("ring", "alltoallv", "a2a"), "write alltoall"),
    **{
        (kind, "degree"): _DEGREE
        for kind in (schema.DpReplicate, schema.DpShard, schema.Tp, schema.Pp, schema.Cp, schema.Ep)
    },
}


def value_remedy(kind: type, name: str, value: object) -> str:
    """What to write instead of a value that another program would take; empty if none is known to."""
    folded = str(value).casefold()
    if (kind, name) == (schema.Optimizer, "name") and (meant := OPTIMIZERS.get(folded)) is not None:
        arguments = "".join(f", {key}: {str(value).lower()}" for key, value in meant.items() if key != "name")
        return f"write {{name: {meant['name']}{arguments}}}" if arguments else f"write {meant['name']}"
    return _REMEDIES.get((kind, name), {}).get(folded, "")
