"""Builds the stand-ins for the libraries of CUDA that a CUDA build of torch is linked with.

They are built once for a torch, by the C++ compiler of the machine, from the headers that torch's environment brings;
which functions they need is read from torch's own libraries, and from the real ones where these are installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from planner.cuda_on_paper import unwritten
from planner.cuda_on_paper.unwritten import DRIVER, MANAGEMENT, RUNTIME
from planner.distribution import install_command
from planner.errors import TraceError
from planner.runtime.user_cache import user_cache
from planner.versions import minor_of

_SOURCES = Path(__file__).parent
_PREFIXES = {
    "cuFile": "libcufile", "cusparseLt": "libcusparseLt", "cublasLt": "libcublasLt", "cublas": "libcublas",
    "cudnn": "libcudnn", "cusolver": "libcusolver", "cusparse": "libcusparse", "cufft": "libcufft",
    "curand": "libcurand", "nccl": "libnccl", "nvshmem": "libnvshmem_host", "__cuda": "libcudart", "cuda": "libcudart",
}  # fmt: skip
"""By how a function begins, the library that it belongs to where torch asks for no version of the symbol."""
_OPENED = {DRIVER: "libcuda.so.1", MANAGEMENT: "libnvidia-ml.so.1"}
"""Libraries that torch opens by name."""
_STEMS = {*_PREFIXES.values(), *_OPENED}
_UNVERSIONED = {*_OPENED, "libnccl", "libcufile", "libnvshmem_host"}
_WRITTEN = {
    RUNTIME: "cudart.cpp cudart_memory.cpp", DRIVER: "cuda.cpp", "libcublas": "cublas.cpp",
    "libcublasLt": "cublas.cpp", "libcudnn": "cudnn.cpp cudnn_rnn.cpp", "libnccl": "nccl.cpp", MANAGEMENT: "nvml.cpp",
}  # fmt: skip
_NAMES_OF_MANAGEMENT = {
    "pynvml.py": rb'FunctionPointer\("(nvml\w+)"',
    "torch/lib/libc10_cuda.so": rb"\0(nvml[A-Z]\w+)\0",
}
"""Files beside torch that name functions of NVML, whose library comes with a driver: NVIDIA's own list, which
nvidia-ml-py is, and what torch opens by name."""
PRELOAD = "preload"
"""A file that names the libraries in order."""
COMPILED_FOR = "compiled_for"
"""A file with the architectures for which torch was compiled (`80 90`)."""


def find_torch() -> Path:
    """The folder of the torch that this process would import. Raises TraceError if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise TraceError("torch is not installed", remedy=install_command("plan"))
    return Path(spec.origin).parent


def find_compiler(subject: str) -> str:
    """That builds the `subject`. Raises TraceError if there is none."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise TraceError(
            f"{subject} has to be built once for this torch, and there is no C++ compiler",
            allowed="g++ or clang++ on the PATH, or the one that CXX names",
            remedy="install g++ (Debian: apt-get install g++)",
        )
    return compiler


def build_once(name: str, last: str, build: Callable[[Path], None]) -> Path:
    """The folder of that name in the cache; `build` fills it where the file `last` is missing, which it writes last."""
    folder = user_cache() / name
    if (folder / last).exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it: what it builds is as good as ours
        if not (folder / last).exists():
            build(folder)
    return folder


def build(torch_folder: Path) -> Path:
    """The folder with the libraries for this torch, built if there are none yet; `preload` names them in order."""
    digest = hashlib.sha256((torch_folder / "version.py").read_bytes())
    own = Path(__file__), Path(unwritten.__file__), *sorted(_SOURCES.glob("*.[ch]*"))
    for source in (*own, *torch_folder.parent.glob("pynvml.py")):
        digest.update(source.read_bytes())
    return build_once(f"cuda-{digest.hexdigest()[:16]}", PRELOAD, lambda folder: _build(torch_folder, folder))


def header_folders(torch_folder: Path) -> list[Path]:
    """Where the headers of CUDA lie that the environment of this torch brings."""
    site = torch_folder.parent
    return [*sorted(site.glob("nvidia/*/include")), site / "triton/backends/nvidia/include"]


def _build(torch_folder: Path, folder: Path) -> None:
    compiler = find_compiler("the CUDA runtime on paper")
    names, functions = _needed(sorted((torch_folder / "lib").glob("lib*.so")))
    if RUNTIME not in names:
        version = importlib.metadata.version("torch")
        raise TraceError(
            f"torch {version} is not a build for CUDA",
            allowed="torch as pip installs it on Linux, which needs no GPU",
            remedy=f"planner torch {minor_of(version)} makes an environment with it, where jobs are planned from then"
            " on; or install it here",
        )
    for stem, name in names.items():  # what other packages may need of them
        for real in torch_folder.parent.glob(f"nvidia/*/lib/{name}"):
            functions[stem] |= _defined(real)
    functions[MANAGEMENT] |= _named_management(torch_folder.parent)
    headers = header_folders(torch_folder)
    order = [RUNTIME, DRIVER, *sorted(set(names) - {RUNTIME, DRIVER})]

    def compile_one(stem: str) -> None:
        runtime = [] if stem == RUNTIME else [f"{folder}/{names[RUNTIME]}"]
        generated = Path(built) / f"{stem}.cpp"
        signatures = unwritten.read_signatures(stem, headers)
        functions[stem] |= dict.fromkeys(unwritten.declared(stem, signatures).difference(functions[stem]), "")
        generated.write_text(unwritten.write_functions(stem, functions[stem], signatures), encoding="utf-8")
        versions = Path(built) / f"{stem}.map"
        versions.write_text(_version_script(stem, names[stem], functions[stem].values()), encoding="utf-8")
        sources = [generated, *(_SOURCES / name for name in _WRITTEN.get(stem, "").split())]
        command = [
            compiler, "-std=c++17", "-O1", "-g0", "-fPIC", "-w", "-shared", *(f"-I{path}" for path in headers),
            *map(str, sources), "-o", f"{folder}/{names[stem]}", f"-Wl,-soname,{names[stem]}", "-Wl,-rpath,$ORIGIN",
            "-ldl", "-lpthread", *runtime, f"-DPAPER_{stem.upper().replace('-', '_')}",
            *([f"-Wl,--version-script={versions}"] if versions.stat().st_size else []),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TraceError(f"{names[stem]} on paper does not build with {compiler}:\n{done.stderr[-2000:]}")

    with tempfile.TemporaryDirectory(dir=folder) as built, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        compile_one(RUNTIME)  # which the others are linked with
        list(pool.map(compile_one, order[1:]))
    flags = _read([sys.executable, "-P", "-c", "import torch; print(torch._C._cuda_getArchFlags())"])
    (folder / COMPILED_FOR).write_text(" ".join(re.findall(r"\bsm_(\d+)", flags)), encoding="utf-8")
    (folder / PRELOAD).write_text(":".join(f"{folder}/{names[stem]}" for stem in order), encoding="utf-8")


def _needed(libraries: Sequence[Path]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Of each library of CUDA its name as torch's libraries have it, and the functions that they take from it, with the
    version of the symbol (empty if it has none)."""
    names, functions = dict(_OPENED), defaultdict[str, dict[str, str]](dict)
    for library in libraries:
        for name in re.findall(r"NEEDED.*\[(.*)\]", _read(["readelf", "-d", str(library)])):
            stem = name.partition(".so")[0]
            if stem in _STEMS:
                names.setdefault(stem, name)
        undefined = _read(["nm", "-D", "--undefined-only", str(library)])
        for symbol in re.findall(r" U (\S+)", undefined):
            function, _, version = symbol.partition("@")
            version = version.lstrip("@")
            stem = version.partition(".so")[0] if version.startswith("lib") else _find_library(function)
            if stem in _STEMS:
                functions[stem][function] = version
    return names, functions


def _defined(library: Path) -> dict[str, str]:
    symbols = _read(["nm", "-D", "--defined-only", str(library)])
    return dict(re.findall(r" [TW] ((?:[a-z]|__cuda)\w+)(?:@+(\S+))?", symbols))


def _named_management(site: Path) -> dict[str, str]:
    found = (
        re.findall(names, path.read_bytes()) for file, names in _NAMES_OF_MANAGEMENT.items() for path in site.glob(file)
    )
    return dict.fromkeys((name.decode() for each in found for name in each), "")


def _read(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _find_library(function: str) -> str:
    stems = (stem for prefix, stem in _PREFIXES.items() if function.startswith(prefix))
    return next(stems, DRIVER if re.match("cu[A-Z]", function) else "")


def _version_script(stem: str, name: str, versions: Iterable[str]) -> str:
    """Torch's loader wants the symbols under the versions that it was linked against."""
    needed = sorted({version for version in versions if version} | ({name} if stem not in _UNVERSIONED else set()))
    scopes = ("*" if number == 0 else "paper_none" for number in range(len(needed)))
    return "".join(f"{version} {{ global: {scope}; }};\n" for version, scope in zip(needed, scopes, strict=True))
