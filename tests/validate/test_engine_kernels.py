"""Kernels of serving engines: fits recover what made a table, and decoding keeps its laws."""

import csv
import itertools
import tomllib
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.expert_routing import routing_of
from costmodels.formats import SERVING
from costmodels.kernels import attention_time, decode, experts, latent, matmul, matmul_time, state
from costmodels.kernels.common import Shape
from costmodels.kernels.expert_loads import load
from costmodels.kernels.parameters import (
    ContextParameters,
    DecodeParameters,
    ExpertsParameters,
    LatentDecodeParameters,
    MatmulParameters,
    QuantisedParameters,
    StateConvolutionParameters,
    StateUpdateParameters,
)
from costmodels.kernels.parameters import load as load_records
from costmodels.kernels.tables import shipped_records
from topology.base import InputError
from topology.catalogue import all_devices
from validate.fit.engine_kernels import fitted_records
from validate.plans.compare import compare
from validate.plans.measured import read_measured

H100 = all_devices()["h100-sxm"]
SLACK = 1 + 1e-9


def products(true):
    """A table of fp8 products on H100 that the parameters `true` explain."""
    machine = matmul.prepare_with(shipped_records(MatmulParameters)["hopper"], H100, "fp8", true)
    lines = ["system,engine,version,gemm_dtype,m,n,k,us"]
    for m in (1, 16, 128, 1024, 8192):
        for n in (512, 4096, 16384):
            for k in (1024, 8192):
                us = 1e6 * float(matmul.product_time(machine, m, n, k))
                lines.append(f"h100_sxm,vllm,1,fp8,{m},{n},{k},{us}")
    return "\n".join(lines)


def decodes(true):
    """A table of decode attention on H100 that the parameters `true` explain."""
    head = "system,engine,version,attn_dtype,kv_cache_dtype,batch_size,isl,num_heads"
    lines = [f"{head},num_key_value_heads,head_dim,window_size,step,us"]
    for batch in (1, 32, 256):
        for kv_heads in (1, 8):
            for keys, window in ((64, 0), (2048, 0), (16384, 0), (16384, 1024)):
                sizes = Shape(
                    heads=np.array(8.0 * kv_heads),
                    kv_heads=np.array(float(kv_heads)),
                    queries=np.array(1.0),
                    keys=np.array(float(min(keys, window) if window else keys)),
                    head_dim=np.array(128.0),
                    batch=np.array(float(batch)),
                )
                us = 1e6 * float(decode.decode_time(true, H100, sizes, "fp8"))
                row = f"{batch},1,{8 * kv_heads},{kv_heads},128,{window or ''},{keys - 1},{us}"
                lines.append(f"h100_sxm,vllm,1,bfloat16,fp8,{row}")
    return "\n".join(lines)


def test_the_fit_of_products_finds_what_made_them():
    true = shipped_records(QuantisedParameters)["fp8.vllm-hopper"]

    found = {}
    for text, _ in fitted_records(products(true)):
        found |= load_records(tomllib.loads(text), QuantisedParameters)

    assert found.keys() == {"fp8.vllm-hopper", "fp8-hopper"}
    record = found["fp8.vllm-hopper"]
    assert record.fixed == pytest.approx(true.fixed, rel=0.1)
    assert record.passes == pytest.approx(true.passes, rel=0.1)
    assert record.gain == pytest.approx(true.gain, rel=0.05)
    assert record.provenance.median_error < 0.01


def test_the_fit_of_decoding_finds_what_made_it():
    true = shipped_records(DecodeParameters)["fp8.vllm-hopper"]

    found = {}
    for text, _ in fitted_records(decodes(true)):
        found |= load_records(tomllib.loads(text), DecodeParameters)

    record = found["fp8.vllm-hopper"]
    assert record.floor == pytest.approx(true.floor, rel=0.1)
    assert record.provenance.p90_error < 0.05
    assert record.provenance.median_error < 0.02


def layers(true):
    """A table of experts on H100 that the parameters `true` explain."""
    made = experts.prepare_with(true, H100, "fp8_block")
    head = "system,engine,version,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts"
    lines = [f"{head},moe_tp_size,moe_ep_size,distribution,us"]
    for hidden, inner, count, top_k in ((4096, 1536, 128, 8), (7168, 2048, 256, 8)):
        for ep, tp in ((1, 1), (1, 8), (8, 1)):
            for number in (1, 16, 128, 1024, 8192):
                loads = load(np.array(float(number)), routing_of("balanced", count, top_k), ep)
                own, sides = inner / tp, (hidden, inner / tp)
                time = (
                    experts.product_time(made, loads, 2 * own, hidden)
                    + experts.product_time(made, loads, hidden, own)
                    + experts.around_time(made, loads.rows, number * top_k, sides, spread=ep > 1)
                )
                row = f"{number},{hidden},{inner},{top_k},{count},{tp},{ep},balanced,{time * 1e6}"
                lines.append(f"h100_sxm,vllm,1,fp8_block,{row}")
    return "\n".join(lines)


def test_the_fit_of_experts_finds_what_made_them():
    true = shipped_records(ExpertsParameters)["fp8_block.vllm-hopper"]

    found = {}
    for text, _ in fitted_records(layers(true)):
        found |= load_records(tomllib.loads(text), ExpertsParameters)

    record = found["fp8_block.vllm-hopper"]
    assert record.fixed == pytest.approx(true.fixed, rel=0.1)
    assert record.memory == pytest.approx(true.memory, rel=0.05)
    assert record.provenance.median_error < 0.01


def latents(true):
    """A table of latent attention of new tokens on H100 that the parameters `true` explain."""
    head = "system,engine,version,mla_dtype,kv_cache_dtype,num_heads,batch_size,isl,tp_size,step,us"
    lines = [head]
    for heads in (1, 8, 16, 64, 128):
        for batch in (1, 32, 256):
            for keys in (64, 2048, 16384):
                shape = tuple(np.array(float(n)) for n in (heads, 1, keys, batch))
                time = float(latent.decode_time(true, H100, shape, cache="fp8"))
                row = f"{heads},{batch},1,1,{keys - 1},{1e6 * time}"
                lines.append(f"h100_sxm,trtllm,1,bfloat16,fp8,{row}")
    return "\n".join(lines)


def test_the_fit_of_latent_decoding_finds_what_made_it():
    true = shipped_records(LatentDecodeParameters)["fp8.tensorrt-llm-hopper"]

    found = {}
    for text, _ in fitted_records(latents(true)):
        found |= load_records(tomllib.loads(text), LatentDecodeParameters)

    assert found.keys() == {"fp8.tensorrt-llm-hopper", "fp8-hopper"}
    record = found["fp8.tensorrt-llm-hopper"]
    assert record.tile == true.tile
    assert record.memory_efficiency == pytest.approx(true.memory_efficiency, rel=0.05)
    assert record.provenance.median_error < 0.02


def kept_states(convolution, update):
    """A table of new tokens on H100 whose rows are of one of two kernels, and do not say which."""
    head = "system,engine,version,op_name,phase,batch_size,seq_len,num_tokens,d_model,d_conv"
    lines = [f"{head},num_k_heads,head_k_dim,num_v_heads,head_v_dim,us"]
    for batch in (1, 4, 16, 64, 128, 256, 512, 1024):
        for heads in (4, 8, 16, 32, 48, 64):
            shape = tuple(np.array(float(n)) for n in (1, 128 * (16 + heads), batch))
            times = (
                state.convolution_seconds(convolution, H100, shape),
                state.update_seconds(update, H100, (np.array(float(heads)), shape[2])),
            )
            for time in times:
                row = f"{batch},1,{batch},2048,4,8,128,{heads},128,{1e6 * float(time)}"
                lines.append(f"h100_sxm,vllm,1,gdn,generation,{row}")
    return "\n".join(lines)


def test_kernels_that_a_table_does_not_name_are_told_apart():
    convolution = shipped_records(StateConvolutionParameters)["conv_step.vllm-hopper"]
    update = shipped_records(StateUpdateParameters)["update.vllm-hopper"]

    found = {}
    for text, _ in fitted_records(kept_states(convolution, update)):
        form = StateUpdateParameters if "update" in text else StateConvolutionParameters
        found |= load_records(tomllib.loads(text), form)

    assert found["update.vllm-hopper"].floor == pytest.approx(update.floor, rel=0.1)
    reached = found["update.vllm-hopper"].memory_efficiency
    assert reached == pytest.approx(update.memory_efficiency, rel=0.05)
    assert found["conv_step.vllm-hopper"].floor == pytest.approx(convolution.floor, rel=0.1)


CACHED = """1 2 2 3.934, 2 1 2 1.492, 1 4 8 1.497, 2 1 4 3.941, 2 2 8 1.656, 1 8 16 1.683,
1 16 16 3.973, 1 8 32 1.68, 1 8 32 4.131, 8 2 4 4.139, 16 1 2 4.153, 2 16 32 1.495, 8 2 8 1.674,
2 8 32 1.682, 32 1 2 4.96, 2 16 32 5.159, 8 4 16 1.682, 16 4 12 1.682, 8 8 32 1.687, 128 2 2 2.09,
8 8 32 9.253, 16 8 24 13.33, 64 4 8 1.888, 256 1 2 2.344, 64 4 8 14.238, 16 16 32 14.99,
128 2 6 18.542, 128 2 8 2.293, 256 2 4 2.515, 128 4 8 23.261, 256 2 4 23.715, 32 16 32 24.432,
256 2 8 2.924, 512 2 4 3.119, 256 4 8 126.157, 64 16 32 136.828, 128 16 32 4.591, 64 16 64 368.182,
256 16 16 368.809, 512 4 16 6.178, 256 16 32 737.639, 1024 8 8 739.464, 1024 4 16 1474.833,
1024 8 32 2948.817"""
"""Sequences, heads of keys and of values, and us: every fifth row of new tokens of vLLM 0.24 on an
RTX PRO 6000 in aiconfigurator-core's gdn table (Apache-2.0)."""


def test_a_state_that_a_cache_held_is_taken_for_no_convolution():
    """That GPU updates 134 MB of states in 24 us, which memory takes 84 for."""
    head = "system,engine,version,op_name,phase,batch_size,seq_len,num_tokens,d_model,d_conv"
    lines = [f"{head},num_k_heads,head_k_dim,num_v_heads,head_v_dim,us"]
    for batch, keys, values, us in map(str.split, CACHED.split(",")):
        row = f"{batch},1,{batch},2048,4,{keys},128,{values},128,{us}"
        lines.append(f"rtx_pro_6000_server,vllm,0.24.0,gdn,generation,{row}")

    found = {}
    for text, _ in fitted_records("\n".join(lines)):
        if "conv_step" in text:
            found |= load_records(tomllib.loads(text), StateConvolutionParameters)

    record = found["conv_step.vllm-rtx"]
    assert 1.4e-6 < record.floor < 1.8e-6
    assert record.provenance.p90_error < 0.5


def test_another_table_is_refused():
    with pytest.raises(InputError, match=r"columns: got \['a', 'b'\], wanted one of gemm_dtype"):
        list(fitted_records("a,b\n1,2"))


@pytest.mark.parametrize("name", ["kernels_quantised", "kernels_decode"])
def test_every_engine_falls_back_on_all_of_them(name):
    forms = {"kernels_quantised": QuantisedParameters, "kernels_decode": DecodeParameters}
    table = shipped_records(forms[name])
    for title in table:
        form, _, rest = title.partition(".")
        if rest:
            engine, _, generation = rest.rpartition("-")
            assert engine in SERVING
            assert f"{form}-{generation}" in table


devices = st.sampled_from(list(all_devices().values()))
engines = st.sampled_from(["", *SERVING])
caches = st.sampled_from(["bf16", "fp8"])


@given(
    device=devices,
    engine=engines,
    cache=caches,
    sizes=st.tuples(st.integers(1, 16), st.integers(1, 100000), st.integers(1, 512)),
    which=st.integers(0, 2),
)
def test_more_decoding_never_takes_less_time(device, engine, cache, sizes, which):
    half = "bf16" if device.peak("bf16") else "fp16"
    longer = list(sizes)
    longer[which] += 1 + longer[which] // 7

    small, large = (
        attention_time(
            8 * kv_heads, 1, keys, 128, device, batch=batch, kv_heads=kv_heads,
            precision=half, kernel="engine", engine=engine, kv_precision=cache,
        )
        for kv_heads, keys, batch in (sizes, longer)
    )  # fmt: skip

    assert 0 < small <= large * SLACK


@given(device=devices, cache=caches, keys=st.integers(4096, 100000), batch=st.integers(8, 256))
def test_decoding_is_bound_by_its_cache_and_a_window_by_less(device, cache, keys, batch):
    half = "bf16" if device.peak("bf16") else "fp16"

    whole, window = (
        attention_time(
            32, 1, keys, 128, device, batch=batch, kv_heads=8,
            precision=half, kernel="engine", kv_precision=cache, window=w,
        )
        for w in (0, 1024)
    )  # fmt: skip

    held = 2 * 8 * 128 * keys * batch * (1 if cache == "fp8" else 2)
    assert held / device.memory_bandwidth.value <= whole * SLACK
    assert window <= whole * SLACK


def test_engines_differ_where_they_were_measured():
    """TensorRT-LLM's per-tensor scaling takes several kernels on H100, vLLM's one."""
    slow, quick, any_of_them = (
        matmul_time(16, 4096, 4096, H100, precision="fp8", engine=engine)
        for engine in ("tensorrt-llm", "vllm", "xdit")
    )

    assert slow > 1.3 * quick
    assert any_of_them == matmul_time(16, 4096, 4096, H100, precision="fp8")


def test_the_files_say_where_they_are_from():
    for table in (shipped_records(QuantisedParameters), shipped_records(DecodeParameters)):
        assert all(record.provenance.source for record in table.values())


def test_published_tables_are_toml():
    for text, quality in fitted_records(
        products(shipped_records(QuantisedParameters)["fp8-hopper"])
    ):
        ((name, row),) = tomllib.loads(text).items()
        assert quality.startswith(name)
        assert row["kind"] == "derived"


def test_the_fit_of_prompts_finds_what_made_them():
    """With short and long prompts, full and windowed."""
    known = shipped_records(ContextParameters)["bf16.tensorrt-llm-hopper"]
    head = "system,engine,version,attn_dtype,kv_cache_dtype,batch_size,isl,num_heads"
    lines = [f"{head},num_key_value_heads,head_dim,window_size,step,us"]
    for batch, tokens, heads in itertools.product((1, 16), (256, 2048, 8192), (8, 64)):
        for window in (0, 1024):
            seconds = attention_time(
                heads, tokens, tokens, 128, H100, batch=batch, kv_heads=8, causal=True,
                kernel="engine", engine="tensorrt-llm", window=window,
            )  # fmt: skip
            row = f"{batch},{tokens},{heads},8,128,{window or ''},0,{1e6 * seconds}"
            lines.append(f"h100_sxm,trtllm,1,bfloat16,bfloat16,{row}")

    ((text, _),) = fitted_records("\n".join(lines))

    record = load_records(tomllib.loads(text), ContextParameters)["bf16.tensorrt-llm-hopper"]
    assert record.cycles[1] == pytest.approx(known.cycles[1], rel=0.05)
    assert record.fixed == pytest.approx(known.fixed, rel=0.3)
    assert record.provenance.median_error < 0.02


def test_prompts_take_an_engine_what_its_own_kernels_take():
    """FlashAttention 3 of vLLM does less around it than TensorRT-LLM's attention operator."""
    quick, usual, unknown = (
        attention_time(
            32, 2048, 2048, 128, H100, kv_heads=8, causal=True, kernel="engine", engine=engine
        )
        for engine in ("vllm", "tensorrt-llm", "xdit")
    )

    assert quick < usual
    assert unknown == attention_time(
        32, 2048, 2048, 128, H100, kv_heads=8, causal=True, kernel="engine"
    )


OWN = files("validate.data").joinpath("2026-11-29-h200-sxm-x1")


def test_layers_of_experts_of_the_executor_take_what_they_took():
    """Those of the table that its record was fitted to; half kept apart gave 4.1 and 10.5 %."""
    device, errors = all_devices()["h200-sxm"], []
    for row in csv.DictReader(OWN.joinpath("experts.csv").read_text().splitlines()):
        tokens, hidden, inner, top_k, count = (
            int(row[name])
            for name in ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts")
        )
        seconds = experts.experts_time(
            tokens, hidden, inner, routing_of("balanced", count, top_k), device, engine="planner"
        )
        errors.append(abs(seconds / (float(row["us"]) * 1e-6) - 1))

    assert len(errors) == 165
    assert np.median(errors) < 0.05
    assert np.quantile(errors, 0.9) < 0.12


def test_steps_of_unseen_models_take_what_they_took():
    """Nothing is fitted to them: mixtures of experts, hybrids, windows, nine diffusion models."""
    rows = read_measured(OWN.joinpath("plans.jsonl").read_text(), "plans.jsonl")
    errors = [abs(one.step_error) for one in compare(rows, "h200-sxm")]

    assert len(errors) == 34
    assert np.median(errors) < 0.05
    assert max(errors) < 0.16
