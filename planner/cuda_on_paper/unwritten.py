"""Writes the functions of CUDA's libraries that nobody has written by hand: each succeeds or is refused by its name.

What a function is given is read from the headers that torch's environment brings. One that only gives work to the
device, or sets something, succeeds; one whose answer the caller goes on with is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

DRIVER, RUNTIME, MANAGEMENT = "libcuda", "libcudart", "libnvidia-ml"
_NOT_SUPPORTED = {
    DRIVER: 801, RUNTIME: 801, MANAGEMENT: 3, "libcublas": 15, "libcublasLt": 15, "libcudnn": 3000, "libcufft": 16,
    "libcufile": 5007, "libcurand": 999, "libcusolver": 9, "libcusparse": 10, "libcusparseLt": 10, "libnccl": 5,
    "libnvshmem_host": 1,
}  # fmt: skip
"""By library what its functions return that cannot be answered (the nearest where a library has no such error)."""
_REFUSED_WHOLE = {MANAGEMENT, "libcufile", "libnvshmem_host"}
"""Libraries that do nothing which is known without their hardware."""
_HEADERS = {DRIVER: "cuda.h", RUNTIME: "cuda_runtime_api.h"}
"""By library the header that declares it, where that is not called like the library."""
_FORWARDED = re.compile(
    r"cudnn((Create|Destroy)\w+Descriptor|(Set|Get)\w*Descriptor\w*|GetVersion|GetErrorString|GetLastErrorString"
    r"|GetCudartVersion|GetProperty|SetConvolution\w+|Backend(?!Execute)\w+)$"
)
"""Functions of cuDNN that only handle descriptions: the real library answers them without a GPU."""
_ASKED = {"libcusolver": "cuSOLVER", "libcusparse": "cuSPARSE", "libcusparseLt": "cuSPARSELt", "libcufft": "cuFFT"}
"""Libraries whose functions tell sizes of workspaces, which nobody knows without a GPU: none is counted."""
_TELLS_SIZES = re.compile(r"(_bufferSize\w*|GetSize|GetWorkspace|MakePlan\w*|GetSize\w*)$")
_SIZE, _SIZE_OR_COUNT = re.compile(r"(size_t) ?\* ?\w+"), re.compile(r"(int|size_t) ?\* ?\w+")
"""A parameter where a size is put: of any function, and of one that tells sizes by its name."""
_TEXTS = re.compile(r"(ErrorString|ErrorName|StatusString|ncclGetLastError)$")
_OTHER_NAME = re.compile(r"^p(?=nccl)|_pt[sd][sz]$")
"""What NCCL's functions for profilers, and the runtime's for a default stream a thread, have besides the name."""
_MAKES = re.compile(r"(\w+) ?\* ?\w+")
_READS = re.compile(
    r"Get(?!r[fis])|Query|Check|Find|Estimate|Plan\d|PlanMany|Host$|Nnz$|zeroPivot$|Memcpy|^ncclMemAlloc$"
)
"""What such a function writes is for its caller, not for the device."""
_SETTLES = re.compile(r"Set|Init|Destroy|destroy|Attach")
"""What such a function does is not work for the device."""


def read_signatures(stem: str, folders: Iterable[Path]) -> dict[str, list[str]]:
    """By function of a library its parameters as the headers declare them; those of a name that a macro stands for."""
    found: dict[str, list[str]] = {}
    pattern = _HEADERS.get(stem, f"{stem.removeprefix('lib')}*.h")
    prefix = "cuda" if stem == RUNTIME else "cu" if stem == DRIVER else "p?nccl" if stem == "libnccl" else stem[3:]
    renamed: dict[str, str] = {}
    for path in (path for folder in folders for path in sorted(folder.glob(pattern))):
        text = re.sub(r"/\*.*?\*/|//[^\n]*|__dv\([^)]*\)", "", path.read_text(errors="replace"), flags=re.DOTALL)
        for name, parameters in re.findall(rf"(?<!return )(?<!= )\b({prefix}\w+)\s*\(([^()]*)\)\s*;", text):
            each = [" ".join(parameter.split()) for parameter in parameters.split(",")]
            found.setdefault(name, [] if each in (["void"], [""]) else each)
        renamed |= {
            new: old
            for old, new in re.findall(
                rf"#\s*define\s+({prefix}\w+)\s+(?:__CUDA_API_PT\w+\()?({prefix}\w+_v\d+)\b", text
            )
        }
    return {new: found[old] for new, old in renamed.items() if old in found} | found


def declared(stem: str, signatures: Mapping[str, Sequence[str]]) -> set[str]:
    """Functions that stand-ins have because the headers declare them: their real libraries come with a driver."""
    return set(signatures) if stem in _HEADERS else set()


def write_functions(stem: str, functions: Iterable[str], signatures: Mapping[str, Sequence[str]]) -> str:
    """C++ with all functions of a library, weak, so that a written one wins."""
    lines = [
        "#include <cstddef>",
        'extern "C" {',
        "int paper_call(); int paper_unknown(const char*, int); long paper_refuse(const char*, const char*, long);",
        "const char* paper_refused_function();",
        "static char made[4096];",
    ]
    names = sorted(functions)
    forwarded = [name for name in names if stem == "libcudnn" and _FORWARDED.match(name)]
    lines += (_forward(name) for name in forwarded)
    known = set(names)
    for name in names:
        base = _OTHER_NAME.sub("", name)
        if name in forwarded:
            continue
        if base != name and base in known:
            lines.append(f'__attribute__((weak, naked)) void {name}() {{ asm("jmp {base}@PLT"); }}')
        else:
            lines.append(f"__attribute__((weak)) {_write(stem, name, signatures.get(base))}")
    lines.append("}")
    if stem == "libcudnn":
        table = "".join(f'{{"{name}", &real_{name}}}, ' for name in forwarded)
        lines.append("struct Forward { const char* name; void** place; };")
        lines.append(f'extern "C" Forward paper_forwards[] = {{{table}{{nullptr, nullptr}}}};')
    return "\n".join(lines) + "\n"


def _forward(name: str) -> str:
    return (
        f'__attribute__((visibility("hidden"))) void* real_{name};\n'
        f'__attribute__((weak, naked)) void {name}() {{ asm("jmp *real_{name}(%rip)"); }}'
    )


def _write(stem: str, name: str, parameters: Sequence[str] | None) -> str:
    if _TEXTS.search(name):
        return f"const char* {name}() {{ return paper_refused_function(); }}"
    if stem in _ASKED and (sizes := _sizes(name, parameters or ())):
        given = ", ".join(f"long p{number}" for number in range(len(parameters or ())))
        written = " ".join(f"if (p{number}) *({kind}*)p{number} = 0;" for number, kind in sizes.items())
        return f'int {name}({given}) {{ {written} return paper_unknown("{_ASKED[stem]}", 0); }}'
    if parameters and _is_made(stem, name, parameters[0]):
        kind = "int" if parameters[0].startswith("cufftHandle") else "void*"
        return f"int {name}({kind}* made_here) {{ *made_here = ({kind})(long)made; return 0; }}"
    if _is_refused(stem, name, parameters):
        error = 0 if re.search("(alloc|align|ptr)$", name) else _NOT_SUPPORTED[stem]  # no memory
        return f'long {name}() {{ return paper_refuse("{name}", "{stem}", {error}); }}'
    is_work = stem not in (RUNTIME, DRIVER) and not _SETTLES.search(name)
    return f"int {name}() {{ return {'paper_call()' if is_work else 0}; }}"


def _sizes(name: str, parameters: Sequence[str]) -> dict[int, str]:
    """Of which type a size is put, by the number of its parameter."""
    pattern = _SIZE_OR_COUNT if _TELLS_SIZES.search(name) else _SIZE
    return {number: match[1] for number, text in enumerate(parameters) if (match := pattern.fullmatch(text))}


def _is_made(stem: str, name: str, first: str) -> bool:
    """Whether it makes what only its own library looks into."""
    is_maker = re.search("Create|create", name) and stem not in (RUNTIME, DRIVER, "libnccl")
    return bool(is_maker and stem not in _REFUSED_WHOLE and _MAKES.fullmatch(first))


def _is_refused(stem: str, name: str, parameters: Sequence[str] | None) -> bool:
    if stem in _REFUSED_WHOLE:
        return True
    if name.startswith("__cuda"):  # what code that nvcc compiled registers
        return False
    if parameters is None:
        return stem in (RUNTIME, DRIVER, "libnccl") or bool(_READS.search(name))
    answers = any(_is_answer(text) for text in parameters)
    if stem not in (RUNTIME, DRIVER, "libnccl"):
        return answers and bool(_READS.search(name))
    return answers or "Memcpy" in name or ("Get" in name and any("*" in text for text in parameters))


def _is_answer(parameter: str) -> bool:
    """Whether something is put there; bytes (`void*`) are the device's."""
    if re.search(r"\*\s*(const\s*)?\*", parameter):
        return True
    return "*" in parameter and not re.match(r"const\b|void ?\*", parameter)
