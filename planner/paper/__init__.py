"""The paper GPU: a CUDA device whose tensors have shapes, storages, streams and lifetimes, but no bytes.

PyTorch's own code runs on it unchanged, for any rank of any world, and every allocation is written down; it
never computes a value, never measures anything, and never appears in a process that uses a real GPU.
`planner.planning` enters it through :func:`gpu`; it must be imported before torch.
"""

from planner.paper import library

library.load()

from planner.paper.device import Paper, gpu, prepare  # noqa: E402

__all__ = ["Paper", "gpu", "prepare"]
