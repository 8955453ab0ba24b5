"""transformers' Seq2SeqTrainer: evaluation by generation, checkpoints, the best one kept."""

import sys
import tempfile

import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration

model = T5ForConditionalGeneration(
    T5Config(vocab_size=512, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0)
)
rows = [
    {"input_ids": row, "labels": row[:16], "attention_mask": torch.ones_like(row)}
    for row in torch.randint(2, 500, (32, 24))
]
Seq2SeqTrainer(
    model=model, train_dataset=rows, eval_dataset=rows[:8],
    args=Seq2SeqTrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, max_steps=12, fp16=True, report_to=[],
        logging_steps=1, eval_strategy="steps", eval_steps=2, save_steps=2, predict_with_generate=True,
        generation_max_length=8, load_best_model_at_end=True, optim=sys.argv[1] if len(sys.argv) > 1 else "adafactor",
    ),
).train()  # fmt: skip
