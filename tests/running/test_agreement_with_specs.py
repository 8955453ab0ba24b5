"""A program and a spec of the same job: the same peak, to a thousandth."""

from __future__ import annotations

from pathlib import Path

import pytest
from program_runs import Run

from planner.allocator.replay import replay
from planner.job.loading import load_job
from planner.planning.pipeline import plan

SPEC = """
model:
  hf_config:
    {{architectures: [LlamaForCausalLM], model_type: llama, vocab_size: {vocabulary}, hidden_size: {width},
      intermediate_size: {hidden}, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
      max_position_embeddings: 128}}
  parameter_dtype: {dtype}
train:
  {{micro_batch_size: 4, sequence_length: {length}, precision: {precision}, gradient_clipping: {clipping},
    iterations: 3, optimizer: {{name: AdamW}}, loss: {loss}}}
parallel: {{{parallel}}}
cluster: {{gpu: H100-SXM-80GB, gpus_per_node: {gpus}}}
"""
AS_USUAL = {"dtype": "float32", "clipping": "1.0", "loss": "{name: model}"}
SMALL = {"vocabulary": 512, "width": 128, "hidden": 256, "length": 64, "precision": "bf16_autocast"}
LARGER = {"vocabulary": 2048, "width": 256, "hidden": 512, "length": 128, "gpus": 4}


@pytest.mark.parametrize(
    ("command", "spec"),
    [
        ("python {programs}/fine_tune.py", {**SMALL, "parallel": "", "gpus": 1}),
        (
            "torchrun --nproc-per-node 4 {programs}/in_a_world.py ddp",
            {**LARGER, "precision": "bf16_autocast", "parallel": "dp_replicate: 4"},
        ),
        (
            "torchrun --nproc-per-node 4 {programs}/in_a_world.py fsdp",
            {**LARGER, "precision": "fsdp_mixed", "parallel": "dp_shard: 4"},
        ),
        (
            "python {programs}/head_in_chunks.py",
            {
                **SMALL,
                "parallel": "",
                "gpus": 1,
                "vocabulary": 4096,
                "precision": "none",
                "dtype": "bfloat16",
                "clipping": "0.0",
                "loss": "{chunks: 4, chunk_head: true, keep_output: true}",
            },
        ),
    ],
    ids=["transformers Trainer", "DDP", "FSDP2", "a head in chunks"],
)
def test_they_agree(run: Run, tmp_path: Path, command: str, spec: dict[str, object]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(SPEC.format(**{**AS_USUAL, **spec}))

    ran = replay(run(command).trace.events)
    planned = plan(load_job(path)).rank_classes[0].peak

    assert ran.peak_allocated_bytes == pytest.approx(planned.allocated_bytes, rel=0.001)
    assert ran.peak_reserved_bytes == pytest.approx(planned.reserved_bytes, abs=2 << 20)
