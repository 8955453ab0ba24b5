"""Autocast and the GradScaler are really on, and pure low precision is what the parameters say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from planner.job.schema import Job
from planner.training import step
from planner.training.loop import Precision

Run = Callable[..., step.Outcome]
JobOf = Callable[..., Job]
CPU = torch.device("cpu")


def test_fp16_with_a_scaler_takes_its_steps(decoder_job: JobOf, run: Run) -> None:
    before = run(decoder_job(iterations=0)).model.state_dict()

    outcome = run(decoder_job(precision="fp16_autocast", gradient_clipping=1.0))

    after = outcome.model.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert {float(state["step"]) for state in outcome.optimizer.state.values()} == {2.0}


@pytest.mark.parametrize(("name", "dtype"), [("bf16_autocast", torch.bfloat16), ("fp16_autocast", torch.float16)])
def test_autocast_computes_in_its_dtype(name: str, dtype: torch.dtype) -> None:
    linear = torch.nn.Linear(4, 4)

    with Precision(name, CPU).autocast():
        computed = linear(torch.ones(2, 4))

    assert computed.dtype is dtype


def test_only_fp16_is_scaled() -> None:
    loss = torch.tensor(2.0)

    scaled = [float(Precision(name, CPU).scale_loss(loss)) for name in ("none", "bf16_autocast", "fp16_autocast")]

    assert scaled == [2.0, 2.0, 2.0 * 65536]


def test_a_scaler_that_turned_itself_off_is_an_error_and_not_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "is_enabled", lambda _scaler: False)

    with pytest.raises(RuntimeError, match="GradScaler turned itself off on cpu"):
        Precision("fp16_autocast", CPU)


def test_autocast_that_turned_itself_off_is_an_error_and_not_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _device: False)

    with (
        pytest.raises(RuntimeError, match="autocast turned itself off on cpu"),
        Precision("bf16_autocast", CPU).autocast(),
    ):
        pass
