"""An `nvidia-smi` for programs that ask it what GPUs they are given: it lists them, and knows what does not change."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from planner.units import MIB

_SCRIPT = """#!/bin/sh
refuse() {{
  echo "nvidia-smi of planner run knows -L, and --query-gpu of index, count, name, uuid, memory.total and" \\
    "compute_cap with --format=csv, not: $1" >&2
  exit 2
}}
fields= header=yes units=' MiB'
for word; do
  case $word in
    -L) ;;
    --query-gpu=*) fields=${{word#*=}} ;;
    --format=csv*)
      case $word in *noheader*) header= ;; esac
      case $word in *nounits*) units= ;; esac ;;
    *) refuse "$word" ;;
  esac
done
if [ -z "$fields" ]; then
  cat <<'END'
{lines}
END
  exit 0
fi
value() {{
  case $1 in
    index) printf %s "$2" ;;
    count) printf %s {count} ;;
    name|gpu_name) printf %s '{product}' ;;
    uuid|gpu_uuid) printf %s "GPU-paper-$2" ;;
    memory.total) printf %s "{mib}$units" ;;
    compute_cap) printf %s {capability} ;;
    *) refuse "$1" ;;
  esac
}}
words=$(printf %s "$fields" | tr -d ' ' | tr , ' ')
titles=$(printf %s "$words" | sed 's/ /, /g; s/memory.total/memory.total [MiB]/')
[ -z "$header" ] || printf '%s\\n' "$titles"
index=0
while [ $index -lt {count} ]; do
  line=
  for word in $words; do
    found=$(value "$word" $index) || exit 2
    line="$line${{line:+, }}$found"
  done
  printf '%s\\n' "$line"
  index=$((index + 1))
done
"""


@contextmanager
def on_the_path(product: str, total_bytes: int, count: int, capability: tuple[int, int]) -> Iterator[None]:
    """Inside, `nvidia-smi` answers for the GPUs of a node, whose memory in use it does not know; what else it is asked
    it refuses."""
    mib = total_bytes // MIB
    lines = "\n".join(f"GPU {index}: {product}, {mib} MiB (on paper)" for index in range(count))
    text = _SCRIPT.format(
        lines=lines, product=product, mib=mib, count=count, capability=f"{capability[0]}.{capability[1]}"
    )
    with tempfile.TemporaryDirectory(prefix="planner-smi-") as folder:
        script = Path(folder, "nvidia-smi")
        script.write_text(text, encoding="utf-8")
        script.chmod(0o700)
        with mock.patch.dict(os.environ, {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}):
            yield
