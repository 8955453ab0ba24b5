"""What an evaluation in the middle of the training does, with every default filled in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Text is generated greedily after the batches of an evaluation, from prompts of one length."""

    max_new_tokens: int = 128
    """Tokens that are generated for each prompt."""
    batch: int = 1
    """Prompts at once on a rank."""
    prompt_tokens: int = 0
    """Tokens of a prompt; 0: as many as `train.sequence_length`."""
    use_cache: bool = True
    """Keys and values of earlier tokens are kept, and grow with each token; for a transformers model. false: each token
    takes all that are before it through the model again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eval:
    """An evaluation under no_grad after every `every` iterations."""

    micro_batch_size: int = 1
    """Samples of a rank in one evaluation step."""
    every: int = 100
    """After how many iterations it is evaluated."""
    batches: int = 1
    """Evaluation steps of one evaluation."""
    gather: str = ""
    """What is gathered from all ranks and kept on the GPU, as transformers' Trainer does for its metrics: loss, or
    logits (with labels and loss); empty: nothing."""
    accumulation_steps: int = 0
    """After how many evaluation steps what was gathered goes to the host (eval_accumulation_steps); 0: at the end."""
    generate: Generate | None = None
    """Text that is generated in an evaluation; null: none."""
