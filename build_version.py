"""The version of what is built: a release is a tag (v0.2.0), what is built elsewhere is the next one's .devN.

Sources without `.git` or a source distribution's metadata, as in the context of an image, get a digest in their
version: stored plans, caches and metrics tell two versions apart by it (planner/planning/identity.py).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from setuptools_scm import get_version

SOURCES = Path(__file__).parent
WITHOUT_A_TAG = "0.1.0"


def of_sources() -> str:
    fallback = WITHOUT_A_TAG if (SOURCES / ".git").exists() else f"{WITHOUT_A_TAG}+s{digest_of(SOURCES)}"
    return get_version(SOURCES, local_scheme="no-local-version", fallback_version=fallback)


def digest_of(sources: Path) -> str:
    """Of what decides plans: planner's package, and what it is installed with."""
    package = [path for path in (sources / "planner").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    digest = hashlib.sha256()
    for path in sorted([sources / "pyproject.toml", sources / "constraints.txt", *package]):
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(sources)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]
