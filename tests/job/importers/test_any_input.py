"""Whatever files and lines hold, they are adopted or refused in words: nothing ends in a traceback."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import soak
from hypothesis import given, settings
from hypothesis import strategies as st
from importing_folder import Folder

from planner.errors import SpecError
from planner.job.importers.key_tables import table
from planner.job.importers.training_arguments import TABLES

pytestmark = [pytest.mark.soak] if soak.IS_WHOLE else []
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 9), st.floats(allow_nan=True), st.text(max_size=5),
    st.sampled_from(["auto", "no", "bf16", "fp16", "FSDP", "DEEPSPEED", "MULTI_GPU", "steps", "full_shard", "none"]),
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
)


def likely(*names: str, prefix: str = "") -> st.SearchStrategy[Any]:
    """Values for some of the keys; for many of them the default."""
    known = table(*names).keys
    chosen = st.lists(st.sampled_from([f"{prefix}{name}" for name in known]), max_size=5, unique=True)

    def values(name: str) -> st.SearchStrategy[Any]:
        key = known[name.removeprefix(prefix)]
        usual = st.just(key.only[0] if key.only else key.default)
        return st.one_of(usual, SCALARS, ANYTHING)

    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: values(name) for name in names}))


DEEPSPEED = st.dictionaries(
    st.sampled_from(["bf16", "fp16", "zero_optimization", "optimizer", "gradient_clipping", "train_batch_size"]),
    st.one_of(ANYTHING, st.just({"enabled": "auto"}), st.just({"stage": 2})),
)
ARGUMENTS = st.tuples(
    likely(*TABLES),
    st.one_of(
        st.just({}),
        st.fixed_dictionaries({"fsdp": st.just(True), "fsdp_config": likely("fsdp_config")}),
        st.fixed_dictionaries({"deepspeed": DEEPSPEED}),
        st.fixed_dictionaries({"accelerator_config": likely("accelerator_config")}),
    ),
).map(lambda parts: {**parts[0], **parts[1]})
CONFIG = st.tuples(
    likely("accelerate"),
    st.one_of(
        st.just({}),
        st.fixed_dictionaries(
            {"distributed_type": st.just("FSDP"), "fsdp_config": likely("fsdp_config", prefix="fsdp_")}
        ),
        st.fixed_dictionaries(
            {"distributed_type": st.just("DEEPSPEED"), "deepspeed_config": likely("deepspeed_config")}
        ),
        st.fixed_dictionaries({"parallelism_config": likely("parallelism_config")}),
    ),
).map(lambda parts: {**parts[0], **parts[1]})
LINE = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.one_of(
            st.sampled_from(
                [
                    "torchrun", "accelerate launch", "srun", "python", "--nnodes", "--nproc-per-node=2", "2",
                    "train.py", "--bf16", "--num_processes", "--use_fsdp", "--fsdp", "A=b", "--optim", "-m",
                    "--fsdp_config", "'{}'", "--per_device_train_batch_size", "--", "PYTORCH_ALLOC_CONF=x",
                ]
            ),
            st.text(max_size=5),
        ),
        max_size=9,
    ).map(" ".join),
)  # fmt: skip
SPEC = st.one_of(
    ANYTHING,
    st.dictionaries(
        st.sampled_from(["metadata", "model", "train", "parallel", "cluster", "software", "allocator", "other"]),
        ANYTHING,
    ),
)


@given(
    arguments=st.none() | ARGUMENTS | ANYTHING,
    config=st.none() | CONFIG | ANYTHING,
    deepspeed=st.none() | DEEPSPEED,
    line=st.just("torchrun --nproc-per-node 2 train.py") | LINE,
    spec=st.none() | SPEC,
)
@settings(max_examples=soak.share(300, in_ci=100), deadline=None)
def test_it_is_adopted_or_refused(arguments: Any, config: Any, deepspeed: Any, line: str, spec: Any) -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(Path(path))
        sources = {"training_arguments": arguments, "accelerate": config, "deepspeed": deepspeed, "job": spec}
        written = {
            name: folder.write(f"{name}.json", json.dumps(content))
            for name, content in sources.items()
            if content is not None
        }
        with contextlib.suppress(SpecError):
            folder.import_job(torchrun=line, **written)
