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
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE

from planner.errors import TraceError

_SOURCES = Path(__file__).parent / "native"
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
    path = _built(torch_folder)
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
        raise TraceError("torch is not installed", remedy="pip install 'planner[plan]'")
    return Path(found.origin).parent


def _built(torch_folder: Path) -> Path:
    sources = {path: path.read_bytes() for path in sorted(_SOURCES.iterdir()) if path.suffix in (".cpp", ".h")}
    folder = _cache() / f"paper-{_digest(*sources.values())}"
    library = folder / "libpaper.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it: its library is as good as ours
        if not library.exists():
            _build([path for path in sources if path.suffix == ".cpp"], torch_folder, library)
    return library


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "planner"


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
    headers = [path.read_bytes() for path in sorted(_SOURCES.glob("*.h"))]
    include = torch_folder / "include"
    flags = ["-std=c++20", "-O1", "-fPIC", f"-I{include}", f"-I{include}/torch/csrc/api/include"]
    objects = [_cache() / "objects" / f"{source.stem}-{_digest(source.read_bytes(), *headers)}.o" for source in sources]
    objects[0].parent.mkdir(parents=True, exist_ok=True)
    running = [
        (subprocess.Popen([compiler, *flags, "-c", str(source), "-o", f"{out}.{os.getpid()}"], stderr=PIPE), out)
        for source, out in zip(sources, objects, strict=True)
        if not out.exists()
    ]
    for process, out in running:
        _, said = process.communicate()
        if process.returncode != 0:
            problem = said.decode(errors="replace").strip()
            raise TraceError(f"the paper GPU does not build with {compiler} for this torch:\n{problem}")
        Path(f"{out}.{os.getpid()}").replace(out)
    fresh = library.with_suffix(f".{os.getpid()}")
    link = [compiler, "-shared", *map(str, objects), f"-L{torch_folder}/lib", "-lc10", "-ltorch_cpu"]
    subprocess.run([*link, "-o", str(fresh)], check=True)
    fresh.replace(library)


def _declare(native: ctypes.CDLL) -> None:
    """ctypes takes every result for an int unless told otherwise."""
    native.paper_count.restype = ctypes.c_int64
    native.paper_records.restype = ctypes.c_void_p
    native.paper_shape_count.restype = ctypes.c_int64
    native.paper_shapes.restype = ctypes.c_void_p
    native.paper_name.restype = ctypes.c_char_p
    native.paper_block_at.restype = ctypes.c_int64
    native.paper_block_at.argtypes = [ctypes.c_void_p]
    native.paper_name_index.argtypes = [ctypes.c_char_p]
    native.paper_prefer_meta.argtypes = [ctypes.c_char_p]
    native.paper_resize_storage.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    native.paper_set_workspace_bytes.argtypes = [ctypes.c_int64]
    native.paper_set_multiprocessors.argtypes = [ctypes.c_int64, ctypes.c_int64]
    native.paper_workspace_is_unknown.argtypes = [ctypes.c_char_p]
    native.paper_unknown_workspaces.restype = ctypes.c_char_p
    native.paper_born_alive.restype = ctypes.c_int64
    native.paper_born_alive.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
