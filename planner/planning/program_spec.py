"""Writes a spec out of a program's run: what a spec can say of it, and in comments what it cannot."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from planner.errors import PlannerError, SpecError
from planner.job.loading import load_document
from planner.job.printing import plain_yaml, short_yaml
from planner.planning.program import ProgramInputs
from planner.tracing.program.rank_orders import RankRun

_PRECISIONS = {"bfloat16": "bf16_autocast", "float16": "fp16_autocast"}
_MODELS_TAKE = ("input_ids", "labels")


class _Draft:
    """A spec in the making, with the sentences on what it leaves open."""

    def __init__(self) -> None:
        self.model: dict[str, Any] = {}
        self.train: dict[str, Any] = {}
        self.parallel: dict[str, Any] = {}
        self.open: list[str] = []


def spec_text(run: RankRun, work: ProgramInputs) -> str:
    """The spec as YAML, with comments. Raises SpecError for a program of which no module was seen being trained."""
    outline = run.outline
    if not outline or run.infers:
        raise SpecError(
            "no module was seen being trained, so there is no spec to save",
            allowed="a program that calls an nn.Module, with gradients",
            place="--save-spec",
        )
    draft = _Draft()
    _say_model(draft, outline, work)
    _say_step(draft, outline)
    _say_optimizer(draft, outline["optimizers"])
    _say_layout(draft, outline, work)
    if run.seen.get("eval"):
        draft.open.append("evaluations were seen: train.eval describes one")
    if run.seen.get("load"):
        draft.open.append("a checkpoint was loaded: train.checkpoint_load says how")
    document = {
        "model": draft.model,
        "train": draft.train,
        "parallel": draft.parallel,
        "cluster": {
            "nodes": work.line.nodes, "gpus_per_node": work.line.processes_per_node,
            "gpu": work.gpu.written,
        },
        "software": {"torch": work.software.torch, "cuda": work.software.cuda},
        **({"allocator": {"conf": run.allocator_conf}} if run.allocator_conf else {}),
    }  # fmt: skip
    return _as_text(document, draft.open, work.command)


def _as_text(document: Mapping[str, Any], left_open: Sequence[str], command: Sequence[str]) -> str:
    sentences = list(left_open)
    try:
        body = short_yaml(load_document(document))
    except PlannerError as error:
        body = plain_yaml(document)
        sentences.append(f"it cannot be planned as it is: {' '.join(str(error).split())}")
    head = [f"What planner run saw of: {shlex.join(command)}"]
    if sentences:
        head += ["Not said here, or to be completed:", *(f"- {each}" for each in sentences)]
    return "".join(f"# {' '.join(each.split())}\n" for each in head) + body


def _say_model(draft: _Draft, outline: Mapping[str, Any], work: ProgramInputs) -> None:
    model, inputs = outline["model"], outline["inputs"]
    if model["config"] is not None and "input_ids" in inputs:
        draft.model["hf_config"] = model["config"]
        draft.model["parameter_dtype"] = max(model["dtypes"], key=lambda name: model["dtypes"][name])
        if model["attention"] in ("sdpa", "eager"):
            draft.model["attention"] = model["attention"]
        elif model["attention"]:
            draft.open.append(f"attention is {model['attention']}, and a spec says sdpa or eager")
        _say_tokens(draft, inputs)
    else:
        _say_factory(draft, model["class"], inputs, work)
    if model["frozen"]:
        draft.open.append(f"{model['frozen']} parameters are not trained: model.adapter says so of LoRA by peft")


def _say_tokens(draft: _Draft, inputs: Mapping[str, Any]) -> None:
    batch, length = inputs["input_ids"]["shape"]
    draft.train.update(micro_batch_size=batch, sequence_length=length)
    if "labels" in inputs:
        draft.train["loss"] = {"name": "model"}
    else:
        draft.open.append("the model is given no labels: train.loss is taken for a cross entropy of its logits")
    others = [name for name in inputs if name not in _MODELS_TAKE]
    if others:
        draft.open.append(f"the model is given {', '.join(others)} too (train.padding is for a mask with gaps)")


def _say_factory(draft: _Draft, name: str, inputs: Mapping[str, Any], work: ProgramInputs) -> None:
    """The class by its name; what it is made with nobody saw."""
    module, _, qualified = name.partition(":")
    if module == "__main__":
        module = work.line.program if work.line.is_module else PurePosixPath(work.line.program).stem
        draft.open.append(f"{qualified} is defined in the program itself: importing {module} must not train")
    draft.model["factory"] = f"{module}:{qualified}"
    draft.open.append("model.factory is the model's class: complete model.factory_arguments, or name a function")
    if not inputs:
        draft.open.append("no tensor was seen among the model's arguments: write train.inputs")
        return
    draft.train["micro_batch_size"] = next(iter(inputs.values()))["shape"][0] if _has_batch(inputs) else 1
    draft.train["inputs"] = {
        re.sub(r"\W", "_", argument): {"shape": each["shape"][1:], "dtype": each["dtype"]}
        for argument, each in inputs.items()
    }
    if any(not each["dtype"].startswith(("float", "bfloat")) for each in inputs.values()):
        draft.open.append("train.inputs of whole numbers need their maximum (size of the vocabulary, classes)")
    draft.open.append("train.loss is not known: how the program makes one number of what the model returns")


def _has_batch(inputs: Mapping[str, Any]) -> bool:
    return bool(next(iter(inputs.values()))["shape"])


def _say_step(draft: _Draft, outline: Mapping[str, Any]) -> None:
    train = draft.train
    train["precision"] = _PRECISIONS.get(outline["autocast"], "none")
    if outline["autocast"] and outline["autocast"] not in _PRECISIONS:
        draft.open.append(f"autocast is of {outline['autocast']}")
    train["gradient_accumulation_steps"] = outline["accumulation"]
    if outline["clips"]:
        train["gradient_clipping"] = outline["clips"]
    if outline["model"]["recomputes"]:
        train["recompute"] = "full"
        draft.open.append("blocks are recomputed: each of them, in full, as far as was seen")
    if outline["keeps_output"]:
        train["loss"] = {**train.get("loss", {}), "keep_output": True}


def _say_optimizer(draft: _Draft, optimizers: Sequence[Mapping[str, Any]]) -> None:
    if not optimizers:
        draft.open.append("no optimizer of torch.optim was seen to step")
        return
    first = max(optimizers, key=lambda each: int(each["parameters"]))
    if len(optimizers) > 1:
        others = ", ".join(str(each["class"]).rpartition(":")[2] for each in optimizers if each is not first)
        draft.open.append(f"there are other optimizers: {others}")
    module, _, name = str(first["class"]).partition(":")
    package = module.partition(".")[0]
    if package == "torch":
        known = name
    elif package in ("bitsandbytes", "torchao"):
        known = f"{package}.{name}"
    else:
        draft.open.append(f"the optimizer is {first['class']}, which a spec cannot name: AdamW stands in its place")
        return
    draft.train["optimizer"] = {"name": known, **first["arguments"]}
    if first["groups"] > 1:
        draft.open.append(f"its optimizer has {first['groups']} groups of parameters; their settings are the first's")


def _say_layout(draft: _Draft, outline: Mapping[str, Any], work: ProgramInputs) -> None:
    ddp, fsdp = outline["ddp"], outline["fsdp"]
    if outline["engine"]:
        draft.open.append(f"{outline['engine']} is at work: name its config in parallel.deepspeed")
    if ddp is not None:
        draft.parallel["dp_replicate"] = dict(ddp)
    if fsdp is not None:
        _say_fsdp(draft, fsdp, outline["autocast"])
    for names, sizes in outline["meshes"]:
        if "tp" in names:
            draft.parallel["tp"] = {"degree": sizes[names.index("tp")]}
            draft.open.append("layers are split (tp): by which plan was not read; the model's own is taken")
    if work.line.world_size > 1 and not draft.parallel:
        draft.open.append("how the ranks divide the work was not seen: write parallel")


def _say_fsdp(draft: _Draft, fsdp: Mapping[str, Any], autocast: str) -> None:
    *replicas, degree = fsdp["mesh"]
    said: dict[str, Any] = {"degree": degree, "reshard_after_forward": fsdp["reshards"]}
    if fsdp["param_dtype"] and not autocast:
        draft.train["precision"] = "fsdp_mixed"
        said["reduce_dtype"] = fsdp["reduce_dtype"] or fsdp["param_dtype"]
        if fsdp["param_dtype"] != "bfloat16":
            draft.open.append(f"fully_shard gathers {fsdp['param_dtype']}, and a spec says bfloat16")
    elif fsdp["param_dtype"]:
        draft.open.append(f"under autocast fully_shard gathers {fsdp['param_dtype']}, which a spec cannot say")
    if fsdp["offload"]:
        said["offload"] = "cpu"
    others = [each for each in fsdp["modules"] if each and not re.search(r"\.\d+$", each)]
    if others:
        said["groups"] = others
    if replicas:
        draft.parallel["dp_replicate"] = replicas[0]
    draft.parallel["dp_shard"] = said
