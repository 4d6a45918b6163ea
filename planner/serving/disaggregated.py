"""A disaggregated deployment: what its clients see, and what one request takes by itself."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, gcd

from costmodels.basis import Basis
from planner.request.lengths import Load
from planner.request.plan import Plan, TwoPools
from planner.scenario.scenario import Scenario, lengths_of
from planner.search.clients import Serving
from planner.search.estimate import Disaggregated, PlanEstimate, Rejected, WorkerPool
from planner.search.judging import judge
from planner.serving.cache import Transfer, transfer_of
from planner.serving.pools import DecodeQueue, Pools, PrefillQueue
from planner.serving.scheduler import Trail
from planner.serving.serving import (
    MOST_REQUESTS,
    OverloadedError,
    Served,
    check_context,
    loaded,
    missed,
    serve,
    served,
)
from planner.strategies import parse_pools
from topology.base import IllegalPlanError, InputError
from topology.base.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Paired(Served):
    """Both pools, ready to be given requests; what `Served` says is of the workers that decode.

    engines : groups of workers, all with the same numbers of both kinds, that share the requests.
    prefill : a worker that runs prompts. pools : all workers. transfer : between them.
    """

    prefill: Served
    pools: TwoPools
    transfer: Transfer

    @property
    def gpus(self) -> int:
        return self.pools.gpus

    @property
    def ranks(self) -> tuple[int, int]:
        """Engines with requests of their own, of each pool in one group."""
        prefills, decodes = engines_of(self.pools)
        return prefills // self.engines, decodes // self.engines

    @property
    def capacity(self) -> int:
        """Tokens that the caches of a group's decode workers hold."""
        return self.pool.tokens * self.ranks[1]

    @property
    def places(self) -> int:
        """Requests that fit at once in all caches of workers that decode."""
        request_tokens = self.lengths.prompt + self.lengths.output + self.ways.block
        return (
            min(self.pool.tokens // request_tokens, self.ways.rows) * self.ranks[1] * self.engines
        )

    def under(self, load: Load) -> Trail:
        """Follow the requests of one group of workers."""
        prefill, decode = self.prefill.workers, self.workers
        rerun_prompt = self.transfer.ways.again
        prefills = [PrefillQueue(prefill, self.prefix) for _ in range(self.ranks[0])]
        decodes = [DecodeQueue(decode, self.gain, again=rerun_prompt) for _ in range(self.ranks[1])]
        return Pools(prefills, decodes, self.transfer.after, load).run()

    @property
    def prefill_told(self) -> dict[str, int]:
        """Give the sizes that a worker for prompts was assumed to have: tokens of a step."""
        limits = self.prefill.told(None)
        return {name: limits[name] for name in ("length", "chunk")}

    def told(self, concurrency: float | None) -> dict[str, int]:
        """Give the limits of a worker that decodes: requests at once, and tokens."""
        rows = self.ways.rows
        if concurrency is not None:
            rows = min(rows, ceil(concurrency / (self.ranks[1] * self.engines)))
        return {"batch": rows, "length": self.lengths.longest}


def engines_of(pools: TwoPools) -> tuple[int, int]:
    """Count the engines with requests of their own in each pool.

    >>> engines_of(TwoPools(prefill=Plan((("dp", 2),)), prefills=3, decode=Plan(), decodes=4))
    (6, 4)
    """
    return pools.prefills * pools.prefill.replicas, pools.decodes * pools.decode.replicas


def paired(scenario: Scenario, pools: TwoPools, most: int) -> Paired | str:
    """Make two pools ready to serve at most so many requests at once, or say why they cannot."""
    lengths = lengths_of(scenario)
    ways = scenario.deployment.scheduling
    prompts = ceil(ways.chunk / lengths.prompt) * pools.prefill.replicas
    prefill = served(scenario.on(pools.prefill.gpus), pools.prefill, lengths, prompts)
    if isinstance(prefill, str):
        return f"prefill: {prefill}"
    worker_requests = max(ceil(most / pools.decodes), pools.decode.replicas)
    decode = served(scenario.on(pools.decode.gpus), pools.decode, lengths, worker_requests)
    if isinstance(decode, str):
        return f"decode: {decode}"
    return join(scenario, pools, prefill, decode)


def join(scenario: Scenario, pools: TwoPools, prefill: Served, decode: Served) -> Paired:
    """Put workers of two pools together."""
    longest = max(1, prefill.lengths.longest - 1)
    return Paired(
        plan=pools.decode,
        ways=decode.ways,
        lengths=decode.lengths,
        engines=gcd(*engines_of(pools)),
        pool=decode.pool,
        steps=decode.steps,
        prefix=decode.prefix,
        gain=decode.gain,
        prefill=prefill,
        pools=pools,
        transfer=transfer_of(scenario, pools, longest),
    )


def estimate_pools(scenario: Scenario) -> PlanEstimate:
    """Estimate the two pools that a request names.

    Raises `InputError` if their GPUs are not those of the request, or `IllegalPlanError` if the
    workers of one cannot run or do not fit, or cannot serve the load, or `OverloadedError` if more
    requests come than they serve.
    """
    request, pools = scenario.request, parse_pools(scenario.request)
    if request.gpus != pools.gpus:
        raise InputError(f"gpus: got {request.gpus}, wanted {pools.gpus}, those of {pools}")
    if reason := scenario.deployment.disaggregation.reason:
        raise IllegalPlanError(f"{pools}: {scenario.deployment.engine} {reason}")
    for plan in (pools.prefill, pools.decode):
        if reason := scenario.deployment.disaggregation.bars(plan):
            raise IllegalPlanError(f"{pools}: {scenario.deployment.engine} {reason}")
    if not request.loaded:
        ready = paired(scenario, pools, pools.decodes * pools.decode.replicas)
        return alone(scenario, _required_pair(ready, pools))
    check_context(scenario.model, lengths_of(scenario))
    max_requests = request.concurrency or MOST_REQUESTS * engines_of(pools)[1]
    ready = _required_pair(paired(scenario, pools, max_requests), pools)
    serving = serve(scenario, ready)
    if serving.overloaded:
        raise OverloadedError(f"{pools}: {missed(serving, request)}")
    return with_serving(ready, alone(scenario, ready), serving)


def _required_pair(ready: Paired | str, pools: TwoPools) -> Paired:
    if isinstance(ready, str):
        raise IllegalPlanError(f"{pools}: {ready}")
    return ready


def with_serving(ready: Paired, estimate: PlanEstimate, serving: Serving) -> PlanEstimate:
    """Add to an estimate of two pools what their clients see; memory is of the fullest GPU."""
    disaggregated = estimate.disaggregated
    assert disaggregated is not None
    parts = {**disaggregated.decode.memory_parts_bytes, **serving.memory}
    decode = replace(
        disaggregated.decode,
        memory_bytes=sum(size for name, size in parts.items() if name != estimate.memory_apart),
        memory_parts_bytes=parts,
        told=serving.told,
    )
    fullest = max(disaggregated.prefill, decode, key=lambda pool: pool.memory_bytes)
    return replace(
        loaded(estimate, serving),
        memory_bytes=fullest.memory_bytes,
        memory_parts_bytes=fullest.memory_parts_bytes,
        disaggregated=replace(
            disaggregated,
            prefill=replace(disaggregated.prefill, told=ready.prefill_told),
            decode=decode,
        ),
    )


def alone(scenario: Scenario, ready: Paired) -> PlanEstimate:
    """Estimate one request that has both pools to itself.

    Raises `IllegalPlanError` if the workers of one pool cannot run or do not fit.
    """
    pools = ready.pools
    one_token, no_tokens = (
        replace(scenario, workload=replace(scenario.workload, output_tokens=tokens))
        for tokens in (1, 0)
    )
    prefill = _worker_estimate("prefill", one_token, pools.prefill)
    decode = _worker_estimate("decode", scenario, pools.decode)
    prompt = ready.lengths.prompt
    transfer_s = ready.transfer.after(prompt, prompt)
    stages = {
        "prefill": prefill.stages_s["prefill"],
        "transfer": transfer_s,
        "decode": decode.stages_s["decode"],
    }
    bare_prefill, bare_decode = (
        _worker_estimate("", no_tokens, plan) for plan in (pools.prefill, pools.decode)
    )
    decoding = {
        name: s - bare_decode.breakdown_s.get(name, 0.0) for name, s in decode.breakdown_s.items()
    }
    parts = _summed_parts(
        _scaled_parts(bare_prefill.breakdown_s, stages["prefill"]),
        _scaled_parts(decoding, stages["decode"]),
        {"communication_exposed": transfer_s},
    )
    engines = engines_of(pools)
    bottleneck_s = max(stages["prefill"] / engines[0], stages["decode"] / engines[1])
    fullest = max(prefill, decode, key=lambda worker: worker.memory_bytes)
    return replace(
        decode,
        gpus=pools.gpus,
        latency_s=sum(stages.values()),
        stages_s=stages,
        breakdown_s=parts,
        communication_hidden_s=bare_prefill.communication_hidden_s
        + decode.communication_hidden_s
        - bare_decode.communication_hidden_s,
        memory_bytes=fullest.memory_bytes,
        memory_parts_bytes=fullest.memory_parts_bytes,
        peak_stage=fullest.peak_stage,
        throughput_per_s=1 / bottleneck_s,
        known=_weaker_bases(prefill.known, decode.known),
        placement=None,
        disaggregated=Disaggregated(
            pools=pools,
            prefill=_worker_pool(prefill, pools.prefills),
            decode=_worker_pool(decode, pools.decodes),
            sent_bytes=ready.transfer.bytes(prompt),
            sent_s=transfer_s,
        ),
    )


def _worker_pool(worker: PlanEstimate, count: int) -> WorkerPool:
    return WorkerPool(
        plan=worker.plan,
        workers=count,
        memory_bytes=worker.memory_bytes,
        memory_parts_bytes=worker.memory_parts_bytes,
    )


def _worker_estimate(pool: str, scenario: Scenario, plan: Plan) -> PlanEstimate:
    outcome = judge(scenario.on(plan.gpus), plan)
    if isinstance(outcome, Rejected):
        raise IllegalPlanError(f"{pool} plan {plan}: {outcome.explanation}")
    return outcome


def _summed_parts(*breakdowns: Mapping[str, float]) -> dict[str, float]:
    """Add up times part by part."""
    names = dict.fromkeys(name for breakdown in breakdowns for name in breakdown)
    return {name: sum(breakdown.get(name, 0.0) for breakdown in breakdowns) for name in names}


def _scaled_parts(parts: Mapping[str, float], total_s: float) -> dict[str, float]:
    """Make parts add up to a stage, as a prefill that keeps nothing takes a little less."""
    positive = {name: max(0.0, seconds) for name, seconds in parts.items()}
    total = sum(positive.values())
    return (
        {name: seconds * total_s / total for name, seconds in positive.items()}
        if total
        else positive
    )


def _weaker_bases(prefill: Mapping[str, Basis], decode: Mapping[str, Basis]) -> dict[str, Basis]:
    """Take the weaker basis of each part."""
    return {
        name: max(bases[name] for bases in (prefill, decode) if name in bases)
        for name in {**prefill, **decode}
    }
