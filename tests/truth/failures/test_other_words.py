"""What others than torch's allocator say is explained rightly, or not read: never with a wrong cause."""

from __future__ import annotations

import json
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner import cli
from planner.errors import PlannerError
from planner.report.style import Style
from planner.truth.failures.explanation import explain
from planner.truth.failures.explanation_text import render
from planner.truth.failures.gpu_messages import find_messages
from planner.units import GIB

Message = Callable[..., str]

POSTED: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[2] / "data" / "failures_in_other_words.yaml").read_text("utf-8")
)
READ = [each for each in POSTED if "says" in each]
NOT_READ = [each for each in POSTED if "says" not in each]


@pytest.mark.parametrize("posted", READ, ids=lambda each: each["source"])
def test_other_words_are_explained_rightly(posted: dict[str, Any]) -> None:
    found = explain(posted["text"])
    messages = [(failure.form.value, failure.caught) for failure, _ in found.messages]
    hosts = [failure.said_by for failure in found.host]

    said = (posted["says"], posted.get("caught", False))
    assert (messages, hosts) in (([said], []), ([], [posted["says"]] * posted.get("hosts", 1)))
    assert found.cause.value == posted["cause"]
    if "tried" in posted:
        assert found.messages[0][0].tried_bytes == posted["tried"] * GIB


@pytest.mark.parametrize("posted", NOT_READ, ids=lambda each: each["source"])
def test_what_only_sounds_so_is_not_read(posted: dict[str, Any]) -> None:
    with pytest.raises(PlannerError, match="nothing in it says that memory ran out"):
        explain(posted["text"])


def shown(text: str) -> str:
    return " ".join(render("train.log", explain(text), Style()).split())


def test_where_nvml_failed_too_it_is_said() -> None:
    text = (
        'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":995, please'
    )

    assert "torch asks NVML who holds the GPU's memory only where a request has failed, and NVML failed too" in shown(
        text
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376.",
         "line 2 is of a multiprocessor's own memory"),
        ("RuntimeError: level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
         "line 2 says that something of the device ran out, which may be memory or another resource"),
        ("node-7: OOM guard stopped the job", "line 2 speaks of it in words that are not known"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_named_with_its_line(text: str, said: str) -> None:
    with pytest.raises(PlannerError) as refused:
        explain(f"step 1\n{text}\n")

    assert said in refused.value.problem


def test_who_computes_on_the_host_too_is_not_said_to_speak_of_a_gpu() -> None:
    text = "onnxruntime::BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 4096"

    assert "Memory ran out: the GPU's, or the host's where ONNX Runtime computes there." in shown(text)


def boxed(text: str) -> str:
    """As rich draws the panel of a traceback."""
    lines = textwrap.wrap(text, 34)
    return "\n".join(["╭" + "─" * 36 + "╮", *(f"│ {line:<34} │" for line in lines), "╰" + "─" * 36 + "╯"])


@pytest.mark.parametrize(
    "write",
    [boxed, lambda text: text.replace("GiB", "Gi\xadB\x1b[K").replace("\xad", ""),
     lambda text: "\r".join(["step 1", text, "step 2"]), lambda text: f"\x00{text}\x00",
     lambda text: f"2026-01-02 03:04:05,123 - [rank7]: {text}",
     lambda text: f"<28>Jan  2 03:04:05 node7 slurmstepd[12]: {text}",
     lambda text: f'time="2026-01-02T03:04:05Z" level=error msg={json.dumps(text)}'],
)  # fmt: skip
def test_a_message_is_read_through_what_draws_or_collects_logs(write: Callable[[str], str], message: Message) -> None:
    (failure,) = find_messages(write(message()))

    assert (failure.tried_bytes, failure.total_bytes, failure.free_bytes) == (2 * GIB, 79 * GIB, GIB)


def test_a_zip_is_refused_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str], message: Message) -> None:
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as packed:
        packed.writestr("0_train.txt", message())

    assert cli.main(["explain", str(tmp_path / "logs.zip")]) == 2
    assert "unzip it" in capsys.readouterr().err
