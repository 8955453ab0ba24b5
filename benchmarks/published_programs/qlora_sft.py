"""A QLoRA run of fms-acceleration's benchmark (scripts/benchmarks at 876e2ed), by TRL's SFTTrainer.

    python qlora_sft.py baseline|accelerated BATCH MODEL_FOLDER

A sequence has 4,096 tokens, or as many as the model takes. `baseline` leaves the adapter to TRL, `accelerated` makes it
before, without peft's upcast of what is not packed.
"""

from __future__ import annotations

import inspect
import os
import sys

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PreTrainedTokenizerFast,
    default_data_collator,
)
from trl import SFTConfig, SFTTrainer

_MOST_TOKENS = 4096
_PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def main(kind: str, batch: int, folder: str) -> None:
    tokens = min(_MOST_TOKENS, AutoConfig.from_pretrained(folder).max_position_embeddings)
    # Before the model, which is loaded for FSDP only where these have begun the process group.
    arguments = SFTConfig(
        "out",
        per_device_train_batch_size=batch,
        max_steps=5,
        bf16=True,
        gradient_checkpointing=True,
        save_strategy="no",
        report_to=[],
        weight_decay=0.01,
        adam_epsilon=1e-4,
        learning_rate=2e-4,
        include_tokens_per_second=True,
        max_seq_length=tokens,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
    )

    sharded = int(os.environ.get("WORLD_SIZE", "1")) > 1
    storage = {"bnb_4bit_quant_storage": torch.bfloat16} if sharded else {}
    packing = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        **storage,
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder, torch_dtype=torch.bfloat16, attn_implementation="flash_attention_2", quantization_config=packing
    )
    targets = _PROJECTIONS if kind == "baseline" else [*_PROJECTIONS, "c_attn"]
    adapter = LoraConfig(r=16, lora_alpha=16, lora_dropout=0.1, target_modules=targets, task_type="CAUSAL_LM")
    if kind == "accelerated":
        for parameter in model.parameters():
            parameter.requires_grad = False
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
        model, adapter = get_peft_model(model, adapter), None

    words = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="</s>")
    parameters = inspect.signature(SFTTrainer.__init__).parameters
    name = "processing_class" if "processing_class" in parameters else "tokenizer"  # before TRL 0.13
    SFTTrainer(
        model,
        args=arguments,
        train_dataset=_dataset(tokens),
        peft_config=adapter,
        data_collator=default_data_collator,
        **{name: tokenizer},
    ).train()


def _dataset(length: int) -> Dataset:
    tokens = list(range(length))
    columns = {"input_ids": tokens, "labels": tokens, "attention_mask": [1] * length}
    return Dataset.from_dict({name: [values] * 100 for name, values in columns.items()})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
