"""What tests share: requests answered once, and schedules, plans, sizes and nonsense to draw."""

from functools import cache, lru_cache

from hypothesis import strategies as st

from costmodels.basis import Basis
from costmodels.price import Priced
from costmodels.program import Pointwise, Tensor
from planner.recommendation import recommend_plans
from planner.request.plan import Plan
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.estimate import PlanEstimate
from planner.search.evaluate import Shared, price
from planner.search.judging import judge
from planner.search.plans import plans
from planner.search.ranking import search
from planner.strategies import parse_plan, strategies
from topology.base import InputError

MODELS = ("cosmos3-nano", "flux.1-dev", "wan2.1-14b", "hunyuanvideo", "sd3.5-large", "qwen-image")
"""Diffusion models with one and two forwards a step, with joint and with cross attention."""


@cache
def asked(model, gpus=8, **more):
    """A request with everything it names looked up."""
    return resolve(Request(model=model, gpus=gpus, **more))


@lru_cache(maxsize=8)
def shared(model, gpus):
    """What answers for a model on so many GPUs of any kind in the catalogue have in common."""
    return Shared()


@cache
def recommended(model, gpus=8, **more):
    """Every plan of a request, ranked."""
    return recommend_plans(asked(model, gpus, **more), shared(model, gpus))


@cache
def ranked(model, gpus=8, **more):
    """Every plan of a request, ranked, without a look at who runs them: a third of the work."""
    return search(asked(model, gpus, **more), shared(model, gpus))


def judge_all(scenario):
    """What becomes of every plan of all GPUs, each judged by itself."""
    shared = Shared()
    return [
        judge(scenario, plan, shared) for plan in plans(scenario.model, scenario.deployment.gpus)
    ]


@cache
def priced(model, plan="single", **more):
    """One legal plan, whether or not it fits."""
    found = parse_plan(plan)
    return price(asked(model, found.gpus, **more), found, shared(model, found.gpus))


def made(**changes):
    """An estimate of round numbers."""
    return PlanEstimate(
        **{
            "model": "m",
            "hardware": "h",
            "gpus": 2,
            "plan": parse_plan("tp2"),
            "runtime": "tensorrt",
            "precision": "bf16",
            "latency_s": 10.0,
            "step_s": 1.0,
            "stages_s": {"denoise": 10.0},
            "breakdown_s": {"gemm": 6.0, "attention": 3.0, "communication_exposed": 1.0},
            "communication_hidden_s": 0.5,
            "memory_bytes": 1e9,
            "memory_parts_bytes": {"runtime": 1e9},
            "peak_stage": "denoise",
            "throughput_per_s": 0.1,
            "known": {"gemm": Basis.CALIBRATED, "attention": Basis.DATASHEET},
            **changes,
        }
    )


def tried(function, *arguments, **more):
    """What a function returns, and "", or None and the line that it has for bad input."""
    try:
        return function(*arguments, **more), ""
    except InputError as error:
        return None, str(error)


def task(name, stream, seconds, after=()):
    """An operation with its price: writes the tensor `name`, reads those in `after`."""
    op = Pointwise(
        function="norm",
        inputs=tuple(Tensor(before, (1,)) for before in after),
        outputs=(Tensor(name, (1,)),),
        stream=stream,
    )
    kind = "communication" if stream == "comm" else "pointwise"
    return op, Priced(kind=kind, seconds=float(seconds), kernels=1)


@st.composite
def schedules(draw, most=8):
    """Tasks on two streams, each reading the results of some earlier ones."""
    tasks = []
    for number in range(draw(st.integers(0, most))):
        earlier = [f"t{before}" for before in range(number)]
        after = draw(st.sets(st.sampled_from(earlier), max_size=3)) if earlier else ()
        stream = draw(st.sampled_from(["compute", "comm"]))
        tasks.append(task(f"t{number}", stream, draw(st.integers(0, 100)), sorted(after)))
    return tasks


@st.composite
def any_plans(draw):
    """Plans as the parser returns them: distinct axes, degrees above one."""
    names = draw(st.lists(st.sampled_from(list(strategies())), unique=True, max_size=4))
    degrees, beside = st.integers(2, 4096), st.integers(1, 4096)
    kept = tuple((name, draw(degrees)) for name in names)
    return Plan(kept, vae=draw(beside), ep=draw(beside))


@st.composite
def videos(draw):
    """Height, width, frames and steps that every model in `MODELS` takes but for the frames."""
    side = st.integers(4, 24).map(lambda units: 32 * units)
    return {
        "height": draw(side),
        "width": draw(side),
        "frames": 1 + 4 * draw(st.integers(0, 30)),
        "steps": draw(st.integers(1, 50)),
    }


nonsense = st.one_of(
    st.text(max_size=12),
    st.integers(-(10**30), 10**30).map(str),
    st.floats().map(str),
    st.sampled_from(["", "-1", "0", "nan", "inf", "1e400", "10" * 200, "\x00", "\n", "é", "--"]),
)
"""Text where a name or a number belongs."""
