"""Fine-tunes a Llama with transformers' Trainer, whose arguments are flags, as those of transformers' examples are."""

from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class Data:
    config: str
    sequence_length: int = 128


data, arguments = HfArgumentParser((Data, TrainingArguments)).parse_args_into_dataclasses()
config = AutoConfig.from_pretrained(data.config)
tokens = torch.randint(0, config.vocab_size, (256, data.sequence_length))
rows = [{"input_ids": row, "labels": row} for row in tokens]
Trainer(model=AutoModelForCausalLM.from_config(config), args=arguments, train_dataset=rows).train()
