"""Says which packages a program lacks on this machine: all of them at once, with what to type."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence

from planner.errors import ProgramError
from planner.running.launch_line import LaunchLine
from planner.running.outside import importers, packages
from planner.running.program_files import imports_of, own_files

_NAMED = re.compile(r"requires the (\w[\w.-]*) (?:library|package)")
"""As transformers 5.23 says it (utils/import_utils.py)."""
_NAMES = {
    "attr": "attrs", "bs4": "beautifulsoup4", "cv2": "opencv-python-headless", "dateutil": "python-dateutil",
    "dotenv": "python-dotenv", "faiss": "faiss-cpu", "git": "gitpython", "hydra": "hydra-core", "jwt": "pyjwt",
    "lightning_fabric": "lightning-fabric", "magic": "python-magic", "pil": "pillow", "skimage": "scikit-image",
    "sklearn": "scikit-learn", "umap": "umap-learn", "usb": "pyusb", "yaml": "pyyaml",
}  # fmt: skip
"""Packages that are called otherwise than their modules."""
_TRITON = "torch for CUDA brings triton, its build for CPUs, which planner can run on, does not"


def error_of(
    error: Exception, line: LaunchLine, own: Collection[str], listed: Mapping[str, str]
) -> ProgramError | None:
    """The error for a program that ends for want of a package; None for one that ends for another reason.

    `own` are modules that a user has described, `listed` packages of the program's requirements.
    """
    name = _lacking(error, own)
    if not name:
        return None
    surely, perhaps = [name], list[str]()
    for module, deferred in _imported(line, own):
        (perhaps if deferred else surely).append(module)
    needed = _unique(_packages(surely, listed))
    others = [each for each in _unique(_packages(perhaps, listed)) if each not in needed]
    said = [f"pip install {' '.join(needed)}"]
    said += [f"functions of it also import {', '.join(others)}"] if others else []
    said += [_TRITON] if "triton" in needed else []
    one = len(needed) == 1
    return ProgramError(
        f"the program needs {', '.join(needed)}, which {'is' if one else 'are'} not installed where planner runs",
        allowed="packages that are installed here as on the cluster; none of them needs a GPU to be installed",
        remedy="; ".join(said),
        place=importers.program_line(error),
    )


def _lacking(error: BaseException | None, own: Collection[str]) -> str:
    """The top-level module that an error is about; empty for another error, and where it is there."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ModuleNotFoundError) and error.name and _is_missing(top := _top(error.name), own):
            return top
        if isinstance(error, ImportError) and (named := _NAMED.search(str(error))):
            return named[1].lower() if _is_missing(named[1].lower(), own) else ""
        # Inductor's errors have what they are about in them (torch 2.13, _inductor/exc.py).
        error = getattr(error, "inner_exception", None) or error.__cause__
    return ""


def _imported(line: LaunchLine, own: Collection[str]) -> Iterator[tuple[str, bool]]:
    """Modules that are not there and whose import nobody catches, and whether only functions import them."""
    files = own_files(line)
    compiles = any(_compiles(node) for tree in files.values() for node in ast.walk(tree))
    local = {path.stem for path in files} | {path.parent.name for path in files}
    for path, tree in files.items():
        for each in imports_of(path, tree):
            name = _top(each.module)
            if name in local or not _is_missing(name, own) or importers.is_caught(str(path), each.line):
                continue
            known = packages.BY_MODULE.get(name)
            stands = (name == "triton" and not compiles) or (known is not None and known.is_modelled)
            if not stands:
                yield name, each.deferred


def _compiles(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr != "compile":
        return False
    return not (isinstance(node.value, ast.Name) and node.value.id in ("re", "regex"))


def _is_missing(name: str, own: Collection[str]) -> bool:
    if not name or name in sys.stdlib_module_names or name in sys.modules or name in own:
        return False
    finders = (each for each in sys.meta_path if not str(getattr(each, "__module__", "")).startswith("planner."))
    return all(each.find_spec(name, None) is None for each in finders)


def _packages(modules: Sequence[str], listed: Mapping[str, str]) -> Iterator[str]:
    for each in modules:
        known = packages.BY_MODULE.get(each)
        name = packages.canonical(each)
        if known is not None:
            yield from known.from_index or (known.name,)
        else:
            yield name if name in listed else _NAMES.get(each.lower(), name)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _unique(names: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(names))
