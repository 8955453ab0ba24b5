"""Virtual environments that were made in a moment: a real interpreter, and packages that are only said to be there."""

from __future__ import annotations

import sys
from pathlib import Path

_FIRST = 'import sys\nprint("started in", sys.prefix, file=sys.stderr)\n'
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def make_fake_environment(folder: Path, torch: str = "") -> Path:
    """A virtual environment, its Python a link to this one, which says where it was started; with a torch of that
    version by name."""
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\n", encoding="utf-8"
    )
    packages = folder / "lib" / f"python{PYTHON}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "sitecustomize.py").write_text(_FIRST, encoding="utf-8")
    if torch:
        metadata = packages / f"torch-{torch}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}\n", encoding="utf-8")
    return folder


def write_script(path: Path, text: str) -> Path:
    """A file that may be started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path
