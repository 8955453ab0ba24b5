"""Builds and loads the native part of the paper GPU: a few hundred lines of C++ against torch's own headers.

CUDA's hooks are looked up once, while torch is imported, so the library has to be in the process before torch.
It is built on first use, by the C++ compiler of the machine, and kept in the user's cache for this torch.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE
from typing import Any

from planner import cuda_on_paper
from planner.cuda_on_paper.libraries import header_folders
from planner.errors import TraceError
from planner.runtime.native_builds import build_once, find_compiler, find_torch

_SOURCES = Path(__file__).parent / "native"
_SOURCES_ON_CUDA = Path(__file__).parent / "native_cuda"
_LIBRARY = "libpaper.so"
_SHARED = (
    "autograd", "blocks", "copied_values", "followed_operators", "host_memory", "host_values",
    "launches", "trace", "witness", "workspaces",
)  # fmt: skip
"""Of the sources those that write down what torch's own CUDA code does, too."""
_MOST_UNITS = 4
"""Of translation, compiled side by side: torch's headers take most of a compiler's time, and each reads them once."""
_TORCH_LIBRARIES = ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so")
# c10/util/Registry.h
_SKIPPED = "Higher priority item already registered"
_loaded: ctypes.CDLL | None = None


def load() -> ctypes.CDLL:
    """Load the native library, building it when this torch has none yet.

    Raises TraceError if torch is missing, was imported before, or no compiler is there to build with.
    """
    global _loaded
    if _loaded is not None:
        return _loaded
    if "torch" in sys.modules:
        raise TraceError(
            "torch was imported before the paper GPU",
            allowed="planner.paper is the first to import torch in its process",
            remedy="import planner.paper before torch",
        )
    torch_folder = find_torch()
    if cuda_on_paper.is_wanted() and not cuda_on_paper.is_on():
        cuda_on_paper.load()
    path = _build_library(torch_folder)
    for name in _TORCH_LIBRARIES:
        ctypes.CDLL(str(torch_folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    if cuda_on_paper.is_on():
        importlib.import_module("torch")
    _loaded = ctypes.CDLL(str(path))
    # ctypes takes every result for an int unless told otherwise.
    for result, names in _RESULTS.items():
        for name in names.split():
            if hasattr(_loaded, f"paper_{name}"):
                getattr(_loaded, f"paper_{name}").restype = result
    for name, arguments in _ARGUMENTS.items():
        if hasattr(_loaded, f"paper_{name}"):
            getattr(_loaded, f"paper_{name}").argtypes = arguments
    if not cuda_on_paper.is_on():
        _loaded.paper_install_device()
        _import_torch()
    return _loaded


_RESULTS: dict[Any, str] = {
    None: "ask_for_workspaces clear_workspaces enter_launch expect_kernel expect_workspace_config host_stop keep"
    " launch leave_launch note_launch release use write_zeros",
    ctypes.c_char_p: "host_record_format launch_format name record_format unknown_workspaces",
    ctypes.c_int64: "allocated_bytes block_at born_alive count cudnn_version first_timed_free host_block_at host_count"
    " kernel_table_length launch_count most_allocated_bytes new_event requested_bytes rnn_mode shape_count"
    " workspace_bytes",
    ctypes.c_void_p: "host_records kernel_table launches records shapes",
}
_ARGUMENTS: dict[str, list[Any]] = {
    "attest": [ctypes.c_char_p, ctypes.c_int64],
    "block_at": [ctypes.c_void_p],
    "born_alive": [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64],
    "close_pool": [ctypes.c_int64],
    "expect_kernel": [ctypes.c_char_p],
    "forbid_storage": [ctypes.c_void_p, ctypes.c_char_p],
    "free_memory_of": [ctypes.c_void_p],
    "host_block_at": [ctypes.c_void_p],
    "host_start": [ctypes.c_int64],
    "keep": [ctypes.c_int64, ctypes.c_int64],
    "kind": [ctypes.c_char_p],
    "launch": [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32],
    "name_index": [ctypes.c_char_p],
    "note_launch": [ctypes.c_int32, ctypes.c_int32, ctypes.c_int64],
    "open_pool": [ctypes.c_int64, ctypes.c_int32],
    "operator_of": [ctypes.c_int64],
    "prefer_meta": [ctypes.c_char_p],
    "release": [ctypes.c_int64],
    "resize_storage": [ctypes.c_void_p, ctypes.c_int64],
    "rnn_mode": [ctypes.c_char_p],
    "seal": [ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p],
    "set_multiprocessors": [ctypes.c_int64, ctypes.c_int64],
    "set_workspace_bytes": [ctypes.c_int64],
    "use": [ctypes.c_int64, ctypes.c_int32],
    "workspace_is_unknown": [ctypes.c_char_p],
    "write_zeros": [ctypes.c_void_p],
}


def _import_torch() -> None:
    """A CUDA build of torch finds its places in the registries taken, and says so on standard error."""
    with tempfile.TemporaryFile() as output:
        before = os.dup(2)
        os.dup2(output.fileno(), 2)
        try:
            importlib.import_module("torch")
        finally:
            os.dup2(before, 2)
            os.close(before)
            output.seek(0)
            rest = [line for line in output.read().decode(errors="replace").splitlines() if _SKIPPED not in line]
            if rest:
                print("\n".join(rest), file=sys.stderr)


def _build_library(torch_folder: Path) -> Path:
    on_cuda = cuda_on_paper.is_on()
    folders = (_SOURCES, _SOURCES_ON_CUDA, Path(cuda_on_paper.__file__).parent) if on_cuda else (_SOURCES,)
    found = [path for folder in folders for path in sorted(folder.iterdir()) if path.suffix in (".cpp", ".h")]
    sources = {path: path.read_bytes() for path in found}
    digest = hashlib.sha256(f"{importlib.metadata.version('torch')} NDEBUG {_SHARED if on_cuda else ()}".encode())
    for content in sources.values():
        digest.update(hashlib.sha256(content).digest())
    built = [path for path in sources if path.suffix == ".cpp" and _is_built(path)]
    name = f"paper-{digest.hexdigest()[:16]}"
    return build_once(name, _LIBRARY, lambda folder: _build(built, torch_folder, folder / _LIBRARY)) / _LIBRARY


def _is_built(source: Path) -> bool:
    if not cuda_on_paper.is_on():
        return True
    return source.parent == _SOURCES_ON_CUDA or (source.parent == _SOURCES and source.stem in _SHARED)


def _build(sources: list[Path], torch_folder: Path, library: Path) -> None:
    compiler = find_compiler("the paper GPU")
    print("building the paper GPU for this torch (once, under a minute)", file=sys.stderr)
    # What torch's CMake package tells whoever links with it: 2.6 for CUDA 12.4 has the older `std::string`.
    cmake = torch_folder / "share/cmake/Torch/TorchConfig.cmake"
    abi = re.findall(r"-D_GLIBCXX_USE_CXX11_ABI=\d", cmake.read_text()) if cmake.exists() else []
    # The headers of all operators take longer to read than everything else: those that are needed are named.
    # NDEBUG as torch itself is built: its headers have members that only debug builds set.
    flags = [
        "-std=c++20",
        "-O1",
        "-fPIC",
        "-DNDEBUG",
        "-DAT_PER_OPERATOR_HEADERS",
        f"-I{torch_folder / 'include'}",
        *abi,
    ]
    libraries = ["-lc10", "-ltorch_cpu"]
    if cuda_on_paper.is_on():
        headers = (_SOURCES, Path(cuda_on_paper.__file__).parent, *header_folders(torch_folder))
        flags += [f"-I{folder}" for folder in headers]
        libraries += ["-lc10_cuda", "-ltorch_cuda"]
    parts: list[list[Path]] = [[] for _ in range(min(len(os.sched_getaffinity(0)), _MOST_UNITS))]
    for source in sorted(sources, key=lambda path: path.stat().st_size, reverse=True):
        min(parts, key=lambda part: sum(path.stat().st_size for path in part)).append(source)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        units = [Path(folder) / f"unit_{number}.cpp" for number in range(len(parts))]
        for unit, part in zip(units, parts, strict=True):
            unit.write_text("".join(f'#include "{source}"\n' for source in part))
        running = [
            subprocess.Popen([compiler, *flags, "-c", str(unit), "-o", str(unit.with_suffix(".o"))], stderr=PIPE)
            for unit in units
        ]
        problems = [process.communicate()[1].decode(errors="replace").strip() for process in running]
        if any(process.returncode for process in running):
            problem = "\n".join(problems).strip()
            raise TraceError(f"the paper GPU does not build with {compiler} for this torch:\n{problem}")
        objects = [str(unit.with_suffix(".o")) for unit in units]
        fresh = Path(folder) / _LIBRARY
        link = [compiler, "-shared", *objects, f"-L{torch_folder}/lib", *libraries]
        subprocess.run([*link, "-o", str(fresh)], check=True)
        fresh.replace(library)
