"""Opens a paper GPU: inside `gpu(target, world)` there is a CUDA device, on paper."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from planner import cuda_on_paper, upstream
from planner.hardware.workspaces import WorkspaceTable
from planner.paper import followers, library, torch_cuda, values, work_records
from planner.paper.kernels import (  # noqa: F401
    attention,
    cpu,
    indexing,
    linear_algebra,
    normalization,
    random_numbers,
    recurrent,
    sorting,
    table,
    training_operators,
    workspaces,
)
from planner.paper.recorder import Recorder
from planner.paper.targets import target_of
from planner.paper.work_records import Holding
from planner.upstream import checking, torch_releases

# Registered in native/kernels.cpp or values.py.
_OWN = {
    "_conv_depthwise2d",
    "_fused_sdp_choice",
    "_local_scalar_dense",
    "conv_depthwise3d",
    "convolution_backward",
    "copy_",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "empty.memory_format",
    "empty_strided",
    "record_stream",
    "set_.source_Storage",
    "set_.source_Storage_storage_offset",
    "set_.source_Tensor",
}


_DECIDED_BY_VALUES = {
    "nonzero", "masked_select", "repeat_interleave.Tensor", "_unique", "_unique2", "unique_consecutive", "unique_dim",
    "unique_dim_consecutive", "bincount", "equal",
}  # fmt: skip
"""Operators whose results are numbers of the host, or as large as values say, which nobody has."""


@dataclass(frozen=True, slots=True)
class Paper:
    """A GPU on paper and the recorder that writes down what it is asked for."""

    device: torch.device
    recorder: Recorder
    other_kernels: str = ""
    """A sentence, where the installed torch has none for the GPU."""
    unknown_workspaces = staticmethod(workspaces.met)
    workspace_margin_bytes = staticmethod(workspaces.margin_bytes)
    asked_workspaces = staticmethod(workspaces.asked)

    def counted_workspaces(self) -> tuple[str, ...]:
        """On whose word workspaces are counted, as sentences."""
        return (*workspaces.describe_counted(), *((self.other_kernels,) if self.other_kernels else ()))


_GROUPS_KEEP_SINCE = (2, 8)
"""torch whose groups of NCCL keep tensors (torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp: TensorShelf)."""


@contextmanager
def gpu(
    target: str, gpus: int = 1, cuda: str = "13.0", *, torch_version: str = "", waits: bool = False,
    known: WorkspaceTable | None = None, keeps_requests: bool = False,
) -> Iterator[Paper]:  # fmt: skip
    """A paper GPU of the architecture `target` (`sm_90`, `cpu` for tests).

    `gpus` is how many a node seems to have, of which torch sees no more than it can; `cuda` is the version that torch
    is built for, `torch_version` the one that the job runs with (empty: the installed one); with `waits`, streams and
    events write down where the host waits for them, and are never done before (`Recorder.waits`).
    `known` are measured workspaces, which are counted; with `keeps_requests` all that were asked for are kept.

    Raises TraceError for an unknown architecture, if torch was imported before planner.paper, or if it is not the torch
    that planner knows.
    """
    chosen = target_of(target, torch_version)
    checking.enforce()
    table.choose(chosen)
    if cuda_on_paper.is_on():
        with _gpu_on_cuda(target, _holding_of_nccl(torch_version or torch.__version__), waits=waits) as paper:
            yield paper
        return
    _install()
    workspaces.forget()
    native = library.load()
    visible = native.paper_set_device_count(gpus)
    native.paper_set_workspace_bytes(chosen.workspace_bytes)
    native.paper_set_multiprocessors(chosen.multiprocessors, chosen.threads_per_multiprocessor)
    # The job's, unless this one is too old to run what the job's would choose.
    deciding = torch_version if torch_version and torch_releases.since(*torch_releases.CUDNN_ATTENTION) else ""
    cudnn_first = chosen.prefers_cudnn_attention(cuda, deciding or torch.__version__)
    native.paper_choose_attention_for(*chosen.capability, cudnn_first)
    holding = Holding.NOTHING if chosen.is_cpu else _holding_of_nccl(torch_version or torch.__version__)
    recorder = Recorder(waits=waits, holding=holding)
    measured = workspaces.known(known, recorder.now if keeps_requests else None)
    with measured, torch_cuda.answering(chosen, visible, recorder):
        recorder.start()
        try:
            yield Paper(torch.device("cuda", 0), recorder)
        finally:
            recorder.stop()
            native.paper_set_workspace_bytes(0)
            # Autograd's device thread gives up its last graph under the GIL: now, and not while Python shuts down.
            recorder.settle()


def _holding_of_nccl(torch_version: str) -> Holding:
    release = tuple(map(int, torch_version.split(".")[:2]))
    return Holding.KEEPS if release >= _GROUPS_KEEP_SINCE else Holding.USES


@contextmanager
def _gpu_on_cuda(target: str, holding: Holding, *, waits: bool) -> Iterator[Paper]:
    """As :func:`gpu`, where torch's own CUDA code allocates."""
    native = library.load()
    _install_on_cuda()
    native.paper_begin_on_cuda()
    torch._C._cuda_clearCublasWorkspaces()  # of what this process traced before
    recorder = Recorder(waits=waits, holding=holding)
    recorder.start()
    queries = {"torch.cuda.streams:Event.query": lambda _event: not recorder.waits}
    with upstream.patch_targets("events", replaced=queries):
        try:
            yield Paper(torch.device("cuda", 0), recorder, cuda_on_paper.describe_other_kernels(target))
        finally:
            recorder.stop()
            recorder.settle()


@cache
def _install_on_cuda() -> torch.library.Library:
    library.load().paper_install_on_cuda()
    table.install(_DECIDED_BY_VALUES)
    values.install_composites()
    own = _answer_reads()
    own.impl("follow", followers.follow, "CUDA")
    return own


def _answer_reads() -> torch.library.Library:
    own = torch.library.Library("paper", "FRAGMENT")
    own.impl("read_value", values.read, "CUDA")
    own.impl("read_to_host", values.copy_to_host, "CUDA")
    own.impl("draw", random_numbers.draw, "CUDA")
    return own


@cache
def _install() -> torch.library.Library:
    """Once for the process: kernels for everything that CUDA has one for. What is returned has to stay."""
    native = library.load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        native.paper_install_device()  # again: a CUDA build of torch has put its own in its place while it was imported
        native.paper_install_kernels()
        operators = list(_operators_of_cuda())
        for operator in operators:
            if operator not in _OWN:
                native.paper_prefer_meta(operator.encode())
        work_records.expect_kernels([*operators, *_OWN, *table.operators()])
        table.install()
        native.paper_install_reductions()
        values.install_composites()
    return _answer_reads()


def _operators_of_cuda() -> Iterator[str]:
    """Operators with a kernel of their own on CUDA, from the operator list that torch ships (torchgen)."""
    spec = importlib.util.find_spec("torchgen")
    if spec is None or spec.origin is None:
        return
    text = (Path(spec.origin).parent / "packaged/ATen/native/native_functions.yaml").read_text()
    for entry in re.split(r"\n(?=- func: )", text):
        name = re.match(r"- func: ([\w.:]+)\(", entry)
        if name is None:
            continue
        dispatch = re.search(r"\n  dispatch:\n((?:    .*\n?)*)", entry)
        keys = re.findall(r"^    ([\w, ]+):", dispatch[1], re.MULTILINE) if dispatch else []
        on_cuda = any(key.strip() == "CUDA" for line in keys for key in line.split(","))
        if on_cuda or "structured_delegate" in entry or "ufunc_inner_loop" in entry:
            yield name[1]
