"""Kernels that carry tokens: a fit recovers what made a table, and strangers' figures are met."""

import tomllib

import numpy as np
import pytest

from costmodels.collectives.dispatch import Exchange, exchange_seconds
from costmodels.expert_routing import Routing
from costmodels.formats import token_bytes
from costmodels.kernels.parameters import DispatchParameters, load
from costmodels.kernels.tables import shipped_records
from topology.catalogue import find_hardware
from validate.accuracy.dispatch import groups, read_figures
from validate.fit.dispatch import fitted_records, knows_table
from validate.tables import text

H100 = find_hardware("h100-sxm")
SHAPES = ((2048, 8, 128), (4096, 6, 256), (5120, 1, 16), (7168, 8, 256))
ACROSS = "tokens to experts by {}, h800-sxm, several nodes"


def exchange(phase, top_k, experts, multiprocessors):
    return Exchange(
        phase=phase,
        way="deepep_normal",
        routing=Routing(experts=experts, top_k=top_k),
        fabric=H100.fabric(8),
        device=H100.device,
        multiprocessors=multiprocessors,
    )


def table(kernels):
    """A table of the normal kernels on eight H100 that `kernels` explain."""
    head = "system,engine,version,node_num,hidden_size,num_token,num_topk,num_experts,dispatch_sms"
    lines = [f"{head},dispatch_transmit_us,combine_sms,combine_transmit_us"]
    for hidden, top_k, experts in SHAPES:
        for tokens in (1, 32, 256, 2048, 16384, 131072):
            for count in (4, 12, 24):
                spent = [
                    1e6 * exchange_seconds(
                        exchange(phase, top_k, experts, count), kernels[phase], float(tokens),
                        token_bytes(float(hidden), precision),
                    )
                    for phase, precision in (("dispatch", "fp8"), ("combine", "bf16"))
                ]  # fmt: skip
                row = f"h100_sxm,sglang,1,1,{hidden},{tokens},{top_k},{experts}"
                lines.append(f"{row},{count},{spent[0]},{count},{spent[1]}")
    return "\n".join(lines)


def test_a_fit_recovers_the_kernels_that_made_a_table():
    known = shipped_records(DispatchParameters)
    kernels = {phase: known[f"deepep_normal-{phase}-hopper"] for phase in ("dispatch", "combine")}
    made = table(kernels)
    assert knows_table(made)
    records = [record for record, _ in fitted_records(made)]
    assert [next(iter(tomllib.loads(record))) for record in records] == [
        "deepep_normal-combine-hopper",
        "deepep_normal-dispatch-hopper",
    ]
    for record, phase in zip(records, ("combine", "dispatch"), strict=True):
        again = next(iter(load(tomllib.loads(record), DispatchParameters).values()))
        tokens = 2.0 ** np.arange(17)
        of = exchange(phase, 8, 256, 20)
        times = [exchange_seconds(of, kernel, tokens, 7392.0) for kernel in (again, kernels[phase])]
        assert np.allclose(times[0], times[1], rtol=0.04)


@pytest.mark.parametrize(
    ("name", "median", "worst"),
    [
        (ACROSS.format("deepep_low_latency"), 0.06, 0.15),
        (ACROSS.format("deepep_normal"), 0.1, 0.15),
        ("tokens to experts by nvlink_one_sided, gb200", 0.05, 0.25),
    ],
)
def test_published_exchanges_over_nodes_and_racks_are_met(name, median, worst):
    """Those over nodes made no parameter: links inside come from H100, the network from NCCL."""
    errors = np.abs(groups(read_figures(text("dispatch_figures.csv")))[name])
    assert np.median(errors) <= median
    assert errors.max() <= worst


def test_samples_of_every_fitted_table_are_met():
    for name, errors in groups(read_figures(text("dispatch_figures.csv"))).items():
        if "several nodes" not in name and "h800" not in name:
            assert np.median(np.abs(errors)) <= 0.12, name
