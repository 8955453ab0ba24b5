"""A package `torch` of a few lines whose CUDA figures a program sets itself, and a `torchrun` that starts ranks."""

from __future__ import annotations

import sys
from pathlib import Path

_TORCH = """
from types import SimpleNamespace
__version__ = "2.9.1+cu128"
version = SimpleNamespace(cuda="12.8")
import torch.cuda
"""
CUDA = '''
from types import SimpleNamespace
_NAMES = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
_now, _peak, _queued = {}, {}, []
def is_initialized(): return bool(_now)
def device_count(): return 1
def _lazy_call(call): _queued.append(call)
def take(allocated, reserved):
    """What a program's tensors would have taken."""
    if not _now:
        _now["allocated_bytes"] = 0
        for call in _queued: call()
    for name in _NAMES:
        _now[name] = reserved if name == "reserved_bytes" else allocated
        _peak[name] = max(_peak.get(name, 0), _now[name])
def memory_stats(device=0):
    return {f"{n}.all.peak": v for n, v in _peak.items()} | {f"{n}.all.current": v for n, v in _now.items()}
def reset_peak_memory_stats(device=None): _peak.update(_now)
def get_device_properties(device):
    return SimpleNamespace(
        name="NVIDIA A100-SXM4-40GB", total_memory=40 << 30, uuid="0", major=8, minor=0, multi_processor_count=108
    )
def _dump(path):
    with open(path, "w") as file: file.write("history")
memory = SimpleNamespace(_record_memory_history=lambda **_: None, _dump_snapshot=_dump)
'''
_TORCHRUN = """#!{python}
import os, subprocess, sys
count, program = int(sys.argv[2]), sys.argv[3:]
started = [
    subprocess.Popen([sys.executable, *program], env={{**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count)}})
    for rank in range(count)
]
sys.exit(max(abs(each.wait()) for each in started))
"""


def write_in(folder: Path) -> dict[str, str]:
    """Writes both, and returns the variables with which a program finds them before any other."""
    package, programs = folder / "site" / "torch" / "cuda", folder / "bin"
    package.mkdir(parents=True)
    programs.mkdir()
    (package.parent / "__init__.py").write_text(_TORCH)
    (package / "__init__.py").write_text(CUDA)
    launcher = programs / "torchrun"
    launcher.write_text(_TORCHRUN.format(python=sys.executable))
    launcher.chmod(0o755)
    return {"PYTHONPATH": str(folder / "site"), "PATH": f"{programs}:/usr/bin:/bin"}
