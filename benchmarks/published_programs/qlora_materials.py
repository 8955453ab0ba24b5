"""What the QLoRA runs of fms-acceleration want: the environments of their days, and models without values."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = {
    "a100_80gb.csv": ("transformers==4.48.1", "peft==0.13.2", "accelerate==1.0.1", "trl==0.13.0"),
    "a100_80gb_granite.csv": ("transformers==4.45.2", "peft==0.12.0", "accelerate==0.34.2", "trl==0.11.4", "rich"),
}
"""By file of figures (`scripts/benchmarks/refs/requirements*.txt` at 876e2ed); TRL of the second was of a commit soon
after 0.11.4."""
_COMMON = ("torch==2.6.0", "bitsandbytes==0.45.5", "datasets==2.21.0", "pyarrow==19.0.0", "numpy<2")
"""The rows' torch 2.4.1 is older than what planner runs, and bitsandbytes 0.43.3 wants the Triton of that torch."""

MODELS: dict[str, dict[str, Any]] = {
    "mistralai/Mistral-7B-v0.1": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": 4096,
    },
    "mistralai/Mixtral-8x7B-Instruct-v0.1": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 32000, "max_position_embeddings": 32768, "num_local_experts": 8, "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.02,
    },
    "NousResearch/Llama-2-70b-hf": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
        "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
    "bigcode/gpt_bigcode-santacoder": {
        "architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode", "n_embd": 2048, "n_head": 16,
        "n_layer": 24, "n_inner": 8192, "n_positions": 2048, "vocab_size": 49280, "multi_query": True,
    },
    "ibm/PowerLM-3b": {
        "architectures": ["GraniteForCausalLM"], "model_type": "granite", "hidden_size": 2304,
        "intermediate_size": 9216, "num_hidden_layers": 40, "num_attention_heads": 36, "num_key_value_heads": 36,
        "vocab_size": 49152, "max_position_embeddings": 4096, "attention_dropout": 0.1, "tie_word_embeddings": True,
    },
}  # fmt: skip
"""The `config.json` of each on the hub, where it decides about memory."""

ACCELERATE = """\
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_sharding_strategy: 1
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_cpu_ram_efficient_loading: true
  fsdp_sync_module_states: true
mixed_precision: bf16
"""
"""What `scripts/benchmarks/accelerate.yaml` says, without its defaults."""


def make_environment(folder: Path, figures: str) -> Path:
    """The `bin` of an environment of those figures; made once."""
    place = folder / figures
    if not (place / "bin" / "accelerate").exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        command = [place / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*command, *_COMMON, *PACKAGES[figures]], check=True)
    return place / "bin"


def make_model(environment: Path, folder: Path, name: str) -> Path:
    """A folder as the hub has it, whose weights are a file of holes; made once."""
    place = folder / name
    if not (place / "model.safetensors").exists():
        place.mkdir(parents=True, exist_ok=True)
        config = {**MODELS[name], "torch_dtype": "bfloat16"}
        (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
        subprocess.run([environment / "python", __file__, place], check=True)
    return place


def _write_weights(place: Path) -> None:
    """By the transformers of the run, whose names of parameters they have to be."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(place))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, value in model.state_dict().items():
        begin, end = end, end + 2 * math.prod(value.shape)
        header[key] = {"dtype": "BF16", "shape": [*value.shape], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (place / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


if __name__ == "__main__":
    _write_weights(Path(sys.argv[1]))
