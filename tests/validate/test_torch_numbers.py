"""Every strategy, run by processes that talk through gloo, gives what the unsplit model gives.

This file is also what each of those processes runs.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import testmodels

from planner.search.plans import objections
from planner.strategies import parse_plan
from validate.launch import TimeLimits, begin, find_place, launch
from validate.plans import system

torch = pytest.importorskip("torch")

from validate.torch.fuse import Fuser  # noqa: E402
from validate.torch.proof import Comm, ProvedWork, check, setting_for, unsplit  # noqa: E402
from validate.torch.rendezvous import meet  # noqa: E402

ROOT = Path(__file__).parents[2]
DECODERS = list(testmodels.DECODERS)
ALL = [*testmodels.DIFFUSION, *DECODERS]
FEW = [testmodels.flux, testmodels.cosmos3, testmodels.llama]
TWO = ("tp2", "ulysses2", "ring2")
OUTER = ("allgather_kv2", "cfg2", "pp2", "dp2")
FOUR = (
    "tp4", "ring4", "ulysses2.ring2", "allgather_kv2.ulysses2", "ring2.tp2", "cfg2.pp2",
)  # fmt: skip
LINEAR = ("ulysses2.ring2", "allgather_kv4", "allgather_kv2.ulysses2", "cfg2.tp2", "ring2.tp2")
EXPERTS = ("tp4/ep2", "tp4/ep4", "adp4/ep4", "adp2.tp2", "adp2.tp2/ep4")
RUNS = {  # ranks, models, plans, type, whether compiled, changes of the request
    "two": (2, ALL, TWO, "float64", False, {}),
    "outer": (2, [testmodels.asymmetric, testmodels.llama], OUTER, "float64", False, {}),
    "four": (4, FEW, FOUR, "float64", False, {}),
    "linear": (4, [testmodels.sana], LINEAR, "float64", False, {}),
    "bf16": (2, FEW, ("tp2", "ring2"), "bfloat16", False, {}),
    "fp16": (2, FEW[:2], ("ulysses2",), "float16", False, {}),
    "fp32": (2, FEW[:2], ("ulysses2",), "float32", False, {}),
    "fp8": (2, FEW, ("tp2", "ring2"), "bfloat16", False, {"precision": "fp8"}),
    "compiled": (2, [testmodels.llama], ("ring2", "ulysses2"), "float64", True, {}),
    "wide": (2, FEW[:2], ("tp2",), "float32", False, {"wide_collectives": True}),
    "scattered": (2, FEW[:2], ("ulysses2",), "float64", False, {"scattered_inputs": True}),
    "gathered": (2, FEW[:2], ("ring2",), "float64", False, {"rings": "gathered"}),
    "experts": (4, DECODERS[1:], EXPERTS, "float64", False, {"batch": 4, "output_tokens": 1}),
    "decode": (2, DECODERS, ("tp2", "pp2", "dp2"), "float64", False, {"output_tokens": 1}),
    "rows": (2, DECODERS[1:2], ("ring2", "ring2/ep2"), "float64", False, {"output_tokens": 1}),
    "shards": (2, FEW[2:], (*TWO[1:], "allgather_kv2"), "float64", False, {"output_tokens": 1}),
    "shards16": (2, FEW[2:], ("ring2",), "bfloat16", False, {"output_tokens": 1}),
    "nested": (4, FEW[2:], ("ulysses2.ring2", "ring2.tp2"), "float64", False, {"output_tokens": 1}),
}  # fmt: skip


def works(names):
    for name in names:
        _, models, plans, dtype, compiled, changes = RUNS[name]
        for model in models:
            alone = {"passes": 1} if model.kind == "decoder" else {}
            work = testmodels.workload(model, **{"batch": 2, **alone, **changes})
            for text in plans:
                plan = parse_plan(text)
                if not any(objections(model, work, plan, plan.gpus)):
                    one = ProvedWork(model=model, workload=work, plan=plan)
                    yield f"{name} {model.name} {text}", one, dtype, compiled


def main(names):
    """What one rank does: all works of a world size, one after another."""
    torch.set_num_threads(1)
    place = find_place(os.environ)
    progress = begin(place)
    device = torch.device("cpu")
    rendezvous = meet(place, progress, device)
    comm = Comm(rank=place.rank, world=place.world, handles={}, progress=progress)
    wholes, found = {}, {}
    for label, work, dtype, compiled in works(names):
        progress.phase(label, 60)
        key = (work.model.name, work.workload)
        wholes[key] = wholes[key] if key in wholes else unsplit(work)
        setting = setting_for(work, place.rank, device, getattr(torch, dtype))
        fuser = Fuser(backend="eager") if compiled else None

        def say(topic, words, label=label):
            return rendezvous.say(f"{label}: {topic}", words)

        checked = check(work, comm, setting, fuser=fuser, whole=wholes[key], say=say)
        failures = [*(fuser.failures if fuser else []), *filter(None, [checked.untrue])]
        assert fuser is None or fuser.spent, "nothing was compiled"
        together = [ops for (ops, *_), _ in fuser.made] if fuser else []
        late = [op for ops in together for op in ops[1:] if getattr(op, "move", "") == "pack_heads"]
        assert not late, "heads are packed in a function of their own"
        found[label] = [checked.error, checked.bound, [*checked.miscounted, *failures]]
    system.say(json.dumps(found))
    progress.end()
    rendezvous.leave()


@pytest.fixture(scope="module")
def proofs(tmp_path_factory):
    """Run once for every world size; results by label, one a rank."""
    found = {}
    for world in (2, 4):
        names = [name for name in RUNS if RUNS[name][0] == world]
        folder = tmp_path_factory.mktemp("logs")
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        result = launch(
            world,
            [sys.executable, __file__, *names],
            limits=TimeLimits(start_s=60),
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            log_dir=folder,
        )
        assert result.ok, result.message
        for rank in range(world):
            said = (folder / f"rank{rank}.log").read_text().splitlines()
            for label, one in json.loads(next(x for x in said if x.startswith("{"))).items():
                found.setdefault(label, []).append(one)
    return found


LABELS = [label for label, *_ in works(RUNS)]


@pytest.mark.parametrize("label", LABELS)
def test_split_equals_unsplit_and_every_message_is_sent_once(proofs, label):
    for error, bound, wrong in proofs[label]:
        assert error <= bound
        assert wrong == []


def test_every_plan_is_run_for_some_model():
    for name, (_, _, plans, *_) in RUNS.items():
        for text in plans:
            assert any(label.startswith(name) and label.endswith(text) for label in LABELS), text


if __name__ == "__main__":
    main(sys.argv[1:])
    system.leave(0)  # threads of gloo may still run
