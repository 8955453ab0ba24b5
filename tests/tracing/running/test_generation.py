"""Programs that generate: a sequence is as long as the program lets it be, whatever its tokens would have been."""

from __future__ import annotations

import pytest
from program_runs import Program, Run

MODEL = """
import torch
from transformers import {config}, {model}
torch.manual_seed(0)
model = {model}({config}({sizes}, vocab_size=300, bos_token_id=1, eos_token_id=2, pad_token_id=0)).cuda().eval()
prompt = torch.randint(3, 300, (2, 8)).cuda()
"""
GPT2 = MODEL.format(config="GPT2Config", model="GPT2LMHeadModel", sizes="n_layer=1, n_embd=32, n_head=2")
LLAMA = MODEL.format(
    config="LlamaConfig", model="LlamaForCausalLM",
    sizes="num_hidden_layers=1, hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=2",
)  # fmt: skip


OPTIONS = {
    "max_new_tokens=12": 2,
    "max_length=20": 2,
    "max_new_tokens=12, do_sample=True, top_k=5, top_p=0.9, eos_token_id=[2, 150]": 2,
    "max_new_tokens=12, do_sample=True, num_return_sequences=3": 6,
    "max_new_tokens=12, num_beams=3": 2,
    "max_new_tokens=12, num_beams=3, early_stopping=True, num_return_sequences=2": 4,
    "max_new_tokens=12, num_beams=3, do_sample=True": 2,
    "max_new_tokens=12, cache_implementation='static', disable_compile=True": 2,
    "max_new_tokens=12, use_cache=False": 2,
}
"""With how many sequences each makes."""


@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=["GPT-2", "Llama"])
def test_transformers_generate_up_to_their_limit(run: Run, program: Program, model: str) -> None:
    lines = "".join(
        f"made = model.generate(prompt, {options})\nassert made.shape == ({sequences}, 20), made.shape\n"
        for options, sequences in OPTIONS.items()
    )

    assert run(f"python {program(model + lines)}", patience=60).iterations == 12 * len(OPTIONS)


LOOP = """
import torch
model = torch.nn.Sequential(torch.nn.Embedding(300, 16), torch.nn.Linear(16, 300)).cuda()
sequences = torch.randint(3, 300, ({sequences}, 4), device="cuda")
state = torch.{state}({sequences}, device="cuda")
flags = [False] * {sequences}
with torch.no_grad():
    for _ in range(9):
        scores = model(sequences)[:, -1]
        token = {chosen}
        {before}
        sequences = torch.cat([sequences, token[:, None]], 1)
        {end}
assert sequences.shape[1] == 13, sequences.shape
"""
ARGMAX = "scores.argmax(-1)"


@pytest.mark.parametrize("sequences", [1, 2])
@pytest.mark.parametrize(
    ("state", "chosen", "before", "end"),
    [
        ("zeros", ARGMAX, "pass", "if token[0].item() == 0: break"),
        ("zeros", ARGMAX, "number = int(token[0])", "if number in (0, 1, 2, 299): break"),
        ("zeros", ARGMAX, "pass", "if 0 in token.tolist(): break"),
        ("zeros", ARGMAX, "pass", "if sequences[0, -1].item() == 1: break"),
        ("zeros", ARGMAX, "pass", "if (token.cpu() == 0).all(): break"),
        ("zeros", ARGMAX, "pass", "if (token.cpu().numpy() == 0).all(): break"),
        ("zeros", ARGMAX, "pass", "if torch.isin(token, torch.tensor([0, 1], device='cuda')).all(): break"),
        ("zeros", ARGMAX, "pass", "if (sequences == 2).any(1).all(): break"),
        ("zeros", ARGMAX, "pass", "if min((row == 2).sum().item() for row in sequences): break"),
        ("zeros", ARGMAX, "flags = [f or t == 0 for f, t in zip(flags, token.tolist())]", "if all(flags): break"),
        ("zeros", "scores.max(-1)[1]", "number = token[0].item()", "if number == 0: break"),
        ("zeros", "scores.softmax(-1).multinomial(1)[:, 0]", "number = token[0].item()", "if number == 0: break"),
        (
            "zeros", "scores.topk(5)[1].gather(1, torch.multinomial(scores.topk(5)[0].softmax(-1), 1))[:, 0]",
            "number = token[0].item()", "if number == 0: break",
        ),
        ("zeros", ARGMAX, "state = state.bool() | (token == 2)", "if state.all(): break"),
        ("zeros", ARGMAX, "state = state.bool(); state |= token == 2", "if state.all().item(): break"),
        ("zeros", ARGMAX, "state[token == 2] = 1", "if (state == 1).all(): break"),
        ("zeros", ARGMAX, "state = state.long(); state |= token == 2", "if state.sum().item() == len(state): break"),
        ("ones", ARGMAX, "state = state.bool() & (token != 2)", "if not state.any(): break"),
        ("ones", ARGMAX, "state = state.long().mul((token != 2).long())", "if state.max() == 0: break"),
        ("ones", ARGMAX, "state = state.long() * (token != 2)", "if not state.sum() > 0: break"),
        (
            "ones", ARGMAX, "state = state.long(); token = token * state + 299 * (1 - state); state *= token != 2",
            "if token[0].item() == 0 or state.sum().item() == 0: break",
        ),
        ("zeros", ARGMAX, "token = torch.where(state.bool(), 0, token)", "if not any(token.tolist()): break"),
    ],
)  # fmt: skip
def test_loops_of_a_programs_own_do_not_end_with_a_token(
    run: Run, program: Program, state: str, chosen: str, before: str, end: str, sequences: int
) -> None:
    path = program(LOOP.format(state=state, chosen=chosen, before=before, end=end, sequences=sequences))

    assert run(f"python {path}", patience=60).iterations == 9
