"""What reading costs grows with the text and no faster: twice the text at most two and a half times the time.

Each family makes a text of about `n` parts in one way in which a reader could look at parts again and again. The
numbers of parts are as large as the reader takes, or as a quadratic reader would be seen in at once.
"""

from __future__ import annotations

import gc
import gzip
import json
import lzma
import pickle
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_documents import DECODER, REPORT, SPEC, with_key, with_piece
from input_readers import READERS, answer_of
from machine_speed import takes_too_long
from soak import share
from valid_inputs import MEASUREMENT, REVIEW, snapshot

from planner.allocator.snapshot import read_snapshot
from planner.errors import SnapshotError
from planner.job.size_limits import MOST_RANKS
from planner.truth.measuring import measurement_lines
from planner.units import MIB

Make = Callable[[int], bytes]
MOST_RATIO = 2.5
CACHE_SECONDS = 0.004
"""Twice a text that fits into a processor's cache may not fit: milliseconds tell nothing of a reader."""
TRIES = 30
CONFIG = ("model", "hf_config", "text_config")


def in_spec(piece: Callable[[int], str], path: tuple[Any, ...] = CONFIG) -> Make:
    return lambda n: with_piece(SPEC, path, piece(n)).encode()


def keys(n: int) -> str:
    return ",".join(f'"k{number}":1' for number in range(n))


def yaml(text: Callable[[int], str]) -> Make:
    return lambda n: text(n).encode()


def review(annotation: Callable[[int], Any]) -> Make:
    def make(n: int) -> bytes:
        found = json.loads(json.dumps(REVIEW))
        found["request"]["object"]["metadata"]["annotations"]["planner.dev/bundle"] = annotation(n)
        return json.dumps(found).encode()

    return make


def report(**changes: Callable[[int], Any]) -> Make:
    return lambda n: json.dumps({**REPORT, **{name: change(n) for name, change in changes.items()}}).encode()


def pickled(change: Callable[[dict[str, Any], int], None]) -> Make:
    def make(n: int) -> bytes:
        content = snapshot(3)
        change(content, n)
        return pickle.dumps(content, protocol=4)

    return make


def segments_given_back(content: dict[str, Any], n: int) -> None:
    trace = content["device_traces"][0]
    trace += [{"action": "segment_free", "addr": 2**40 + k * 2**25, "size": 20 * MIB, "stream": 0} for k in range(n)]


def maps(content: dict[str, Any], n: int) -> None:
    where = [2**44 + k * 2**22 for k in range(n)]
    trace = content["device_traces"][0]
    trace += [{"action": "segment_unmap", "addr": each, "size": 2 * MIB, "stream": 0} for each in where]


def many_devices(content: dict[str, Any], n: int) -> None:
    content["device_traces"] += [[{"action": "snapshot", "addr": 0, "size": 0, "stream": 0}]] * (n // 16)
    content["segments"] += [{**content["segments"][0], "device": 900, "blocks": []} for _ in range(n)]


FAMILIES: dict[str, tuple[str, int, Make]] = {
    "equal keys": ("spec_in_json", 20_000, in_spec(lambda n: "{" + '"a":1,' * n + '"a":1}')),
    "the last key again": ("spec_in_json", 10_000, in_spec(lambda n: "{" + keys(n) + ',"k0":1}')),
    "many keys": ("spec_in_json", 10_000, in_spec(lambda n: "{" + keys(n) + "}")),
    "a wide list": ("spec_in_json", 20_000, in_spec(lambda n: "[" + "0," * n + "0]")),
    "empty lists": ("spec_in_json", 20_000, in_spec(lambda n: "[" + "[]," * n + "0]")),
    "a long key above many values": (
        "spec_in_json", 20_000, in_spec(lambda n: '{"' + "k" * n + '":[' + "0," * n + "0]}")
    ),
    "a long text": ("spec_in_json", 1_000_000, in_spec(lambda n: '"' + "x" * n + '"')),
    "escapes": ("spec_in_json", 200_000, in_spec(lambda n: '"' + "\\u00e9" * n + '"')),
    "digits": ("spec_in_json", 1_000_000, in_spec(lambda n: "9" * n)),
    "digits behind the point": ("spec_in_json", 1_000_000, in_spec(lambda n: "0." + "9" * n)),
    "a long unknown key": ("spec_in_json", 200_000, lambda n: with_key(SPEC, (), '"' + "tra" * n + '"').encode()),
    "a long GPU": ("spec_in_json", 200_000, in_spec(lambda n: '"' + "H1" * n + '"', ("cluster", "gpu"))),
    "a long size": (
        "spec_in_json", 200_000, in_spec(lambda n: '"1' + " " * n + '!"', ("cluster", "gpu", "total_bytes"))
    ),
    "a long version": ("spec_in_json", 200_000, in_spec(lambda n: '"1.' + "1" * n + ' "', ("software", "cuda"))),
    "a long pattern": ("spec_in_json", 200_000, in_spec(lambda n: '"' + "a." * n + '!"', ("model", "head"))),
    "a long conf": ("spec_in_json", 200_000, in_spec(lambda n: '"' + "a:b," * n + '"', ("allocator", "conf"))),
    "broken at its end": ("spec_in_json", 200_000, in_spec(lambda n: "\n" * n + "}")),
    "a wide optimizer": ("spec_in_json", 10_000, in_spec(lambda n: "{" + keys(n) + "}", ("train", "optimizer"))),
    "stages": ("spec_in_json", 20_000, in_spec(lambda n: "[" + "1," * n + "1]", ("parallel", "pp", "split"))),
    "many inputs": (
        "spec_in_json", 4_000,
        in_spec(lambda n: "{" + ",".join(f'"k{k}":{{"shape":[1]}}' for k in range(n)) + "}", ("train", "inputs")),
    ),
    "YAML: merges of many": (
        "spec_in_yaml", 1_500, yaml(lambda n: "a: {<<: [" + ",".join(f"{{k{k}: 1}}" for k in range(n)) + "]}")
    ),
    "YAML: many merges": (
        "spec_in_yaml", 1_500, yaml(lambda n: "a:\n" + "".join(f"  <<: {{k{k}: 1}}\n" for k in range(n)))
    ),
    "YAML: many keys": ("spec_in_yaml", 2_000, yaml(lambda n: "".join(f"k{k}: 1\n" for k in range(n)))),
    "YAML: a key again": ("spec_in_yaml", 2_000, yaml(lambda n: "".join(f"k{k}: 1\n" for k in range(n)) + "k0: 1")),
    "YAML: aliases": ("spec_in_yaml", 2_000, yaml(lambda n: "x: &x 1\n" + "".join(f"k{k}: *x\n" for k in range(n)))),
    "YAML: anchors": ("spec_in_yaml", 2_000, yaml(lambda n: "".join(f"k{k}: &a{k} 1\n" for k in range(n)))),
    "YAML: open brackets": ("spec_in_yaml", 50_000, yaml(lambda n: "[" * n)),
    "YAML: open braces": ("spec_in_yaml", 50_000, yaml(lambda n: "{" * n)),
    "YAML: questions": ("spec_in_yaml", 50_000, yaml(lambda n: "? " * n)),
    "YAML: comments": ("spec_in_yaml", 20_000, yaml(lambda n: "# x\n" * n + "a: 1")),
    "YAML: words": ("spec_in_yaml", 20_000, yaml(lambda n: "a: " + "x " * n)),
    "YAML: lines": ("spec_in_yaml", 10_000, yaml(lambda n: "a: |\n" + "  x\n" * n)),
    "YAML: quotes": ("spec_in_yaml", 20_000, yaml(lambda n: "a: '" + "''" * n + "'")),
    "YAML: a bad character": ("spec_in_yaml", 100_000, yaml(lambda n: "a: " + "\n" * n + "\x01")),
    "YAML: digits": ("spec_in_yaml", 60_000, yaml(lambda n: "a: " + "9" * n)),
    "YAML: hexadecimal digits": ("spec_in_yaml", 60_000, yaml(lambda n: "a: 0x" + "f" * n)),
    "YAML: tags": ("spec_in_yaml", 3_000, yaml(lambda n: "".join(f"%TAG !a{k}! x\n" for k in range(n)) + "---\na: 1")),
    "ranks that report": (
        "report", 2_000, report(measured=lambda n: [{"rank": k, "host": "h", "device_bytes": 1} for k in range(n)])
    ),
    "hosts": ("report", 20_000, report(hosts=lambda n: [f"h{k}" for k in range(n)])),
    "a long team": ("report", 1_000_000, report(team=lambda n: "x" * n)),
    "a report's key": ("report", 1_000_000, lambda n: with_key(REPORT, (), '"' + "k" * n + '"').encode()),
    "ranks of a validation": ("validation", 20_000, lambda n: json.dumps({"job": DECODER, "ranks": [0] * n}).encode()),
    "a mode": ("validation", 1_000_000, lambda n: json.dumps({"job": DECODER, "mode": "x" * n}).encode()),
    "an annotation of equal keys": ("review", 30_000, review(lambda n: "{" + '"a":1,' * n + '"a":1}')),
    "a long annotation": ("review", 200_000, review(lambda n: '{"' + "x" * n + '":1}')),
    "a review's depth": ("review", 200_000, lambda n: b'{"a":' + b"[" * n),
    "trace entries": ("snapshot", 1_500, lambda n: pickle.dumps(snapshot(n), protocol=4)),
    "segments given back": ("snapshot", 4_000, pickled(segments_given_back)),
    "stretches of an expandable segment": ("snapshot", 4_000, pickled(maps)),
    "devices and segments": ("snapshot", 8_000, pickled(many_devices)),
    "memos": (
        "snapshot", 100_000, lambda n: b"\x80\x02]%s." % b"".join(b"Nr%s0" % k.to_bytes(4, "little") for k in range(n))
    ),
    "measurements": ("measurements", 400, lambda n: b"\n".join([measurement_lines.line(MEASUREMENT).encode()] * n)),
    "blank lines": ("measurements", 200_000, lambda n: b"\n" * n),
    "words of a command": (
        "measurements", 4_000,
        lambda n: json.dumps(
            {**json.loads(measurement_lines.line(MEASUREMENT)), "command": ["python"] * n}
        ).encode(),
    ),
    "messages that never end": ("log", 3_000, lambda n: b"CUDA out of memory. Tried to allocate " * n),
    "failures of NCCL": ("log", 5_000, lambda n: b"Cuda failure 'out of memory' " * n),
    "processes on a GPU": (
        "log", 5_000,
        lambda n: b"CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 1.00 GiB of which "
        b"1.00 GiB is free. " + b"Process 1 has 1.00 GiB memory in use. " * n,
    ),
    "kills": ("log", 5_000, lambda n: b"memory: usage 1kB, limit 1kB\nOut of memory: Killed process 1 (a) " * n),
    "options": ("allocator_conf", 20_000, lambda n: b"expandable_segments:True," * n),
    "an option's name": ("allocator_conf", 200_000, lambda n: b"expand" * n + b":1"),
    "an open list": ("allocator_conf", 200_000, lambda n: b"roundup_power2_divisions:[" + b"1:2," * n),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_twice_the_text_takes_at_most_two_and_a_half_times_as_long(family: str) -> None:
    name, count, make = FAMILIES[family]
    count = share(count, in_ci=count // 2)
    once, twice = make(count), make(2 * count)
    answer_of(READERS[name], make(10))  # what is loaded with a first text costs nothing later
    shortest = [float("inf"), float("inf")]
    gc.disable()  # its passes come with one try or another
    try:
        for _ in range(TRIES):
            for index, text in enumerate((once, twice)):
                shortest[index] = min(shortest[index], seconds_of(name, text))
            if shortest[1] <= MOST_RATIO * shortest[0] + CACHE_SECONDS:
                return
    finally:
        gc.enable()
    pytest.fail(f"{len(once)} bytes take {shortest[0]:.3f} s, {len(twice)} take {shortest[1]:.3f} s")


def test_a_reader_that_grows_with_the_third_power_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a quadratic one, two lucky tries under other work may look linear."""
    monkeypatch.setitem(
        READERS, "cubic", lambda content: [content.count(b"a") for _ in range(len(content) ** 2 // 100)]
    )
    monkeypatch.setitem(FAMILIES, "cubic", ("cubic", 1_500, lambda n: b"a" * n))

    with pytest.raises(pytest.fail.Exception, match="bytes take"):
        test_twice_the_text_takes_at_most_two_and_a_half_times_as_long("cubic")


MOST_TIMES, ALWAYS_BYTES = 200, 8 * MIB
"""An empty list is two characters, and an object of 56 bytes in two of the forms in which a document is held."""


@pytest.mark.parametrize("family", [name for name, (reader, *_) in FAMILIES.items() if reader != "snapshot"])
def test_reading_takes_memory_in_proportion_to_the_text(family: str) -> None:
    name, count, make = FAMILIES[family]
    text = make(share(count, in_ci=count // 2))
    tracemalloc.start()
    try:
        answer_of(READERS[name], text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak <= MOST_TIMES * len(text) + ALWAYS_BYTES


def seconds_of(name: str, text: bytes) -> float:
    began = time.process_time()
    answer_of(READERS[name], text)
    return time.process_time() - began


NUMBERS = {
    "degree": lambda n: {**DECODER, "parallel": {"dp_shard": {"degree": n, "reshard_after_forward": 3}}},
    "stages": lambda n: {**DECODER, "parallel": {"pp": n}},
    "ring": lambda n: {**DECODER, "parallel": {"cp": n}, "train": {"sequence_length": 2 * n}},
    "steps": lambda n: {**DECODER, "train": {"sequence_length": 64, "gradient_accumulation_steps": n, "iterations": n}},
    "layers": lambda n: {**DECODER, "model": {"decoder": {**DECODER["model"]["decoder"], "layers": n}}},
    "chunks": lambda n: {**DECODER, "train": {"sequence_length": 64, "loss": {"name": "cross_entropy", "chunks": n}}},
}


@pytest.mark.parametrize("number", [2**10, MOST_RANKS, 2**30, 2**40])
@pytest.mark.parametrize("name", NUMBERS)
def test_no_check_counts_up_to_a_number_of_the_text(name: str, number: int) -> None:
    document = {**NUMBERS[name](number)}
    if name in ("degree", "stages", "ring"):
        document["cluster"] = {"gpu": "H100-SXM-80GB", "nodes": number}

    assert not takes_too_long(min(_times("spec_in_json", json.dumps(document).encode())), 0.2)


def _times(name: str, text: bytes) -> Iterator[float]:
    return (seconds_of(name, text) for _ in range(3))


@pytest.mark.parametrize("size", [2**30, 2**48])
def test_a_segment_costs_the_same_whatever_its_size(size: int) -> None:
    content = snapshot(3)
    content["segments"].append(
        {**content["segments"][0], "address": 2**56, "total_size": size, "is_expandable": True, "blocks": []}
    )
    content["segments"][-1]["blocks"] = [{"size": size, "requested_size": 0, "state": "inactive"}]
    text = pickle.dumps(content)

    assert not takes_too_long(min(_times("snapshot", text)), 0.2)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress], ids=["gz", "xz"])
def test_a_small_file_that_unpacks_to_gigabytes_is_refused_before_it_has(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(compress(bytes(200 * MIB)))

    tracemalloc.start()
    with pytest.raises(SnapshotError, match="unpack to more than"):
        read_snapshot(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 200 * MIB


@pytest.mark.parametrize("content", [b"\x80\x02]r\xff\xff\xff\x7f.", b"]p4294967295\n."], ids=["binary", "text"])
def test_a_pickle_of_ten_bytes_takes_no_gigabytes(content: bytes) -> None:
    assert "not a pickle (it has no " in answer_of(READERS["snapshot"], content)


def test_a_pickle_that_names_one_list_again_and_again_is_refused() -> None:
    content = snapshot(3)
    content["device_traces"] = [content["device_traces"][0] * 1000] * 1000

    assert "entries and blocks of 1000 devices" in answer_of(READERS["snapshot"], pickle.dumps(content))
