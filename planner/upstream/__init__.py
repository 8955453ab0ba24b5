"""What planner relies on inside torch, transformers and DeepSpeed beyond their public interfaces, in one list.

`table` lists every patch, overridden or called private name and mirrored constant, with its reason and its test, and
applies no patch that is not in the list; `importing` patches a module when it is imported; `checking` compares the
installed packages with the sources that the list was written for. It imports no package that it describes, and never
changes what they compute. The packages that run torch's code (paper, training, tracing, measuring) call it.
"""

from planner.upstream.importing import Patch, when_imported
from planner.upstream.table import Wrapper, patch_targets

__all__ = ["Patch", "Wrapper", "patch_targets", "when_imported"]
