"""A thousand bodies that no client sends by mistake, the same ones each time, for every endpoint that takes a body.

`hostile_requests()` is asked of a service: none of its answers may be a fault of planner, or take longer than a job.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hostile_documents import (
    DECODER,
    JOBS,
    LARGE,
    PIECES,
    PLAN_ID,
    REPORT,
    SPEC,
    TEXTS,
    VALIDATION,
    YAML_PIECES,
    places,
    with_key,
    with_piece,
)

from planner.units import MIB

COUNT = 1000
JSON, YAML = "application/json", "application/yaml"
CHECKS, PLANS, VALIDATIONS, JOB = "/v1/checks", "/v1/plans", "/v1/validations", "/v1/jobs/slurm/4711"


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """One request; a job that turns out to be one is not waited for."""

    name: str
    method: str
    path: str
    content_type: str
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """With `Prefer: respond-async` an endpoint answers 202 where a plan would have to be made."""
        return {"Content-Type": self.content_type, "Prefer": "respond-async, wait=0"}


def hostile_requests(count: int = COUNT, seed: int = 9) -> Iterator[HostileRequest]:
    """So many different requests: first those that once did harm, then one piece in one place after the other."""
    seen: set[tuple[str, bytes]] = set()
    yield from itertools.islice(_different(seen, seed), count)


def _different(seen: set[tuple[str, bytes]], seed: int) -> Iterator[HostileRequest]:
    for each in itertools.chain(found_before(), _whole_bodies(), _pieces(random.Random(seed))):
        if (each.path, each.body) not in seen:
            seen.add((each.path, each.body))
            yield each


def found_before() -> Iterator[HostileRequest]:
    """What was found by trying: each froze the service, ended in 500, or was echoed at length."""
    for name, document in _findings():
        text = document if isinstance(document, str) else json.dumps(document)
        for path in (CHECKS, PLANS):
            yield HostileRequest(name, "POST", path, JSON, text.encode("utf-8", "surrogatepass"))
        yield HostileRequest(name, "POST", VALIDATIONS, JSON, b'{"job": %s}' % text.encode("utf-8", "surrogatepass"))
    for name, text in _yaml_findings():
        for path in (CHECKS, PLANS):
            yield HostileRequest(name, "POST", path, YAML, text.encode())
    for name, text in _report_findings():
        yield HostileRequest(name, "PUT", JOB, JSON, text.encode())


def _findings() -> Iterator[tuple[str, Any]]:
    for degree in (2**20 + 1, 2**24, 2**30, 2**40):
        for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep"):
            yield f"{axis} of {degree}", _of_degree(axis, degree)
        sharded = {"degree": degree, "reshard_after_forward": 3}
        yield f"shards of {degree} ranks, gathered to 3", _of_degree("dp_shard", degree, sharded)
    yield "a cp of 2**18 rank classes", _of_degree("cp", 2**18)
    yield "many equal keys", '{"a":' + json.dumps(DECODER) + "," + '"b":1,' * (LARGE // 2) + '"b":2}'
    yield "many keys, and the last one again", "{" + ",".join(f'"k{n}":1' for n in range(LARGE // 2)) + ',"k0":2}'
    long = "9" * 5_000
    yield "an integer in hf_config", with_piece(SPEC, ("model", "hf_config", "num_hidden_layers"), long)
    yield "an integer in the optimizer", with_piece(SPEC, ("train", "optimizer", "lr"), long)
    yield "an integer for the GPU", with_piece(SPEC, ("cluster", "gpu", "total_bytes"), long)
    yield "half of a pair in the name", with_piece(SPEC, ("metadata", "name"), '"\\ud800"')
    yield "half of a pair in the config", with_piece(SPEC, ("model", "hf_config", "model_type"), '"\\ud800"')
    yield "half of a pair as a key", with_key(SPEC, ("model", "hf_config"), '"\\udc00"')
    yield "a CUDA of 5,000 digits", with_piece(SPEC, ("software", "cuda"), f'"1{long}.0"')
    for megabytes in ("9999999999", str(2**64), long[:900]):
        conf = f'"large_segment_size_mb:{megabytes}"'
        yield (
            f"segments of {megabytes[:20]} MB",
            with_piece(DECODER | {"allocator": {"conf": ""}}, ("allocator", "conf"), conf),
        )
    yield "an unknown key of 400 KB", with_key(SPEC, (), '"' + "k" * 400_000 + '"')
    yield "a GPU's name of 400 KB", with_piece(DECODER, ("cluster", "gpu"), '"' + "H100" * LARGE + '"')
    yield "a schedule of 400 KB", with_piece(SPEC, ("parallel", "pp", "schedule"), '"' + "F" * 400_000 + '"')
    yield (
        "a long key above many values",
        with_piece(SPEC, ("model", "hf_config", "text_config"), '{"' + "k" * LARGE + '":[' + "0," * LARGE + "0]}"),
    )


def _of_degree(axis: str, degree: int, written: Any = None) -> dict[str, Any]:
    parallel = {axis: degree if written is None else written}
    return {**DECODER, "parallel": parallel, "cluster": {**DECODER["cluster"], "nodes": degree}}


def _yaml_findings() -> Iterator[tuple[str, str]]:
    for name, number in (("hexadecimal", "0x" + "f" * 5_000), ("octal", "0o" + "7" * 6_000)):
        yield f"{name} digits in hf_config", with_piece(SPEC, ("model", "hf_config", "hidden_size"), number)
        yield f"{name} digits for the GPU", with_piece(SPEC, ("cluster", "gpu", "total_bytes"), number)
    yield "open brackets", "[" * 200_000
    yield "open braces", "{" * 200_000
    yield "merges of many mappings", "a: {<<: [" + ",".join(f"{{k{n}: 1}}" for n in range(20_000)) + "]}"
    yield "many merges in one mapping", "a:\n" + "".join(f"  <<: {{k{n}: 1}}\n" for n in range(15_000))
    yield "an escape of no character", 'metadata: {name: "\\UFFFFFFFF"}'
    yield "a version of many digits", "%YAML 1." + "9" * 5_000 + "\n---\na: 1"
    yield "many values", "a: [" + "1," * 120_000 + "1]"
    yield "many comments", "# x\n" * 60_000
    yield "many documents", "---\n" * 60_000
    yield "many tags", "".join(f"%TAG !a{n}! x\n" for n in range(15_000)) + "---\na: 1"


def _report_findings() -> Iterator[tuple[str, str]]:
    for moment in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1600-01-01T00:00:00Z", "20260101"):
        yield f"a start at {moment}", with_piece(REPORT, ("started_at",), f'"{moment}"')
        yield f"an end at {moment}", with_piece(REPORT, ("ended_at",), f'"{moment}"')
    for count in (2**42 + 1, 2**62, 2**63, 2**64, "9" * 5_000):
        yield f"{str(count)[:20]} bytes", with_piece(REPORT, ("measured", 0, "device_bytes"), str(count))
        yield f"rank {str(count)[:20]}", with_piece(REPORT, ("measured", 0, "rank"), str(count))
    yield "the same rank 4,096 times", json.dumps({**REPORT, "measured": REPORT["measured"] * 4_096})


def _whole_bodies() -> Iterator[HostileRequest]:
    texts = (
        "[" * LARGE, '{"a":' * LARGE, "9" * LARGE, '"' + "x" * LARGE, "{" + '"a":{},' * LARGE,
        "[" + "[]," * (2 * LARGE),
        "[" + "0," * (MIB) + "0]", '"' + "\\" * LARGE, " " * MIB + "x", "nul", "tru", "-", '{"schema": 1}', "{}",
    )  # fmt: skip
    for number, text in enumerate(texts):
        for method, path in (("POST", CHECKS), ("POST", VALIDATIONS), ("PUT", JOB)):
            yield HostileRequest(f"whole body {number}", method, path, JSON, text.encode())
        yield HostileRequest(f"whole body {number}", "POST", CHECKS, YAML, text.encode())
    for method, path in (("POST", CHECKS), ("POST", VALIDATIONS), ("PUT", JOB)):
        yield HostileRequest("bytes that are not text", method, path, JSON, b'{"a": "\xff\xfe"}')
        yield HostileRequest("the largest body", method, path, JSON, b'{"a": [' + b"1," * (3 * MIB) + b"1]}")
        yield HostileRequest("another content type", method, path, "text/plain", b"{}")


def _pieces(chance: random.Random) -> Iterator[HostileRequest]:
    """Without end."""
    documents = [(CHECKS, "POST", job) for job in JOBS] + [(VALIDATIONS, "POST", VALIDATION), (JOB, "PUT", REPORT)]
    while True:
        path, method, document = chance.choice(documents)
        as_yaml = path == CHECKS and chance.random() < 0.3
        where = chance.choice(list(places(document)))
        if chance.random() < 0.1:
            mappings = [(), *(each for each in places(document) if isinstance(_at(document, each), dict))]
            text = with_key(
                document, chance.choice(mappings), chance.choice([each for each in TEXTS if len(each) < LARGE])
            )
        else:
            text = with_piece(document, where, chance.choice(YAML_PIECES if as_yaml else PIECES))
        name = f"{path}: {'.'.join(map(str, where))}"
        yield HostileRequest(name, method, path, YAML if as_yaml else JSON, text.encode("utf-8", "surrogatepass"))


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


__all__ = ["COUNT", "PLAN_ID", "HostileRequest", "found_before", "hostile_requests"]
