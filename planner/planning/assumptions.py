"""What a plan takes for granted of how a transformers model is called, in a sentence for people."""

from __future__ import annotations

from planner.job.schema import Job

_PADDING = {
    "none": "sequences of one length without an attention mask (train.padding: none)",
    "right": "batches with gaps and an attention mask (train.padding: right)",
}


def assumptions_of(job: Job) -> tuple[str, ...]:
    """Which padding and which cache of keys and values were taken; nothing for models that take no tokens."""
    config, train = job.model.hf_config, job.train
    if config is None or not train.sequence_length:
        return ()
    taken = [_PADDING[train.padding]]
    if train.lengths is not None:
        taken = [taken[0].replace("sequences of one length", "sequences padded to the longest of their batch")]
    if "vision_config" in config and not train.inputs:
        taken.append(
            "a picture of the config's size in each sequence, none where it does not say how many tokens one takes"
        )
    if job.model.use_cache:
        taken.append("past_key_values are made in training (model.use_cache: true)")
    elif config.get("use_cache", True) and train.recompute.mode == "none":
        taken.append("no past_key_values in training (model.use_cache: false, as transformers' Trainer has it)")
    return (f"Taken for the batches: {'; '.join(taken)}.",)
