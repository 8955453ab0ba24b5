"""The libraries of CUDA on paper: every function that they export can be called, and answers or is refused by name."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from planner import cuda_on_paper
from planner.cuda_on_paper import unwritten
from planner.cuda_on_paper.libraries import find_torch, header_folders

CALLS = """
import ctypes, json, sys
asked = json.load(sys.stdin)
ctypes.CDLL(asked["runtime"], mode=ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(asked["library"])
last = ctypes.CDLL(asked["runtime"]).paper_refused_function
last.restype = ctypes.c_char_p
libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p
for name, given in asked["functions"].items():
    function = getattr(library, name)
    function.restype = ctypes.c_int
    arguments = {"memory": lambda: ctypes.c_void_p(libc.calloc(1, 1 << 16)), "number": lambda: ctypes.c_long(0),
                 "function": lambda: ctypes.cast(libc.abs, ctypes.c_void_p)}
    print(name, end=" ", flush=True)
    result = function(*(arguments[each]() for each in given))
    print(json.dumps([result, last().decode()]), flush=True)
"""
"""Says of each function what it returned, and which was refused last; the last name says which one crashed."""
NO_STATUS = re.compile(r"(String|Error|ErrorName|GetVersion|__cudaInitModule|__cudaRegisterFatBinary)$")
"""Functions that return something else."""
GIVEN_ZEROS = {
    "libcuda": {"cuGetProcAddress_v2": 500, "cuMemAddressReserve": 2, "cuPointerGetAttribute": 1},
    "libcudart": {
        "__cudaPopCallConfiguration": 52, "cudaFree": 1, "cudaFreeAsync": 1, "cudaFreeHost": 1,
        "cudaStreamBeginCapture": 900, "cudaStreamEndCapture": 401,
    },
    "libnvidia-ml": {"nvmlDeviceGetGpuFabricInfoV": 25},
}  # fmt: skip
"""Errors of arguments that are all zeros, by function."""
STEMS = sorted(unwritten._NOT_SUPPORTED)


def argument(parameter: str) -> str:
    if re.search(r"HostFn_t|StreamCallback_t|hostFn", parameter):
        return "function"
    is_handle = re.search(
        r"(_t|CUstream|CUevent|CUmodule|CUfunction|CUkernel|CUmemGenericAllocationHandle)\b", parameter
    )
    is_number = re.search(r"(u?int\d*|size|Stream|cuu?int\d+)_t\b|CUstream\b", parameter)
    return "memory" if "*" in parameter or "[" in parameter or (is_handle and not is_number) else "number"


def call_all(stem: str) -> list[tuple[str, int, str]]:
    """Of every function of a library its name, what it returned, and what had been refused by then."""
    variables = cuda_on_paper.start_variables()
    paths = {path.rpartition("/")[2].partition(".so")[0]: path for path in variables["LD_PRELOAD"].split(":")}
    symbols = subprocess.run(["nm", "-D", "--defined-only", paths[stem]], capture_output=True, text=True, check=True)
    names = [
        name
        for name in re.findall(r" [TW] ((?:[a-z]|__cuda)\w+)", symbols.stdout)
        if "paper_" not in name and not unwritten._FORWARDED.match(name)
    ]
    signatures = unwritten.read_signatures(stem, header_folders(find_torch()))
    functions = {
        name: [argument(each) for each in signatures.get(unwritten._OTHER_NAME.sub("", name), ["void*"] * 6)]
        for name in names
    }
    asked = {"runtime": paths["libcudart"], "library": paths[stem], "functions": functions}
    ran = subprocess.run(
        [sys.executable, "-c", CALLS], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"{ran.stdout.rpartition(chr(10))[2]} ended with {ran.returncode}: {ran.stderr}"
    answers = [line.split(" ", 1) for line in ran.stdout.splitlines()]
    return [(name, *json.loads(answer)) for name, answer in answers]


@pytest.mark.parametrize("stem", STEMS)
def test_every_exported_function_answers_or_is_refused_by_name(stem: str) -> None:
    called = call_all(stem)

    plain = [(unwritten._OTHER_NAME.sub("", name), result, refused) for name, result, refused in called]
    failed = {
        name: result
        for name, result, refused in plain
        if result and not NO_STATUS.search(name) and refused != f"{name} of {stem}"
    }
    assert len(called) > 20
    assert failed == GIVEN_ZEROS.get(stem, {})
