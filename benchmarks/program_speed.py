"""Processor seconds of a program on paper, beyond its imports: Llama-3-8B built on the host, and a step of it.

Run: python benchmarks/program_speed.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

STEPS = 8
PROGRAM = Path(__file__).with_name("program_llama.py")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seconds.json"
        command = ["torchrun", "--nproc-per-node", "8", str(PROGRAM), str(path)]
        options = ["--allow-writes", "--ranks", "0", "--steps", str(STEPS)]
        ended = subprocess.run(
            [sys.executable, "-m", "planner", "run", *options, "--", *command], stdout=subprocess.DEVNULL, check=False
        )
        if ended.returncode not in (0, 3):
            raise SystemExit(f"planner run ended with {ended.returncode}")
        built, first, *steps = json.loads(path.read_text(encoding="utf-8"))
    print(json.dumps({"built": built, "first": first, "step": median(steps)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
