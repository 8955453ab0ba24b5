"""Valid documents with hostile pieces in the place of their values: JSON and YAML texts, the same ones each time."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

SPEC: dict[str, Any] = {
    "metadata": {"name": "sft", "team": "nlp", "queue": "h100"},
    "model": {
        "hf_config": {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "text_config": {"a": 1}},
        "head": "causal_lm",
        "blocks": "model.layers.*",
        "adapter": {"kind": "lora", "r": 8, "target_modules": ["q_proj"]},
    },
    "train": {
        "micro_batch_size": 1,
        "sequence_length": 64,
        "gradient_accumulation_steps": 8,
        "optimizer": {"name": "AdamW", "lr": 0.1, "betas": [0.9, 0.99]},
        "recompute": {"every": 2},
        "loss": {"name": "cross_entropy", "chunks": 2},
        "gradient_clipping": 1.0,
        "iterations": 3,
        "eval": {"micro_batch_size": 2, "every": 10},
    },
    "parallel": {
        "dp_replicate": {"degree": 1, "bucket_cap_mb": 25},
        "dp_shard": {"degree": 4, "reshard_after_forward": 2, "groups": ["embed"]},
        "tp": {"degree": 1},
        "pp": {"degree": 1, "schedule": "1F1B", "split": [4]},
        "cp": {"degree": 1},
        "ep": {"degree": 1, "imbalance": 1.0},
    },
    "cluster": {"nodes": 1, "gpus_per_node": 4, "gpu": {"total_bytes": "79GiB", "arch": "sm_90"}},
    "software": {"torch": "2.13", "cuda": "13.0"},
    "allocator": {"conf": "max_split_size_mb:128"},
}
DECODER: dict[str, Any] = {
    "model": {"decoder": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 256}},
    "train": {"micro_batch_size": 2, "sequence_length": 64, "gradient_accumulation_steps": 8},
    "parallel": {"pp": {"degree": 1}, "cp": {"degree": 1}, "tp": {"degree": 1}, "dp_shard": {"degree": 1}},
    "cluster": {"nodes": 1, "gpus_per_node": 1, "gpu": "H100-SXM-80GB"},
}
TRAINER: dict[str, Any] = {
    "model": {"hf_config": SPEC["model"]["hf_config"]},
    "train": {"sequence_length": 64},
    "trainer": {
        "arguments": {
            "per_device_train_batch_size": 2,
            "deepspeed": {
                "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "offload_optimizer": {"device": "cpu"}},
                "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
            },
        },
        "accelerate": {"parallelism_config": {"parallelism_config_tp_size": 2}},
        "peft": {"peft_type": "LORA", "target_modules": ["q_proj"]},
    },
    "cluster": {"gpus_per_node": 2, "gpu": "H100-SXM-80GB"},
}
JOBS = (SPEC, DECODER, TRAINER)

PLAN_ID = "pl-" + "a" * 26
REPORT: dict[str, Any] = {
    "schema": "planner.job/1", "plan_id": PLAN_ID, "team": "nlp", "queue": "h100", "hosts": ["node-17"],
    "gpu_uuids": ["GPU-5c"], "started_at": "2026-01-02T03:04:05Z", "ended_at": None, "outcome": "",
    "failure": "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0.",
    "measured": [{"rank": 0, "host": "node-17", "allocated_bytes": 1024, "reserved_bytes": 2048, "device_bytes": None}],
    "ranks": [{"rank": 0, "host": "a", "steps": 3, "peak": {"allocated_bytes": 1}, "gpu": {"uuid": "x"}}],
}  # fmt: skip
VALIDATION: dict[str, Any] = {"job": DECODER, "ranks": [0], "mode": "absent_peers", "device": "cpu"}

LARGE = 100_000
"""Characters or values of a piece: far above what a person writes, far below what a service takes."""
NUMBERS = (
    "0", "-1", "1.5", "true", "false", "null", str(2**20), str(2**24), str(2**30), str(2**31), str(2**40), str(2**53),
    str(2**63), str(2**64), str(2**128), str(2**128 + 1), "9" * 400, "9" * 4_300, "9" * 5_000, "-" + "9" * 5_000,
    "1e400", "-1e400", "1e-400", "1e308", "0." + "1" * 5_000,
)  # fmt: skip
TEXTS = (
    '""', '"auto"', '"\\u0000"', '"\\ud800"', '"a\\udfffb"', '"\\u2028\\u0085"', '"\\ud83d\\ude00"', '"../secret"',
    '"' + "x" * LARGE + '"', '"1' + " " * LARGE + '!"', '"1.' + "1" * 5_000 + ' "', '"' + "9" * 5_000 + '"',
    '"large_segment_size_mb:9999999999"', '"max_split_size_mb:' + "9" * 900 + '"',
    '"roundup_power2_divisions:[' + "1:2," * 200 + ']"',
    '"expandable_segments:True,garbage_collection_threshold:nan"', '"' + "a:b," * 240 + '"', '"' + "[" * 900 + '"',
    '"' + "\\u00e9" * 20_000 + '"', '"' + "\\ud83d\\ude00" * 10_000 + '"',
)  # fmt: skip
SHAPES = (
    "[]", "{}", "[[]]", '{"": {}}', '{"a": 1, "a": 2}', "[" * 90 + "]" * 90, "[" * 3_000, '{"a":' * 90 + "1" + "}" * 90,
    "[" + "0," * 20_000 + "0]", "[" + "[]," * 20_000 + "[]]", '{"__float__": "Infinity"}', '{"__float__": []}',
    "{" + ",".join(f'"{n}":0' for n in range(10_000)) + "}",
    "{" + ",".join(f'"{n}":0' for n in range(10_000)) + ',"0":1}',
    "{" + '"a":0,' * 10_000 + '"a":0}', '{"' + "k" * 50_000 + '": [' + "0," * 10_000 + "0]}", '["a", 1, null, [], {}]',
)  # fmt: skip
PIECES = (*NUMBERS, *TEXTS, *SHAPES)
"""As JSON writes them, or something like it."""
YAML_PIECES = (
    *PIECES, "0x" + "f" * 5_000, "0o" + "7" * 5_000, "0xffffffffffffffff", "1_000_000", ".inf", ".nan", "2026-01-01",
    "&a [*a]", "*nowhere", "!!python/name:os.system ''", "!!binary aGk=", "!<" + "x" * 1_000 + "> 1", "|\n  x", "? a",
    "{<<: [" + ",".join(f"{{k{n}: 1}}" for n in range(2_000)) + "]}", "{<<: 1}", '"\\UFFFFFFFF"', '"\\xff"', "~",
    "'" + "''" * 5_000 + "'",
    "{" + ",".join(f"a{n}: &a{n} [" + (f"*a{n - 1}," * 9 if n else "1") + "]" for n in range(12)) + "}",
    "[" * 1_500, "{" * 1_500, "[" + "? ," * 3_000 + "]", "no", "010", "1e999", "@", "%", "`", "\t", "- - - - 1",
)  # fmt: skip

_MARK = "\0place\0"


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value but the whole, in the order in which they stand."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def with_piece(document: dict[str, Any], path: tuple[Any, ...], piece: str) -> str:
    """The document as JSON text, with the piece where the path leads; a JSON text is YAML as well."""
    changed = copy.deepcopy(document)
    *above, last = path
    found: Any = changed
    for key in above:
        found = found[key]
    found[last] = _MARK
    return json.dumps(changed).replace(json.dumps(_MARK), piece)


def with_key(document: dict[str, Any], path: tuple[Any, ...], key: str) -> str:
    """The document as JSON text, with one more key in the mapping where the path leads; `key` as JSON writes it."""
    changed = copy.deepcopy(document)
    found: Any = changed
    for each in path:
        found = found[each]
    found[_MARK] = 1
    return json.dumps(changed).replace(json.dumps(_MARK), key)
