"""What tensor and context parallelism ask of a job: what torch refuses is refused here, before anything is traced."""

from __future__ import annotations

from planner.errors import SpecError
from planner.job.nodes import Node
from planner.job.schema import Decoder, Job

_TORCH = "torch 2.13"


def check_split(job: Job, document: Node) -> None:
    """Raises SpecError for the first contradiction; `document` is what the job was read from, for the places."""
    if job.parallel.tp.degree > 1:
        _check_tp(job, document)
    if job.parallel.cp.degree > 1:
        _check_cp(job, document)


def _check_tp(job: Job, document: Node) -> None:
    parallel, tp = job.parallel, job.parallel.tp
    if parallel.dp_replicate.degree > 1 and parallel.dp_shard.degree * parallel.cp.degree == 1:
        node = document.nearest_to("parallel.tp.degree")
        raise SpecError(
            f"tp {tp.degree} under dp_replicate {parallel.dp_replicate.degree}: DistributedDataParallel of {_TORCH} "
            "takes no DTensors",
            allowed="tp with dp_shard, and dp_replicate beside both (HSDP)",
            remedy="shard the parameters: parallel.dp_shard",
            place=node.place,
        )
    if job.model.decoder is not None and not tp.plan:
        _check_decoder(job.model.decoder, tp.degree, document)
    _check_flags(job, document)
    if tp.sequence_parallel:
        _check_tokens(job, document)


def _check_decoder(decoder: Decoder, degree: int, document: Node) -> None:
    """Of heads and of the ffn torch can make no uneven parts; of a vocabulary it can: the last rank gets fewer rows."""
    if decoder.vocab % degree:
        node = document.nearest_to("parallel.tp.degree")
        raise SpecError(
            f"tp {degree} does not divide model.decoder.vocab ({decoder.vocab}): {_TORCH} gives the last rank fewer "
            "rows, which is not planned",
            allowed=f"a divisor of {decoder.vocab}",
            remedy=f"pad the vocabulary to {-(-decoder.vocab // degree) * degree}, as most programs do",
            place=node.place,
        )
    for name in ("heads", "kv_heads", "ffn"):
        size = getattr(decoder, name)
        if size % degree:
            node = document.nearest_to("parallel.tp.degree")
            raise SpecError(
                f"tp {degree} does not divide model.decoder.{name} ({size}), and {_TORCH} splits it evenly only",
                allowed=f"a divisor of {size}",
                place=node.place,
            )


def _check_flags(job: Job, document: Node) -> None:
    model, tp = job.model, job.parallel.tp
    if model.factory and not tp.plan:
        node = document.nearest_to("parallel.tp.degree")
        raise SpecError(
            f"tp {tp.degree} has no plan: nothing says how the factory's model is split",
            allowed='parallel.tp.plan: {"layers.*.up": colwise, "layers.*.down": rowwise}',
            place=node.place,
        )
    own = model.decoder is not None and not tp.plan
    if tp.sequence_parallel and tp.plan:
        node = document.nearest_to("parallel.tp.sequence_parallel")
        raise node.error(
            "is for the model's own plan, and this job has another",
            allowed="false; a plan can say sequence_parallel for single norms",
        )
    if tp.sequence_parallel and not own and job.parallel.pp.degree > 1:
        node = document.nearest_to("parallel.tp.sequence_parallel")
        raise node.error("of a transformers model is not planned between the stages of a pipeline", allowed="false")
    if tp.loss_parallel and not (own or model.hf_config is not None):
        node = document.nearest_to("parallel.tp.loss_parallel")
        raise node.error(
            "needs a head that a plan of a model's own splits", allowed="a decoder without plan, hf_config"
        )
    if tp.loss_parallel and job.train.loss.name != "cross_entropy":
        node = document.nearest_to("parallel.tp.loss_parallel")
        raise node.error(f"is for cross_entropy only ({_TORCH}), and the loss is {job.train.loss.name}")


def _check_tokens(job: Job, document: Node) -> None:
    tokens, cp, tp = job.train.sequence_length, job.parallel.cp.degree, job.parallel.tp.degree
    if tokens % (cp * tp):
        ranks = f"tp({tp})" if cp == 1 else f"cp({cp}) * tp({tp})"
        node = document.nearest_to("train.sequence_length")
        raise node.error(f"is {tokens}, no multiple of {ranks}: sequence parallelism splits the tokens evenly")


def _check_cp(job: Job, document: Node) -> None:
    degree, tokens = job.parallel.cp.degree, job.train.sequence_length
    if not tokens:
        node = document.nearest_to("parallel.cp.degree")
        raise SpecError(
            f"cp {degree} splits sequences of tokens, and the job has no train.sequence_length",
            allowed="models of tokens",
            place=node.place,
        )
    if tokens % (2 * degree):
        node = document.nearest_to("train.sequence_length")
        raise node.error(f"is {tokens}, no multiple of 2 * cp({degree}): each rank holds two chunks of a sequence")
    if job.model.attention != "sdpa":
        node = document.nearest_to("model.attention")
        raise node.error(
            f"is {job.model.attention}, and context_parallel of {_TORCH} is a ring of sdpa", allowed="sdpa"
        )
