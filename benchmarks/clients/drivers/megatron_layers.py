"""Megatron-core's GPT with its local layers, its optimizer and its pipeline schedule."""

import os
import sys

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

tensor, pipeline = int(sys.argv[1]), int(sys.argv[2])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
parallel_state.initialize_model_parallel(tensor, pipeline)
model_parallel_cuda_manual_seed(1)
config = TransformerConfig(
    num_layers=4, hidden_size=256, num_attention_heads=8, use_cpu_initialization=True, pipeline_dtype=torch.bfloat16,
    tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline, bf16=True, params_dtype=torch.bfloat16,
    finalize_model_grads_func=finalize_model_grads,
)  # fmt: skip
bare = GPTModel(
    config, get_gpt_layer_local_spec(), vocab_size=1024, max_sequence_length=128,
    pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
)  # fmt: skip
plan = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
model = DistributedDataParallel(config, plan, bare.cuda().bfloat16())
optimizer = get_megatron_optimizer(
    OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True),
    [model],
)


def step(_batches, model):
    tokens = torch.randint(0, 1024, (2, 128), device="cuda")
    places = torch.arange(128, device="cuda").expand(2, -1)
    mask = torch.ones(1, 1, 128, 128, device="cuda").tril() < 0.5
    output = model(tokens, places, mask, labels=tokens)
    return output, lambda losses: (losses.float().mean(), {"loss": losses.float().mean()})


for _ in range(20):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    found = get_forward_backward_func()(
        forward_step_func=step, data_iterator=None, model=[model], num_microbatches=4, seq_length=128,
        micro_batch_size=2, decoder_seq_length=128, forward_only=False,
    )  # fmt: skip
    print(optimizer.step(), found)
