"""Builds and loads the native part of the paper GPU: C++ against torch's headers, which records what torch asks for.

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
from planner.cuda_on_paper.libraries import build_once, find_compiler, find_torch, header_folders
from planner.errors import TraceError

_SOURCES = Path(__file__).parent / "native"
_HEADERS = _SOURCES, Path(cuda_on_paper.__file__).parent
_LIBRARY = "libpaper.so"
_MOST_UNITS = 4
"""Of translation, compiled side by side: torch's headers take most of a compiler's time, and each reads them once."""
_TORCH_LIBRARIES = ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so")
_loaded: ctypes.CDLL | None = None


def load() -> ctypes.CDLL:
    """Load the native library, building it when this torch has none yet; torch is imported, and finds CUDA on paper.

    Raises TraceError if torch is missing, not a CUDA build or imported before, or if no compiler is there.
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
    cuda_on_paper.load()
    path = _build_library(torch_folder)
    for name in _TORCH_LIBRARIES:
        ctypes.CDLL(str(torch_folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    importlib.import_module("torch")
    _loaded = ctypes.CDLL(str(path))
    # ctypes takes every result for an int unless told otherwise.
    for result, names in _RESULTS.items():
        for name in names.split():
            getattr(_loaded, f"paper_{name}").restype = result
    for name, arguments in _ARGUMENTS.items():
        getattr(_loaded, f"paper_{name}").argtypes = arguments
    return _loaded


_RESULTS: dict[Any, str] = {
    None: "adopt_block begin enter_launch host_stop install keep launch leave_launch note_launch release use"
    " workspace_is_unknown write_zeros",
    ctypes.c_bool: "computes_values write_again",
    ctypes.c_char_p: "host_record_format name operators_at_work refused_function unknown_workspaces",
    ctypes.c_int64: "allocated_bytes block_at born_alive count first_timed_free host_block_at host_count"
    " kernel_table_length launch_count most_allocated_bytes new_event shape_count",
    ctypes.c_void_p: "host_records kernel_table launches records shapes",
}
_ARGUMENTS: dict[str, list[Any]] = {
    "adopt_block": [ctypes.c_int64],
    "block_at": [ctypes.c_void_p],
    "born_alive": [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64],
    "host_block_at": [ctypes.c_void_p],
    "host_start": [ctypes.c_int64],
    "keep": [ctypes.c_int64, ctypes.c_int64],
    "launch": [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32],
    "name_index": [ctypes.c_char_p],
    "note_launch": [ctypes.c_int32, ctypes.c_int32, ctypes.c_int64],
    "operator_of": [ctypes.c_int64],
    "release": [ctypes.c_int64],
    "use": [ctypes.c_int64, ctypes.c_int32],
    "workspace_is_unknown": [ctypes.c_char_p],
    "write_again": [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
    ],
    "write_zeros": [ctypes.c_void_p],
}


def _build_library(torch_folder: Path) -> Path:
    paths = [path for folder in _HEADERS for path in sorted(folder.iterdir()) if path.suffix in (".cpp", ".h")]
    digest = hashlib.sha256(f"{importlib.metadata.version('torch')} NDEBUG".encode())
    for path in paths:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    sources = sorted(_SOURCES.glob("*.cpp"))
    name = f"paper-{digest.hexdigest()[:16]}"
    return build_once(name, _LIBRARY, lambda folder: _build(sources, torch_folder, folder / _LIBRARY)) / _LIBRARY


def _build(sources: list[Path], torch_folder: Path, library: Path) -> None:
    compiler = find_compiler("the paper GPU")
    print("building the paper GPU for this torch (once, under a minute)", file=sys.stderr)
    # What torch's CMake package says for linking with it: 2.6 for CUDA 12.4 has the older `std::string`.
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
    flags += [f"-I{folder}" for folder in (*_HEADERS, *header_folders(torch_folder))]
    libraries = ["-lc10", "-ltorch_cpu", "-lc10_cuda", "-ltorch_cuda"]
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
