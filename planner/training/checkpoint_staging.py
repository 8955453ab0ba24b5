"""What async_save copies to the host before a thread writes it (torch 2.9: checkpoint/staging.py)."""

from __future__ import annotations

from typing import Any

from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions


class KeepingStager(DefaultStager):
    """Holds what it has staged, which else the thread that writes would be the last to give up."""

    staged: Any = None

    def __init__(self, *, pinned: bool) -> None:
        # Shared memory is for the process that writes, where it is not a thread.
        options = StagingOptions(
            use_pinned_memory=pinned, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=pinned
        )
        super().__init__(options)

    def stage(self, state_dict: dict[str, Any], **options: Any) -> Any:
        self.staged = super().stage(state_dict, **options)
        return self.staged
