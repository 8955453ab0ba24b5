"""Writes a spec out of a program's run: what a spec can say of it, and in comments what it cannot."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from planner.errors import PlannerError, SpecError
from planner.events import Category
from planner.job.loading import load_document, load_yaml
from planner.job.masking import CommandMask
from planner.job.printing import plain_yaml, short_yaml
from planner.planning.job_plan import plan_job
from planner.planning.planned_classes import Progress
from planner.planning.program import ProgramInputs
from planner.planning.trace_source import TraceSource
from planner.report.statement import ProgramStatement
from planner.tracing.program.rank_orders import RankRun
from planner.units import show_bytes

_ALIKE = 0.01
"""By how much allocated peaks of a spec and its program differ where the spec says all (tests: 0.001)."""
_MOST_PARTS = 3
_PRECISIONS = {"bfloat16": "bf16_autocast", "float16": "fp16_autocast"}


def spec_text(run: RankRun, work: ProgramInputs) -> str:
    """The spec as YAML, with comments. Raises SpecError for a program of which no module was seen being trained."""
    if not run.outline or run.infers:
        raise SpecError(
            "no module was seen being trained, so there is no spec to save",
            allowed="a program that calls an nn.Module, with gradients",
            place="--save-spec",
        )
    draft = _Draft(run.outline, work)
    draft.write_model()
    draft.write_step()
    draft.write_optimizer(run.outline["optimizers"])
    draft.write_layout()
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
    try:
        body = short_yaml(load_document(document))
    except PlannerError as error:
        body = plain_yaml(document)
        draft.open.append(f"it cannot be planned as it is: {error.one_line}")
    head = [f"What planner run saw of: {shlex.join(CommandMask(work.command, work.line.environment).words)}"]
    if draft.open:
        head += ["Not said here, or to be completed:", *(f"- {sentence}" for sentence in draft.open)]
    return "".join(f"# {' '.join(line.split())}\n" for line in head) + body


def compare_peaks(text: str, run: ProgramStatement, source: TraceSource, progress: Progress = lambda _: None) -> str:
    """A sentence: what the saved spec plans to beside the run of its program, or why it cannot be planned yet."""
    try:
        job = load_yaml(text)
        if job.model.factory:
            return "The saved spec was not planned: model.factory is to be completed."
        progress("planning the saved spec")
        plan = plan_job(job, source=source).plan
    except PlannerError as error:
        return f"The saved spec cannot be planned as it is: {error.one_line}"
    of_spec, of_run = (max(each.rank_classes, key=lambda ranks: ranks.peak.device_bytes) for each in (plan, run))
    figures = [
        f"{show_bytes(ranks.peak.allocated_bytes)} allocated, {show_bytes(ranks.peak.reserved_bytes)} reserved"
        for ranks in (of_spec, of_run)
    ]
    sentence = f"The saved spec plans to a peak of {figures[0]}; that of the program is {figures[1]}."
    if abs(of_spec.peak.allocated_bytes / of_run.peak.allocated_bytes - 1) <= _ALIKE:
        return sentence
    parts = sorted(Category, key=lambda part: -abs(of_spec.at_peak.get(part, 0) - of_run.at_peak.get(part, 0)))
    different = (
        f"{part.value} {show_bytes(of_spec.at_peak.get(part, 0))} for {show_bytes(of_run.at_peak.get(part, 0))}"
        for part in parts[:_MOST_PARTS]
    )
    return f"{sentence} The spec does not say all of the program: at the peak {', '.join(different)}."


class _Draft:
    """A spec in the making, with the sentences on what it leaves open."""

    def __init__(self, outline: Mapping[str, Any], work: ProgramInputs) -> None:
        self._outline, self._work = outline, work
        self.model: dict[str, Any] = {}
        self.train: dict[str, Any] = {}
        self.parallel: dict[str, Any] = {}
        self.open: list[str] = []

    def write_model(self) -> None:
        model, inputs = self._outline["model"], self._outline["inputs"]
        if model["config"] is not None and "input_ids" in inputs:
            self.model["hf_config"] = model["config"]
            self.model["parameter_dtype"] = max(model["dtypes"], key=lambda name: model["dtypes"][name])
            if model["attention"] in ("sdpa", "eager"):
                self.model["attention"] = model["attention"]
            elif model["attention"]:
                self.open.append(f"attention is {model['attention']}, and a spec says sdpa or eager")
            batch, length = inputs["input_ids"]["shape"]
            self.train.update(micro_batch_size=batch, sequence_length=length)
            if "labels" in inputs:
                self.train["loss"] = {"name": "model"}
            else:
                self.open.append(
                    "the model is given no labels: train.loss is assumed to be a cross entropy of its logits"
                )
            others = [name for name in inputs if name not in ("input_ids", "labels")]
            if others:
                self.open.append(f"the model is given {', '.join(others)} too (train.padding is for a mask with gaps)")
        else:
            self._write_factory(model["class"], inputs)
        if model["frozen"]:
            self.open.append(f"{model['frozen']} parameters are not trained: model.adapter says so of LoRA by peft")

    def _write_factory(self, name: str, inputs: Mapping[str, Any]) -> None:
        """The class by its name; what it is made with nobody saw."""
        module, _, qualified = name.partition(":")
        if module == "__main__":
            line = self._work.line
            module = line.program if line.is_module else PurePosixPath(line.program).stem
            self.open.append(f"{qualified} is defined in the program itself: importing {module} must not train")
        self.model["factory"] = f"{module}:{qualified}"
        self.open.append("model.factory is the model's class: complete model.factory_arguments, or name a function")
        if not inputs:
            self.open.append("no tensor was seen among the model's arguments: write train.inputs")
            return
        first = next(iter(inputs.values()))["shape"]
        self.train["micro_batch_size"] = first[0] if first else 1
        self.train["inputs"] = {
            re.sub(r"\W", "_", argument): {"shape": tensor["shape"][1:], "dtype": tensor["dtype"]}
            for argument, tensor in inputs.items()
        }
        if any(not tensor["dtype"].startswith(("float", "bfloat")) for tensor in inputs.values()):
            self.open.append("train.inputs of whole numbers need their maximum (size of the vocabulary, classes)")
        self.open.append("train.loss is not known: how the program makes one number of what the model returns")

    def write_step(self) -> None:
        outline, train = self._outline, self.train
        train["precision"] = _PRECISIONS.get(outline["autocast"], "none")
        if outline["autocast"] and outline["autocast"] not in _PRECISIONS:
            self.open.append(f"autocast is of {outline['autocast']}")
        train["gradient_accumulation_steps"] = outline["accumulation"]
        if outline["clips"]:
            train["gradient_clipping"] = outline["clips"]
        self._write_recompute(outline["model"]["recomputed"], outline["model"]["wrapped"])
        if outline["keeps_output"]:
            train["loss"] = {**train.get("loss", {}), "keep_output": True}

    def _write_recompute(self, recomputed: Sequence[bool], wrapped: int) -> None:
        """Of each block whether it is, and how many modules torch wraps for it."""
        blocks = len(recomputed)
        for every in range(1, blocks + 1):
            if list(recomputed) == [at % every == every - 1 for at in range(blocks)]:
                self.train["recompute"] = "full" if every == 1 else {"every": every}
                self.open.append(f"{sum(recomputed)} of {blocks} blocks recompute: in full, as far as was seen")
                return
        if wrapped or any(recomputed):
            self.open.append(
                f"{sum(recomputed)} of {blocks} blocks recompute ({wrapped} wrapped modules), which train.recompute"
                " cannot say: it is none"
            )

    def write_optimizer(self, optimizers: Sequence[Mapping[str, Any]]) -> None:
        if not optimizers:
            self.open.append("no optimizer of torch.optim was seen to step")
            return
        first = max(optimizers, key=lambda optimizer: int(optimizer["parameters"]))
        if len(optimizers) > 1:
            others = (str(optimizer["class"]).rpartition(":")[2] for optimizer in optimizers if optimizer is not first)
            self.open.append(f"there are other optimizers: {', '.join(others)}")
        module, _, name = str(first["class"]).partition(":")
        package = module.partition(".")[0]
        if package not in ("torch", "bitsandbytes", "torchao"):
            self.open.append(f"the optimizer is {first['class']}, which a spec cannot name: AdamW stands in its place")
            return
        self.train["optimizer"] = {"name": name if package == "torch" else f"{package}.{name}", **first["arguments"]}
        if first["groups"] > 1:
            self.open.append(
                f"its optimizer has {first['groups']} groups of parameters; their settings are the first's"
            )

    def write_layout(self) -> None:
        outline = self._outline
        if outline["engine"]:
            self.open.append(f"{outline['engine']} is at work: name its config in parallel.deepspeed")
        if outline["ddp"] is not None:
            self.parallel["dp_replicate"] = dict(outline["ddp"])
        if outline["fsdp"] is not None:
            self._write_fsdp(outline["fsdp"], outline["autocast"])
        for names, sizes in outline["meshes"]:
            if "tp" in names:
                self.parallel["tp"] = {"degree": sizes[names.index("tp")]}
                self.open.append("layers are split (tp): by which plan was not read; the model's own is taken")
        if self._work.line.world_size > 1 and not self.parallel:
            self.open.append("how the ranks divide the work was not seen: write parallel")

    def _write_fsdp(self, fsdp: Mapping[str, Any], autocast: str) -> None:
        *replicas, degree = fsdp["mesh"]
        shard: dict[str, Any] = {"degree": degree, "reshard_after_forward": fsdp["reshards"]}
        if fsdp["param_dtype"] and not autocast:
            self.train["precision"] = "fsdp_mixed"
            shard["reduce_dtype"] = fsdp["reduce_dtype"] or fsdp["param_dtype"]
            if fsdp["param_dtype"] != "bfloat16":
                self.open.append(f"fully_shard gathers {fsdp['param_dtype']}, and a spec says bfloat16")
        elif fsdp["param_dtype"]:
            self.open.append(f"under autocast fully_shard gathers {fsdp['param_dtype']}, which a spec cannot say")
        if fsdp["offload"]:
            shard["offload"] = "cpu"
        others = [name for name in fsdp["modules"] if name and not re.search(r"\.\d+$", name)]
        if others:
            shard["groups"] = others
        if replicas:
            self.parallel["dp_replicate"] = replicas[0]
        self.parallel["dp_shard"] = shard
