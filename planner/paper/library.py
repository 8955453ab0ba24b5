"""Builds and loads the native part of the paper GPU: a few hundred lines of C++ against torch's own headers.

CUDA's hooks are looked up once, while torch is imported, so the library has to be in the process before torch.
It is built on first use, by the C++ compiler of the machine, and kept in the user's cache for this torch.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE

from planner.distribution import install_command
from planner.errors import TraceError
from planner.runtime.user_cache import user_cache

_SOURCES = Path(__file__).parent / "native"
_MOST_UNITS = 4
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
    torch_folder = _torch_folder()
    path = _build_library(torch_folder)
    for name in _TORCH_LIBRARIES:
        ctypes.CDLL(str(torch_folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    _loaded = ctypes.CDLL(str(path))
    _declare(_loaded)
    _loaded.paper_install_device()
    _import_torch()
    return _loaded


def _import_torch() -> None:
    """A CUDA build of torch finds its places in the registries taken, and says so on standard error."""
    with tempfile.TemporaryFile() as said:
        before = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            importlib.import_module("torch")
        finally:
            os.dup2(before, 2)
            os.close(before)
            said.seek(0)
            rest = [line for line in said.read().decode(errors="replace").splitlines() if _SKIPPED not in line]
            if rest:
                print("\n".join(rest), file=sys.stderr)


def _torch_folder() -> Path:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise TraceError("torch is not installed", remedy=install_command("plan"))
    return Path(found.origin).parent


def _build_library(torch_folder: Path) -> Path:
    sources = {path: path.read_bytes() for path in sorted(_SOURCES.iterdir()) if path.suffix in (".cpp", ".h")}
    folder = user_cache() / f"paper-{_digest(*sources.values())}"
    library = folder / "libpaper.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it: its library is as good as ours
        if not library.exists():
            _build([path for path in sources if path.suffix == ".cpp"], torch_folder, library)
    return library


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256(importlib.metadata.version("torch").encode())
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


def _build(sources: list[Path], torch_folder: Path, library: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise TraceError(
            "the paper GPU has to be built once for this torch, and there is no C++ compiler",
            allowed="g++ or clang++ on the PATH, or the one that CXX names",
            remedy="install g++ (Debian: apt-get install g++)",
        )
    print("building the paper GPU for this torch (once, under a minute)", file=sys.stderr)
    include = torch_folder / "include"
    # The headers of all operators take longer to read than everything else: those that are needed are named.
    flags = ["-std=c++20", "-O1", "-fPIC", "-DAT_PER_OPERATOR_HEADERS", f"-I{include}", *_flags_of(torch_folder)]
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        units = _write_units(sources, Path(folder))
        running = [
            subprocess.Popen([compiler, *flags, "-c", str(unit), "-o", str(unit.with_suffix(".o"))], stderr=PIPE)
            for unit in units
        ]
        problems = [process.communicate()[1].decode(errors="replace").strip() for process in running]
        if any(process.returncode for process in running):
            problem = "\n".join(problems).strip()
            raise TraceError(f"the paper GPU does not build with {compiler} for this torch:\n{problem}")
        objects = [str(unit.with_suffix(".o")) for unit in units]
        fresh = Path(folder) / "libpaper.so"
        link = [compiler, "-shared", *objects, f"-L{torch_folder}/lib", "-lc10", "-ltorch_cpu"]
        subprocess.run([*link, "-o", str(fresh)], check=True)
        fresh.replace(library)


def _flags_of(torch_folder: Path) -> list[str]:
    """What torch's CMake package tells whoever links with it: 2.6 for CUDA 12.4 has the older `std::string`."""
    told = torch_folder / "share/cmake/Torch/TorchConfig.cmake"
    return re.findall(r"-D_GLIBCXX_USE_CXX11_ABI=\d", told.read_text()) if told.exists() else []


def _write_units(sources: list[Path], folder: Path) -> list[Path]:
    """As many translation units as processors, of about equal size, that take in the sources.

    Torch's headers take most of a compiler's time, and each unit reads them once.
    """
    parts: list[list[Path]] = [[] for _ in range(min(len(os.sched_getaffinity(0)), _MOST_UNITS))]
    for source in sorted(sources, key=lambda path: path.stat().st_size, reverse=True):
        min(parts, key=lambda part: sum(path.stat().st_size for path in part)).append(source)
    units = [folder / f"unit_{number}.cpp" for number in range(len(parts))]
    for unit, part in zip(units, parts, strict=True):
        unit.write_text("".join(f'#include "{source}"\n' for source in part))
    return units


def _declare(native: ctypes.CDLL) -> None:
    """ctypes takes every result for an int unless told otherwise."""
    native.paper_count.restype = ctypes.c_int64
    native.paper_attest.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    native.paper_seal.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p]
    native.paper_cudnn_version.restype = ctypes.c_int64
    native.paper_kind.argtypes = [ctypes.c_char_p]
    native.paper_record_format.restype = ctypes.c_char_p
    native.paper_requested_bytes.restype = ctypes.c_int64
    native.paper_rnn_mode.restype = ctypes.c_int64
    native.paper_rnn_mode.argtypes = [ctypes.c_char_p]
    native.paper_records.restype = ctypes.c_void_p
    native.paper_shape_count.restype = ctypes.c_int64
    native.paper_shapes.restype = ctypes.c_void_p
    native.paper_name.restype = ctypes.c_char_p
    native.paper_block_at.restype = ctypes.c_int64
    native.paper_block_at.argtypes = [ctypes.c_void_p]
    native.paper_name_index.argtypes = [ctypes.c_char_p]
    native.paper_operator_of.argtypes = [ctypes.c_int64]
    native.paper_open_pool.argtypes = [ctypes.c_int64, ctypes.c_int32]
    native.paper_close_pool.argtypes = [ctypes.c_int64]
    native.paper_free_memory_of.argtypes = [ctypes.c_void_p]
    native.paper_forbid_storage.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    native.paper_clear_workspaces.restype = None
    native.paper_gemm_operations.restype = ctypes.c_int64
    native.paper_prefer_meta.argtypes = [ctypes.c_char_p]
    native.paper_resize_storage.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    native.paper_set_workspace_bytes.argtypes = [ctypes.c_int64]
    native.paper_set_multiprocessors.argtypes = [ctypes.c_int64, ctypes.c_int64]
    native.paper_workspace_is_unknown.argtypes = [ctypes.c_char_p]
    native.paper_ask_for_workspaces.restype = None
    native.paper_unknown_workspaces.restype = ctypes.c_char_p
    native.paper_host_count.restype = ctypes.c_int64
    native.paper_host_record_format.restype = ctypes.c_char_p
    native.paper_host_records.restype = ctypes.c_void_p
    native.paper_host_start.argtypes = [ctypes.c_int64]
    native.paper_host_stop.restype = None
    native.paper_write_zeros.argtypes = [ctypes.c_void_p]
    native.paper_write_zeros.restype = None
    native.paper_host_block_at.restype = ctypes.c_int64
    native.paper_host_block_at.argtypes = [ctypes.c_void_p]
    native.paper_born_alive.restype = ctypes.c_int64
    native.paper_born_alive.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
