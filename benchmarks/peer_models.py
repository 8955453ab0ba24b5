"""The modules of the jobs of benchmarks/peers.py, for tools that look at parameters or run a step of their own."""

from __future__ import annotations

import peer_jobs
import torch
from peer_jobs import PeerJob
from torch import nn

from planner.job.loading import load_job
from planner.job.schema import Model
from planner.training.models.build import from_factory


def module_of(job: PeerJob) -> nn.Module:
    """The whole model of a job, on whichever device is the default here, or where a mode around it puts it."""
    if job.program:
        peer_jobs.recorded_programs()
        from recorded_language_models import MediumModel

        return MediumModel(peer_jobs.CONTEXT)
    return of_spec(load_job(job.spec_path).model)


def of_spec(model: Model) -> nn.Module:
    """The model of a spec in the dtype of its parameters, in training mode.

    Not `planner.training.models.build`, which moves it in the end: torch 2.13 moves no module of fake tensors.
    """
    if model.factory:
        return from_factory(model.factory, model.factory_arguments, model.factory_path).train()
    from planner.training.models import transformers_models

    dtype = getattr(torch, model.parameter_dtype)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return transformers_models.from_config(model, dtype).train()
    finally:
        torch.set_default_dtype(before)
