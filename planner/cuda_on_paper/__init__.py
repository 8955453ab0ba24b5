"""The CUDA runtime on paper: stand-ins for the libraries of CUDA that a CUDA build of torch is linked with.

A process that finds them first (`LD_PRELOAD`: torch's libraries have an RPATH, which `LD_LIBRARY_PATH` does not beat)
runs torch's own CUDA code without a GPU: memory is address space, launches do nothing. They are built once for a torch,
by the C++ compiler of the machine, from the headers that torch's environment brings; which functions they need is read
from torch's own libraries.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.errors import TraceError
from planner.hardware.architectures import ARCHITECTURES
from planner.runtime.fork_server import ForkServer
from planner.runtime.native_builds import build_once, find_compiler, find_torch
from planner.runtime.user_cache import user_cache
from planner.units import KIB

_SOURCES = Path(__file__).parent
_PREFIXES = {
    "cuFile": "libcufile", "cusparseLt": "libcusparseLt", "cublasLt": "libcublasLt", "cublas": "libcublas",
    "cudnn": "libcudnn", "cusolver": "libcusolver", "cusparse": "libcusparse", "cufft": "libcufft",
    "curand": "libcurand", "nccl": "libnccl", "nvshmem": "libnvshmem_host", "__cuda": "libcudart", "cuda": "libcudart",
}  # fmt: skip
"""By how a function begins, the library that it belongs to where torch asks for no version of the symbol."""
_DRIVER, _RUNTIME, _MANAGEMENT = "libcuda", "libcudart", "libnvidia-ml"
_OPENED = {_DRIVER: "libcuda.so.1", _MANAGEMENT: "libnvidia-ml.so.1"}
"""Libraries that torch opens by name."""
_STEMS = {*_PREFIXES.values(), *_OPENED}
_UNVERSIONED = {*_OPENED, "libnccl", "libcufile", "libnvshmem_host"}
_WRITTEN = {
    _RUNTIME: "cudart.cpp", _DRIVER: "cuda.cpp", "libcublas": "cublas.cpp", "libcublasLt": "cublas.cpp",
    "libcudnn": "cudnn.cpp", "libnccl": "nccl.cpp", _MANAGEMENT: "nvml.cpp",
}  # fmt: skip
_FORWARDED = re.compile(
    r"cudnn((Create|Destroy)\w+Descriptor|(Set|Get)\w*Descriptor\w*|GetVersion|GetErrorString|GetLastErrorString"
    r"|GetCudartVersion|GetProperty|SetConvolution\w+|Backend(?!Execute)\w+)$"
)
"""Functions of cuDNN that only handle descriptions: the real library answers them without a GPU."""
_UNKNOWN = re.compile(r"(cusolver|cusparse|cufft)\w*([bB]ufferSize|MakePlan|GetSize|getWorkspace)\w*$")
"""Functions whose answers decide memory, and that nobody can give without a GPU."""
_TEXTS = re.compile(r"(ErrorString|ErrorName|StatusString|ncclGetLastError)$")
_ABOUT_HANDLES = re.compile(r"(Create|Destroy|Set|Get|Init|Attach|create|destroy|set|get|init)")
"""What such a function does is no work for the device."""
_DECLARED = {
    _DRIVER: ("cuda.h", r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(|#define\s+cu[A-Z]\w*\s+(cu[A-Z]\w*_v\d+)\s"),
    _RUNTIME: ("cuda_runtime_api.h", r"CUDARTAPI\s+(cuda[A-Z]\w*)\s*\("),
}
"""Headers whose functions are refused where neither torch needs them nor one is written."""
_NOT_SUPPORTED, _NOT_KNOWN = 801, 7
_CUDNN_WITHOUT_GPU = (9, 8)
"""The first that is told properties of a device instead of a handle."""
_PRELOAD = "preload"
_ON, _DEVICE = "PAPER_CUDA", "PAPER_DEVICE"
"""Variables of processes whose torch finds CUDA on paper: the folder of the libraries, the GPU's description."""
_WANTED = "PLANNER_ON_CUDA"
"""A switch until it is the only way."""


@dataclass(frozen=True, slots=True)
class PaperGpu:
    """What the runtime answers for."""

    name: str
    arch: str
    total_bytes: int


def is_on() -> bool:
    """Whether torch's own CUDA code runs in this process."""
    return _ON in os.environ


def is_wanted() -> bool:
    """Whether it shall run where a job is traced."""
    return bool(os.environ.get(_WANTED)) or is_on()


def start_variables() -> dict[str, str]:
    """Of the environment with which a process is started in which torch finds CUDA on paper; none if nobody wants it.

    Raises TraceError where there is no compiler, or torch is no CUDA build.
    """
    if not is_wanted():
        return {}
    torch_folder = find_torch()
    folder = build(torch_folder)
    cudnn = _find_cudnn(torch_folder)
    return {
        "LD_PRELOAD": (folder / _PRELOAD).read_text(encoding="utf-8"),
        "TRITON_LIBCUDA_PATH": str(folder),
        _ON: str(folder),
        **({"PAPER_CUDNN": str(cudnn / "lib/libcudnn.so.9")} if cudnn is not None else {}),
    }


def _find_cudnn(torch_folder: Path) -> Path | None:
    """Where the cuDNN lies that is asked: torch's own, or if that needs a GPU, the oldest of planner's own environments
    that does not."""
    own = torch_folder.parent / "nvidia/cudnn"
    if not own.is_dir():
        return None
    others = user_cache().glob("environments/*/lib/python*/site-packages/nvidia/cudnn")
    able = {path: version for path in (own, *others) if (version := _version_of(path)) >= _CUDNN_WITHOUT_GPU}
    return own if own in able or not able else min(able, key=lambda path: able[path])


def _version_of(cudnn: Path) -> tuple[int, ...]:
    text = (cudnn / "include/cudnn_version.h").read_text(encoding="utf-8")
    return tuple(int(number) for number in re.findall(r"#define CUDNN_(?:MAJOR|MINOR|PATCHLEVEL) (\d+)", text))


def gpu_variables(gpu: PaperGpu, gpus: int) -> dict[str, str]:
    """Of the environment of a process that finds so many of these GPUs on paper, before its first call of CUDA; none if
    nobody wants it."""
    if not is_wanted():
        return {}
    description = build(find_torch()) / f"{hashlib.sha256(repr(gpu).encode()).hexdigest()[:16]}.json"
    if not description.exists():
        description.write_text(json.dumps(_describe(gpu)), encoding="utf-8")
    return {_DEVICE: str(description), "PAPER_GPUS": str(gpus)}


def start_server(preload: str) -> ForkServer:
    """A fork server whose children find what is wanted. Raises what :func:`start_variables` raises."""
    return ForkServer(preload, environment=start_variables())


def take_gpu(gpu: PaperGpu, gpus: int) -> None:
    """This process finds so many of these GPUs on paper. Raises TraceError where it has found others before."""
    variables = gpu_variables(gpu, gpus)
    if os.environ.get(_DEVICE, variables[_DEVICE]) != variables[_DEVICE]:
        raise TraceError(f"this process has another GPU than {gpu.name}", allowed="jobs of one GPU in a process")
    os.environ.update(variables)


def _describe(gpu: PaperGpu) -> dict[str, object]:
    """As NVIDIA documents a device for cuDNN's `CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`; clocks and the bus are an
    H100's for every GPU."""
    known = ARCHITECTURES[gpu.arch]
    major, minor = known.capability
    return {
        "cudaDeviceId": 0, "deviceId": 0, "deviceVer": 100 * major + 10 * minor, "driverVer": 13000,
        "cudaDriverVersion": 13000, "totalGlobalMem": gpu.total_bytes, "maxGridSize": [2**31 - 1, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
        "multiProcessorCount": known.multiprocessors, "smCountOrigin": 0,
        "warpSize": known.warp_size, "maxSharedMemoryPerBlock": 48 * KIB,
        "maxSharedMemoryPerBlockOptin": known.shared_memory_per_block_bytes, "oversizedSharedMemoryPerBlock": 0,
        "reservedSharedMemoryPerBlock": KIB, "maxRegistersPerSM": known.registers_per_multiprocessor,
        "maxCtasPerSM": 32 if major in (8, 9, 10) and minor == 0 else 24 if major == 8 else 16,
        "maxThreadsPerBlock": 1024, "maxThreadsPerSM": known.threads_per_multiprocessor, "pciDeviceId": 0,
        "isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
        "memoryBusWidth": 5120, "l2CacheSize": known.l2_cache_bytes, "deviceName": gpu.name,
    }  # fmt: skip


def build(torch_folder: Path) -> Path:
    """The folder with the libraries for this torch, built if there are none yet; `preload` names them in order."""
    digest = hashlib.sha256((torch_folder / "version.py").read_bytes())
    for source in sorted(_SOURCES.glob("*.[ch]*")):
        digest.update(source.read_bytes())
    return build_once(f"cuda-{digest.hexdigest()[:16]}", _PRELOAD, lambda folder: _build(torch_folder, folder))


def header_folders(torch_folder: Path) -> list[Path]:
    """Where the headers of CUDA lie that the environment of this torch brings."""
    site = torch_folder.parent
    return [*sorted(site.glob("nvidia/*/include")), site / "triton/backends/nvidia/include"]


def _build(torch_folder: Path, folder: Path) -> None:
    compiler = find_compiler("the CUDA runtime on paper")
    names, functions = _needed(sorted((torch_folder / "lib").glob("lib*.so")))
    if _RUNTIME not in names:
        raise TraceError("torch is not a CUDA build", allowed="torch as pip installs it on Linux")
    headers = header_folders(torch_folder)
    order = [_RUNTIME, _DRIVER, *sorted(set(names) - {_RUNTIME, _DRIVER})]
    with tempfile.TemporaryDirectory(dir=folder) as built:
        for stem in order:
            runtime = [] if stem == _RUNTIME else [f"{folder}/{names[_RUNTIME]}"]
            generated = Path(built) / f"{stem}.cpp"
            generated.write_text(_generate(stem, functions[stem], _declared(stem, headers)), encoding="utf-8")
            versions = Path(built) / f"{stem}.map"
            versions.write_text(_version_script(stem, names[stem], functions[stem].values()), encoding="utf-8")
            sources = [generated, *([_SOURCES / _WRITTEN[stem]] if stem in _WRITTEN else [])]
            command = [
                compiler, "-std=c++17", "-O1", "-g0", "-fPIC", "-w", "-shared", *(f"-I{path}" for path in headers),
                *map(str, sources), "-o", f"{folder}/{names[stem]}", f"-Wl,-soname,{names[stem]}", "-Wl,-rpath,$ORIGIN",
                "-ldl", "-lpthread", *runtime, f"-DPAPER_{stem.upper().replace('-', '_')}",
                *([f"-Wl,--version-script={versions}"] if versions.stat().st_size else []),
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise TraceError(f"{names[stem]} on paper does not build with {compiler}:\n{done.stderr[-2000:]}")
    (folder / _PRELOAD).write_text(":".join(f"{folder}/{names[stem]}" for stem in order), encoding="utf-8")


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
            stem = version.partition(".so")[0] if version.startswith("lib") else _library_of(function)
            if stem in _STEMS:
                functions[stem][function] = version
    return names, functions


def _read(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _library_of(function: str) -> str:
    stems = (stem for prefix, stem in _PREFIXES.items() if function.startswith(prefix))
    return next(stems, _DRIVER if re.match("cu[A-Z]", function) else "")


def _declared(stem: str, headers: Iterable[Path]) -> set[str]:
    if stem not in _DECLARED:
        return set()
    name, pattern = _DECLARED[stem]
    text = next(path for folder in headers if (path := folder / name).exists()).read_text(encoding="utf-8")
    found = re.findall(pattern, text)
    return {"".join(names) if isinstance(names, tuple) else names for names in found}


def _generate(stem: str, functions: Iterable[str], declared: set[str]) -> str:
    """Functions that nobody wrote, weak, so that a written one wins."""
    lines = ['extern "C" {', "int paper_call(); int paper_unknown(const char*, int);"]
    forwarded = []
    for name in sorted(functions):
        weak = "__attribute__((weak))"
        if stem == "libcudnn" and _FORWARDED.match(name):
            forwarded.append(name)
            lines.append(f'__attribute__((visibility("hidden"))) void* real_{name};')
            lines.append(f'__attribute__((weak, naked)) void {name}() {{ asm("jmp *real_{name}(%rip)"); }}')
        elif _UNKNOWN.search(name):
            lines.append(f'{weak} int {name}() {{ return paper_unknown("{name}", {_NOT_KNOWN}); }}')
        elif _TEXTS.search(name):
            lines.append(f'{weak} const char* {name}() {{ return "on paper"; }}')
        else:
            launches = stem not in (_RUNTIME, _DRIVER, _MANAGEMENT) and not _ABOUT_HANDLES.search(name)
            lines.append(f"{weak} int {name}() {{ return {'paper_call()' if launches else 0}; }}")
    refused = sorted(declared.difference(functions))
    lines += (f"__attribute__((weak)) int {name}() {{ return {_NOT_SUPPORTED}; }}" for name in refused)
    lines.append("}")
    if stem == "libcudnn":
        table = "".join(f'{{"{name}", &real_{name}}}, ' for name in forwarded)
        lines.append("struct Forward { const char* name; void** place; };")
        lines.append(f'extern "C" Forward paper_forwards[] = {{{table}{{nullptr, nullptr}}}};')
    return "\n".join(lines) + "\n"


def _version_script(stem: str, name: str, versions: Iterable[str]) -> str:
    """Torch's loader wants the symbols under the versions that it was linked against."""
    needed = sorted({version for version in versions if version} | ({name} if stem not in _UNVERSIONED else set()))
    scopes = ("*" if number == 0 else "paper_none" for number in range(len(needed)))
    return "".join(f"{version} {{ global: {scope}; }};\n" for version, scope in zip(needed, scopes, strict=True))
