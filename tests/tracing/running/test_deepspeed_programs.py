"""Programs that use DeepSpeed are told by what they do, not by what their command is called."""

from __future__ import annotations

from pathlib import Path

import pytest
from program_runs import Program, Run

from planner.allocator.host.replay import PinnedRules, replay_host
from planner.events import Phase
from planner.host_events import HostCategory
from planner.step_work import Launch, LaunchKind
from planner.tracing.program.rank_orders import RankRun
from planner.truth.measuring.measurement_lines import most_by_category

MODEL = """
import torch
layers = [torch.nn.Linear(64, 64, bias=False) for _ in range(4)]
model = torch.nn.Sequential(*layers)
"""
ENGINE = f"""
import deepspeed
{MODEL}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={{
    "train_micro_batch_size_per_gpu": 2, "zero_optimization": {{"stage": 3}},
    "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4, "torch_adam": True}}}},
}})
for _ in range(3):
    engine.backward(engine(torch.ones(2, 64, device="cuda")).sum())
    engine.step()
"""
DIVIDED = f"""
import deepspeed
{MODEL}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={{
    "train_micro_batch_size_per_gpu": 2, "bf16": {{"enabled": True}}, "gradient_clipping": 1.0,
    "zero_optimization": {{"stage": STAGE, "reduce_bucket_size": 5000, "stage3_param_persistence_threshold": 0}},
    "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4, "torch_adam": True}}}},
}})
for _ in range(3):
    engine.backward(engine(torch.ones(2, 64, device="cuda", dtype=torch.bfloat16)).sum())
    engine.step()
"""
NAMED = ("parameter", "gradient", "optimizer_state", "bucket")
ELEMENTS = 4 * 64 * 64
BUCKET_BYTES = 2 * 5000
MOST = {
    # Two bytes a parameter and its gradient, four its master, that one's gradient, and each of two moments.
    0: (2 * ELEMENTS, 6 * ELEMENTS, 12 * ELEMENTS, 0),
    # Half of it on each of two ranks, but of parameters: these are there twice while they are flattened.
    1: (4 * ELEMENTS, 3 * ELEMENTS, 6 * ELEMENTS, BUCKET_BYTES),
    2: (4 * ELEMENTS, 3 * ELEMENTS, 6 * ELEMENTS, BUCKET_BYTES),
    # Whole until the first of four is divided.
    3: (2 * ELEMENTS + ELEMENTS // 4, 3 * ELEMENTS, 6 * ELEMENTS, BUCKET_BYTES),
}
BY_ACCELERATE = f"""
import accelerate
{MODEL}
accelerator = accelerate.Accelerator()
accelerator.state.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 2
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for _ in range(3):
    accelerator.backward(model(torch.ones(2, 64, device="cuda")).sum())
    optimizer.step()
    optimizer.zero_grad()
"""
BESIDE = f"""
{MODEL}
model, optimizer = model.cuda(), torch.optim.AdamW(model.parameters())
copies, event = torch.cuda.Stream(), torch.cuda.Event()
for _ in range(3):
    model(torch.ones(2, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    passed = torch.ones(64, device="cuda")
    passed.record_stream(copies)
    event.record()
    del passed
    copies.synchronize()
"""


def waits(run: Run, command: str) -> int:
    """How often the host waits for an event, which DeepSpeed does where it has asked and it has not passed."""
    return waits_in(run(command, steps=3))


def waits_in(found: RankRun) -> int:
    launches = [event for event in found.trace.events if isinstance(event, Launch)]
    return sum(launch.kind == LaunchKind.HOST_WAIT_EVENT for launch in launches)


def test_an_engine_is_known_whatever_its_command_says(run: Run, program: Program) -> None:
    path = program(ENGINE)

    named = run(f"deepspeed --num_gpus 2 {path} --deepspeed", steps=3, rank=1)
    unnamed = run(f"torchrun --nproc-per-node 2 {path}", steps=3, rank=1)

    assert unnamed.trace.events == named.trace.events
    assert waits_in(unnamed) > 0


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_an_engine_holds_is_named(run: Run, program: Program, stage: int) -> None:
    found = run(f"torchrun --nproc-per-node 2 {program(DIVIDED.replace('STAGE', str(stage)))}", steps=3)

    most = most_by_category(found.trace.written_out())
    assert tuple(most.get(name, 0) for name in NAMED) == MOST[stage]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_an_engine_offloads_lies_on_the_host(run: Run, program: Program, stage: int) -> None:
    offloaded = DIVIDED.replace("STAGE", f'{stage}, "offload_optimizer": {{"device": "cpu"}}')

    found = run(f"torchrun --nproc-per-node 2 {program(offloaded)}", steps=3).trace

    exact = PinnedRules(largest_rounded_bytes=0, largest_kept_bytes=0)
    on_host = replay_host(found.host, exact)[Phase.OPTIMIZER_STEP, 2]
    # Of a rank's half four bytes its master and each of two moments.
    assert on_host[HostCategory.OPTIMIZER_STATE] == 6 * ELEMENTS
    assert most_by_category(found.written_out()).get("optimizer_state", 0) == 0


def test_an_engine_that_accelerates_config_names_is_known(run: Run, program: Program, tmp_path: Path) -> None:
    path = program(BY_ACCELERATE)
    config = tmp_path / "config.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 2\nnum_machines: 1\n"
        "machine_rank: 0\nmixed_precision: 'no'\nuse_cpu: false\n"
        "deepspeed_config: {zero_stage: 3, zero3_init_flag: false, gradient_accumulation_steps: 1,"
        " offload_optimizer_device: none, offload_param_device: none}\n"
    )

    assert waits(run, f"accelerate launch --config_file {config} {path}") > 0


@pytest.mark.parametrize("arguments", ["", "--output_dir runs/no_deepspeed"])
def test_an_argument_that_is_called_so_changes_nothing(run: Run, program: Program, arguments: str) -> None:
    assert waits(run, f"python {program(BESIDE)} {arguments}") == 0
