"""A folder as people have one: a model's config, and the files of the programs that train it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planner.errors import SpecError
from planner.job.importers.job_import import ImportedJob, ImportSources, import_job

LLAMA: Mapping[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 1000,
    "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
ZERO_2: Mapping[str, Any] = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16,
             "hysteresis": 2, "min_loss_scale": 1},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                  "warmup_num_steps": "auto"}},
    "zero_optimization": {"stage": 2, "allgather_partitions": True, "allgather_bucket_size": 2e8,
                          "overlap_comm": True, "reduce_scatter": True, "reduce_bucket_size": "auto",
                          "contiguous_gradients": True},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": False,
}  # fmt: skip
"""The keys of the configs that transformers' documentation shows for ZeRO's stage 2."""
TORCHRUN = "torchrun --nproc-per-node 2 train.py"


@dataclass(frozen=True)
class Folder:
    """Files are written by their names; what is given by default is all that no file says."""

    path: Path

    def write(self, name: str, content: str | Mapping[str, Any]) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2), encoding="utf-8")
        return path

    def import_job(self, **given: Any) -> ImportedJob:
        rest: dict[str, Any] = {
            "model": self.write("config.json", LLAMA), "gpu": "H100-SXM-80GB", "sequence_length": 128,
        }  # fmt: skip
        return import_job(ImportSources(**{**rest, **given}), self.path)

    def own_loop(self, **train: Any) -> Path:
        """A JOB.yaml for programs without TrainingArguments: nobody else says how much they train at once."""
        return self.write("job.yaml", {"train": {"micro_batch_size": 1, **train}})

    def refusal(self, **given: Any) -> str:
        """The message of what is refused, without the folder."""
        with pytest.raises(SpecError) as caught:
            self.import_job(**given)
        return str(caught.value).replace(f"{self.path}/", "").replace(str(self.path), "FOLDER")
