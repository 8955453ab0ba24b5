"""PEFT's adapters under transformers' Trainer: LoRA or one of its kin."""

import sys

import torch
from peft import AdaLoraConfig, IA3Config, LoraConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

kinds = {
    "lora": LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear"),
    "dora": LoraConfig(task_type="CAUSAL_LM", r=8, use_dora=True),
    "adalora": AdaLoraConfig(task_type="CAUSAL_LM", init_r=8, target_r=4, total_step=100, tinit=1, tfinal=10),
    "ia3": IA3Config(task_type="CAUSAL_LM"),
    "prompts": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8),
}
model = get_peft_model(AutoModelForCausalLM.from_pretrained(sys.argv[1]), kinds[sys.argv[2]])
rows = [
    {"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in torch.randint(4, 400, (64, 32))
]
Trainer(
    model=model, train_dataset=rows,
    args=TrainingArguments(output_dir="out", per_device_train_batch_size=4, max_steps=20, bf16=True, report_to=[],
                           gradient_checkpointing=True, logging_steps=1),
).train()  # fmt: skip
