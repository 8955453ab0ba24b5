"""Logs are read however a terminal, an editor or a collector of logs wrote them."""

from __future__ import annotations

import gzip
import json
import lzma
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from planner import cli
from planner.truth.failures.gpu_messages import find_messages
from planner.truth.failures.host_messages import find_host_failures
from planner.truth.failures.log_text import LogText, decode
from planner.units import GIB

Message = Callable[..., str]
Write = Callable[[str], str]


def wrapped(width: int) -> Write:
    return lambda text: textwrap.fill(text, width, break_on_hyphens=False)


def cut(width: int) -> Write:
    """As a terminal does: in the middle of a word."""
    return lambda text: "\n".join(text[at : at + width] for at in range(0, len(text), width))


def each_line(prefix: str) -> Write:
    return lambda text: "\n".join(prefix + line for line in wrapped(80)(text).splitlines())


@pytest.mark.parametrize(
    "write",
    [
        wrapped(80), wrapped(100), cut(80), cut(100), each_line("> "), each_line("[rank3]: "), each_line("3: "),
        each_line("2026-01-02T03:04:05.123456Z "), each_line("(RayTrainWorker pid=4711, ip=10.0.0.5) "),
        each_line("trainer-0  | "), each_line("[default3]:"),
        lambda text: text.replace("GiB", "\x1b[1;31mGiB\x1b[0m"), lambda text: text.replace(". ", ".\\u001b[0m "),
        lambda text: text.replace("\n", "\r\n") + "\r\n", lambda text: text.replace(". ", ".\\n"),
        lambda text: f'{{"log": {json.dumps(text)}}}', lambda text: text.replace(" ", "\u00a0"),
    ],
)  # fmt: skip
def test_a_message_is_read_however_its_text_was_broken(write: Write, message: Message) -> None:
    (failure,) = find_messages(write(message(this="77.50 GiB", others=[(4711, "0.25 GiB")])))

    figures = (failure.tried_bytes, failure.total_bytes, failure.free_bytes, failure.reserved_bytes)
    assert figures == (2 * GIB, 79 * GIB, GIB, 77 * GIB)
    assert (failure.this_process_bytes, len(failure.other_processes)) == (int(77.5 * GIB), 1)


@pytest.mark.parametrize("write", [wrapped(80), cut(100), each_line("> ")])
def test_words_of_a_host_are_read_so_too(write: Write) -> None:
    text = (
        "(raylet) [2025-01-10 12:00:00,000 E 100 100] (raylet) node_manager.cc:3064: 3 Workers (tasks / actors) killed "
        "due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: abc, IP: 10.0.0.5)"
    )

    assert [failure.said_by for failure in find_host_failures(write(text))] == ["ray"]


def test_lines_are_those_of_the_file(message: Message) -> None:
    log = f"step 1\r\nstep 2 \x1b[32mok\x1b[0m\n> > {wrapped(60)(message())}\nKilled\n"

    assert find_messages(log)[0].line == 3
    assert find_host_failures(log)[0].line == len(log.splitlines())


@pytest.mark.parametrize(
    "encoded", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"],
)  # fmt: skip
def test_the_encodings_of_logs_are_told_apart(encoded: str) -> None:
    assert decode("loss 0.25\nKilled\n".encode(encoded)) == "loss 0.25\nKilled\n"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert decode(b"step \xff 1\nKilled\n") == "step \ufffd 1\nKilled\n"


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bytes])
def test_a_compressed_log_is_read(pack: Callable[[bytes], bytes], message: Message, tmp_path: Path,
                                  capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    (tmp_path / "train.log.gz").write_bytes(pack(message().encode("utf-16")))

    assert cli.main(["explain", str(tmp_path / "train.log.gz"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["cause"] == "full"


def test_what_is_quoted_stands_in_the_log() -> None:
    log = LogText("a  b\n> c \x1b[1md\x1b[0m e\n")

    assert (log.squashed, log.quote(0, 5, 100), log.quote(2, 4, 100)) == ("abcde", "a b > c d e", "c d")
