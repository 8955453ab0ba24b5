"""Parts of an evaluation that are not run on paper are written out as if they were."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from planner.allocator.long_runs.series import Series
from planner.events import Alloc, Event, Free, Mark
from planner.job.loading import load_yaml
from planner.job.sampled_runs import shown_batches, shown_tokens
from planner.job.schema import Eval, Job
from planner.tracing import job_program
from planner.tracing.job_program import trace

CASES = [
    "{every: 1, micro_batch_size: 2, batches: 30, gather: logits}",
    "{every: 2, micro_batch_size: 2, batches: 30, gather: loss, generate: {max_new_tokens: 50, batch: 2}}",
    "{every: 2, generate: {max_new_tokens: 33, prompt_tokens: 7}}",
    "{every: 2, generate: {max_new_tokens: 33, use_cache: false}}",
]


def job_of(evaluation: str) -> Job:
    return load_yaml(f"""
model:
  hf_config: {{architectures: [LlamaForCausalLM], model_type: llama, hidden_size: 32, intermediate_size: 64,
    num_attention_heads: 2, num_key_value_heads: 2, num_hidden_layers: 2, vocab_size: 100}}
train: {{sequence_length: 32, iterations: 2, optimizer: {{name: SGD}}, eval: {evaluation}}}
cluster: {{gpu: H100-SXM-80GB}}
""")


def plain(events: tuple[Event, ...]) -> list[object]:
    """What happens, with blocks called by the order of their births."""
    names: dict[int, int] = {}
    found: list[object] = []
    for each in events:
        if isinstance(each, Alloc):
            names[each.block] = len(names)
            found.append((each.requested_bytes, each.stream, each.origin))
        elif isinstance(each, Free):
            found.append(("free", names[each.block]))
        elif isinstance(each, Mark):
            found.append(each)
    return found


@pytest.mark.parametrize("evaluation", CASES)
def test_what_is_written_out_is_what_happens_when_all_of_it_is_run(
    evaluation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(evaluation)
    shortened: list[Series] = []
    real = job_program.write_out

    def write_out(events: Sequence[Event], series: Series) -> list[Event]:
        written = real(events, series)  # raises where the evaluation has to be run in full
        shortened.append(series)
        return written

    monkeypatch.setattr(job_program, "write_out", write_out)

    found = trace(job)

    assert shortened
    assert plain(found.written_out()) == plain(trace(job, shortened=False).written_out())


def test_short_evaluations_are_run_in_full() -> None:
    assert not any(each.alike for each in shown_batches(Eval(batches=8, gather="loss")))
    assert not any(each.alike for each in shown_tokens(13))
    assert [each.number for each in shown_tokens(13)] == list(range(1, 13))


def test_of_many_tokens_some_are_shown_far_apart() -> None:
    parts = shown_tokens(512)
    assert [each.number for each in parts if each.alike] == [3, 127, 255, 383, 511]
    assert sum(each.count for each in parts) == 511


def test_what_goes_to_the_host_after_some_steps_is_looked_at_until_then() -> None:
    gathered = {"gather": "logits", "batches": 1000}
    assert len(shown_batches(Eval(accumulation_steps=5, **gathered))) == 5  # type: ignore[arg-type]
    assert shown_batches(Eval(accumulation_steps=50, **gathered))[-1].alike  # type: ignore[arg-type]
