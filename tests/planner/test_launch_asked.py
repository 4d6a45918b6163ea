"""What was asked reaches every engine: in its line, in its notes, or as the reason against it."""

import itertools
import json
import math
import re
from dataclasses import replace
from functools import cache

import pytest
from commands import run

from planner.engines.tables import engines
from planner.export.export import files
from planner.models import known_as, names, read_model
from planner.models.catalogue import repositories
from planner.recommendation import estimate_plan, lines_of
from planner.request.plan import Plan
from planner.request.request import Request
from planner.runners.launch import launch_lines, launches
from planner.runners.launch_settings import Settings, settings_of
from planner.scenario.scenario import Scenario, resolve
from planner.strategies import parse_plan
from topology.base import InputError

pytestmark = pytest.mark.usefixtures("asked_once")

PLANS = {
    "flux.1-dev": "ulysses4",
    "qwen-image": "ulysses4",
    "cosmos3-nano": "ulysses4",
    "wan2.1-14b": "ulysses4",
    "llama-3.1-8b": "tp4",
}
FLUX = {
    "_class_name": "FluxTransformer2DModel",
    "num_layers": 19,
    "num_single_layers": 38,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "in_channels": 64,
    "guidance_embeds": True,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


@cache
def scenario(model, hardware="h100-sxm", **more):
    return resolve(Request(model=model, gpus=4, hardware=hardware, **more))


def said(model, plan="", hosts=0, **more):
    """Launches by engine, without pricing a plan."""
    asked = scenario(model, **more)
    plan = parse_plan(plan or PLANS.get(model, "tp4"))
    told = replace(settings_of(asked, plan), hosts=hosts or 1)
    return {one.engine: one for one in launches(engines(), asked.model, plan, told)}


def launched(plan, **more):
    """Launches by engine of a plan that was priced."""
    asked = resolve(Request(**more))
    found = estimate_plan(asked, plan)
    return {one.engine: one for one in launch_lines(asked, found.plan, found.placement, found.told)}


# Sizes.

IMAGE = {"height": 768, "width": 512, "steps": 4, "batch": 2}
VIDEO = {"height": 480, "width": 832, "frames": 49, "steps": 5}


@pytest.mark.parametrize(
    ("model", "asked", "engine", "told"),
    [
        ("flux.1-dev", IMAGE, "xDiT", "--height 768 --width 512 --num_inference_steps 4"),
        (
            "flux.1-dev",
            IMAGE,
            "xDiT",
            '--batch_size 2 --prompt "..."  # batch 2: needs a --dataset_path',
        ),
        ("flux.1-dev", IMAGE, "SGLang Diffusion", "--height 768 --width 512"),
        ("flux.1-dev", IMAGE, "SGLang Diffusion", "--num-outputs-per-prompt 2"),
        ("qwen-image", IMAGE, "vLLM-Omni", "# each request: height=768, width=512"),
        ("flux.1-dev", IMAGE, "diffusers", "num_inference_steps=4, num_images_per_prompt=2"),
        ("flux.1-dev", IMAGE, "TensorRT Model Connect", "--image-height 768 --image-width 512"),
        ("flux.1-dev", IMAGE, "TensorRT Model Connect", "--max-batch-size 2"),
        ("wan2.1-14b", VIDEO, "xDiT", "--num_frames 49 --num_inference_steps 5"),
        ("wan2.1-14b", VIDEO, "SGLang Diffusion", "--num-frames 49 --num-inference-steps 5"),
        ("wan2.1-14b", VIDEO, "vLLM-Omni", "num_frames=49, num_inference_steps=5"),
        ("wan2.1-14b", VIDEO, "diffusers", "each request: height=480, width=832, num_frames=49"),
        ("cosmos3-nano", VIDEO, "TensorRT Model Connect", "--video-num-frames 49"),
        ("wan2.1-14b", VIDEO, "own repository", "--size 832*480 "),
        ("wan2.1-14b", VIDEO, "own repository", "--frame_num 49 --sample_steps 5"),
        ("llama-3.1-8b", {"batch": 8}, "vLLM", "--max-num-seqs 8"),
        ("llama-3.1-8b", {"batch": 8}, "SGLang", "--max-running-requests 8"),
        ("llama-3.1-8b", {"batch": 8}, "TensorRT-LLM", "--max_batch_size 8"),
    ],
)
def test_sizes_are_told(model, asked, engine, told):
    assert told in said(model, **asked)[engine].line


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("vLLM", "--max-model-len"),
        ("SGLang", "--context-length"),
        ("TensorRT-LLM", "--max_seq_len"),
    ],
)
def test_prompt_and_answer_fit_the_context_that_is_asked_for(engine, flag):
    found = said("llama-3.1-8b", input_tokens=2000, output_tokens=100)[engine]

    assert f"{flag} 2100" in found.line
    assert flag not in said("llama-3.1-8b")[engine].line


FLAGS = {
    "vllm": ("--max-num-seqs", "--max-num-batched-tokens", "--max-model-len"),
    "sglang-llm": ("--max-running-requests", "--chunked-prefill-size", "--context-length"),
    "tensorrt-llm": ("--max_batch_size", "--max_num_tokens", "--max_seq_len"),
}
"""Requests at once of an engine, tokens of a step, tokens of the longest request."""


def told(line):
    """Numbers behind flags of a line."""
    words = line.partition("#")[0].split()
    return {flag: int(n) for flag, n in itertools.pairwise(words) if n.isdecimal()}


@pytest.mark.parametrize("engine", FLAGS)
@pytest.mark.parametrize("load", [("--slo-tpot", "12ms"), ("--concurrency", "48")])
def test_a_line_has_the_load_that_was_found_or_asked_for(engine, load):
    words = ("recommend", "--model", "llama-3.1-8b", "--gpus", "2", "--engine", engine)
    sizes = (
        "--input-tokens",
        "1000",
        "--output-tokens",
        "200",
        "--chunk",
        "4096",
        "--spread",
        "0.1",
    )
    code, out, _ = run(*words, *load, *sizes, "--format", "json")
    (row,) = json.loads(out)["engines"]
    rows, chunk, length = (told(row["command"])[flag] for flag in FLAGS[engine])
    copies = parse_plan(row["plan"]).degree("dp")

    assert code == 0
    assert rows == math.ceil(row["serving"]["concurrency"] / copies)
    assert (chunk, length) == (4096, 1320)  # a tenth over the mean


def test_limits_of_ranks_with_requests_of_their_own_are_of_each_or_of_all():
    """SGLang shares out what it is told; the others take it for each rank."""
    more = {"model": "deepseek-v3", "gpus": 8, "hardware": "b200", "concurrency": 256}
    lines = launched("adp8/ep8", engine="vllm", **more)

    assert told(lines["vLLM"].line)["--max-num-seqs"] == 32
    assert told(lines["SGLang"].line)["--max-running-requests"] == 256
    assert told(lines["SGLang"].line)["--chunked-prefill-size"] == 8 * 8192
    assert told(lines["TensorRT-LLM"].line)["--max_batch_size"] == 32


def test_a_cache_that_holds_no_request_is_said_of_every_engine():
    words = ("recommend", "--model", "llama-3.1-8b", "--hardware", "l4", "--precision", "fp8")
    load = ("--input-tokens", "49900", "--spread", "0.9", "--concurrency", "2")
    code, out, _ = run(*words, *load, "--kv-precision", "bf16", "--format", "json")
    reasons = {row["engine"]: row["reason"] for row in json.loads(out)["engines"]}

    assert code == 1
    for engine in ("vllm", "tensorrt-llm"):
        assert re.match(r"the cache of single holds [\d,]+ tokens, one", reasons[engine])
    assert "short, at decode" in reasons["sglang-llm"]  # leaves more free, so holds not even one


def test_a_line_of_requests_at_random_has_the_limits_of_the_engine():
    lines = launched("dp2", model="llama-3.1-8b", gpus=2, rate=2.0, engine="vllm")

    assert told(lines["vLLM"].line)["--max-num-seqs"] == 1024


def test_prompts_that_are_not_cut_fit_a_step():
    """TensorRT-LLM refuses prompts over max_num_tokens, where it cuts none; the others cut them."""
    sizes = {"input_tokens": 9000, "output_tokens": 10}
    for more in ({}, {"concurrency": 2}, {"concurrency": 2, "engine": "tensorrt-llm"}):
        lines = launched("tp2", model="llama-3.1-8b", gpus=2, **sizes, **more)
        steps = told(lines["vLLM"].line).get("--max-num-batched-tokens")

        assert told(lines["TensorRT-LLM"].line)["--max_num_tokens"] == 9010
        assert steps == (8192 if more else None)


def test_workers_that_only_decode_run_no_prompts():
    pools = {"prefill_plan": "tp1", "decode_plan": "tp1"}
    asked = resolve(
        Request(model="llama-3.1-8b", gpus=2, input_tokens=9000, concurrency=2, **pools)
    )
    lines = {one.engine: one.line for one in lines_of(asked, estimate_plan(asked, None))}

    assert told(lines["TensorRT-LLM, prefill"])["--max_num_tokens"] == 9128
    assert "--max_num_tokens" not in lines["TensorRT-LLM, decode"]


def test_keys_and_values_of_a_checkpoint_in_8_bits_are_told():
    scheme = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    own = json.dumps({**LLAMA, "quantization_config": scheme})
    for kept, flag in ((None, "fp8"), ("bf16", "bfloat16")):
        lines = said(own, "tp2", kv_precision=kept)

        assert f"--kv-cache-dtype {flag}" in lines["vLLM"].line
    assert "--kv-cache-dtype" not in said("llama-3.1-8b", kv_precision="bf16")["vLLM"].line


@pytest.mark.parametrize("model", PLANS)
def test_sizes_left_out_are_the_engine_s(model):
    for one in said(model).values():
        for word in ("height", "steps", "frames", "batch", "max-num-seqs", "each request"):
            assert word not in one.line


def test_an_image_has_no_frames():
    assert "frames" not in said("flux.1-dev", frames=1)["xDiT"].line


# Precision, offloading and the runtime.

DIFFUSION = ("xDiT", "SGLang Diffusion", "vLLM-Omni", "diffusers", "TensorRT Model Connect")
LANGUAGE = ("vLLM", "TensorRT-LLM", "SGLang")
PRECISION = {
    "xDiT": {"fp8": "--use_fp8_gemms", "int8": "", "nvfp4": "", "fp16": ""},
    "SGLang Diffusion": {
        "fp8": "--quantization fp8", "int8": "--quantization convrot_int8",
        "fp16": "--dit-precision fp16",
    },
    "vLLM-Omni": {
        "fp8": "--quantization fp8", "int8": "--quantization int8", "fp16": "--dtype float16",
    },
    "diffusers": {"fp16": "pipe.to(torch.float16)"},
    # build_cli.py and engine_builder.py at e9132e7: --quantize does not reach diffusion
    "TensorRT Model Connect": {
        "fp8": "--fp8", "fp16": "--precision fp16", "int8": "", "nvfp4": "",
    },
    "vLLM": {"fp8": "--quantization fp8", "fp16": "--dtype float16"},
    "SGLang": {"fp8": "--quantization fp8", "fp16": "--dtype float16"},
    "TensorRT-LLM": {},
}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp8", "fp16", "int8", "nvfp4"])
@pytest.mark.parametrize("engine", [*DIFFUSION, *LANGUAGE])
def test_a_precision_is_told_or_noted_or_refused(engine, precision):
    model, plan = ("flux.1-dev", "single") if engine in DIFFUSION else ("llama-3.1-8b", "tp4")
    asked = scenario(model, hardware="b200", precision=precision)
    told = Settings(precision=asked.request.precision)
    found = launches(engines(), asked.model, parse_plan(plan), told)
    one = next(one for one in found if one.engine == engine)
    flag = PRECISION[engine].get(precision)

    if flag == "":
        assert one.reason.startswith(f"has no {precision} for ")
    else:
        assert (flag in one.line) if flag else (f"{precision}: " in one.line.partition("#")[2])
    assert not (flag and f"{precision}: " in one.line)


@pytest.mark.parametrize(
    ("model", "precision", "engine", "flag"),
    [
        ("z-image", "int8", "xDiT", "--use_int8_gemms"),
        ("wan2.1-14b", "nvfp4", "xDiT", "--use_fp4_gemms"),
        ("hunyuanvideo-1.5", "fp8", "own repository", "--use_fp8_gemm true"),
    ],
)
def test_a_precision_is_of_some_models(model, precision, engine, flag):
    found = said(model, "single", hardware="b200", precision=precision)

    assert flag in found[engine].line


@pytest.mark.parametrize("engine", LANGUAGE)
def test_a_checkpoint_of_another_precision_is_noted(engine):
    wider = said("gpt-oss-20b", precision="bf16")[engine].line
    usual = said("gpt-oss-20b")[engine].line

    assert "bf16: needs another checkpoint, this one has mxfp4" in wider
    assert "checkpoint" not in usual


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("xDiT", "--attention_backend flash_3"),
        ("SGLang Diffusion", "--attention-backend fa "),
        ("diffusers", 'pipe.transformer.set_attention_backend("_flash_3_hub")'),
        ("TensorRT Model Connect", "cannot be told to call fa3 attention"),
        ("own repository", "cannot be told to call fa3 attention"),
    ],
)
def test_an_attention_kernel_is_told_or_refused(engine, told):
    found = said("flux.1-dev", "single", attention="fa3")[engine]

    assert told in (found.line if found.command else found.reason)


def test_an_attention_kernel_may_be_of_whole_sequences():
    """diffusers 0.42.1, attention_dispatch.py: xFormers has no context parallelism."""
    assert "xformers" in said("flux.1-dev", "single", attention="xformers")["diffusers"].line
    found = said("flux.1-dev", "ulysses4", attention="xformers")["diffusers"]
    assert found.reason == "xformers and ulysses exclude each other"
    masked = said("hunyuanvideo", "single", attention="fa2", offload=True)["diffusers"]
    assert masked.reason == "has no fa2 attention for hunyuanvideo"


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("xDiT", "--enable_model_cpu_offload"),
        ("SGLang Diffusion", "--dit-cpu-offload false --text-encoder-cpu-offload"),
        ("vLLM-Omni", """'{"mode":"module","components":["text_encoder"]}'"""),
        ("diffusers", "pipe.enable_model_cpu_offload(gpu_id=torch.cuda.current_device())"),
        ("TensorRT Model Connect", "# offload: no flag"),
    ],
)
def test_offloading_is_told_or_noted(engine, told):
    assert (
        told
        in said("flux.1-dev", "tp4" if engine == "vLLM-Omni" else "", offload=True)[engine].line
    )
    if engine != "SGLang Diffusion":  # which offloads by itself, and is told not to
        assert "offload" not in said("flux.1-dev")[engine].line


def test_language_models_have_nothing_to_offload():
    assert not any("offload" in one.line for one in said("llama-3.1-8b").values())


@pytest.mark.parametrize(
    ("engine", "own"),
    [
        ("xDiT", "torch-compile"),
        ("SGLang Diffusion", "torch-compile"),
        ("vLLM-Omni", "torch-compile"),
        ("diffusers", "torch-compile"),
        ("TensorRT Model Connect", "tensorrt"),
    ],
)
def test_every_launch_says_its_runtime(engine, own):
    found = said("flux.1-dev")[engine]

    assert found.runtime == own
    assert found.to_dict()["runtime"] == own
    assert said("flux.1-dev", plan="pp4")[engine].to_dict()["runtime"] == own


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("xDiT", "--use_torch_compile"),
        ("SGLang Diffusion", "--enable-torch-compile"),
        ("diffusers", "pipe.transformer.compile_repeated_blocks()"),
    ],
)
def test_an_engine_is_told_to_compile(engine, told):
    found = said("flux.1-dev", runtime="torch-compile")[engine]

    assert told in found.line
    assert found.runtime == "torch-compile"
    assert told in said("flux.1-dev")[engine].line  # as where no runtime is asked for
    assert told not in said("flux.1-dev", runtime="torch-eager")[engine].line


# Several hosts.


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("xDiT", "xdit --nnodes 2 --node_rank 0 --nproc_per_node 8 --master_addr HOST"),
        ("diffusers", "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d"),
        ("diffusers", "--rdzv-endpoint HOST:29500 run.py"),
        # sglang 0.5.23, launch_server.py
        ("SGLang Diffusion", "--num-gpus 16 --nnodes 2 --node-rank 0 --dist-init-addr HOST:20000"),
        ("vLLM-Omni", "has no ring axis"),
        ("own repository", "no ring axis"),
        ("TensorRT Model Connect", "has no ring axis"),
    ],
)
def test_two_hosts_of_eight(engine, told):
    found = launched("ring2.ulysses8", model="flux.1-dev", gpus=16, nodes=2)[engine]

    assert told in (found.line if found.command else found.reason)


def test_a_model_of_several_tasks_is_told_its_task_on_every_host():
    """xfuser 0.7.0, _validate_config: such a model requires --task."""
    for hosts in (1, 2):
        assert "--task t2v " in said("wan2.2-5b", plan="ring2.ulysses8", hosts=hosts)["xDiT"].line


def test_a_script_of_xdit_runs_on_several_hosts():
    """As docs/performance/cogvideo.md and pixart_alpha_legacy.md have it: 12 and 16 GPUs."""
    line = said("cogvideox-5b", plan="cfg2.ring6", hosts=2)["xDiT"].line

    assert line.startswith(
        "torchrun --nnodes 2 --node_rank 0 --nproc_per_node 6 --master_addr HOST"
    )
    assert "examples/cogvideox_usp_example.py --model zai-org/" in line


def test_a_stage_of_vllm_omni_runs_on_one_host():
    found = said("flux.1-dev", plan="tp8", hosts=2)["vLLM-Omni"]

    assert found.reason == "runs all ranks of a diffusion stage on one host, not on 2"


def test_model_connect_runs_on_one_host():
    found = said("flux.1-dev", plan="ulysses8", hosts=2)["TensorRT Model Connect"]

    assert found.reason == "runs on one host, not on 2"


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("vLLM", "--nnodes 2 --node-rank 0 --master-addr HOST --pipeline-parallel-size 2"),
        ("vLLM", "# on the others: --headless and their --node-rank"),
        ("SGLang", "--nnodes 2 --node-rank 0 --dist-init-addr HOST:20000"),
        ("TensorRT-LLM", "srun -N 2 --ntasks 16 --ntasks-per-node 8 --mpi=pmix"),
        ("TensorRT-LLM", "trtllm-llmapi-launch trtllm-serve meta-llama/Llama-3.1-8B-Instruct"),
    ],
)
def test_language_models_on_two_hosts(engine, told):
    assert told in said("llama-3.1-8b", plan="pp2.tp8", hosts=2)[engine].line


def test_copies_of_a_language_model_are_spread_whole():
    found = said("llama-3.1-8b", plan="dp4.tp4", hosts=2)

    assert "--data-parallel-size-local 2 --data-parallel-address HOST" in found["vLLM"].line
    assert "--data-parallel-size 4 --tensor-parallel-size 4" in found["vLLM"].line
    assert found["SGLang"].reason == "has no dp axis over 2 hosts"
    wide = said("llama-3.1-8b", plan="dp2.tp8", hosts=4)["vLLM"]
    assert wide.reason == "would split its 2 copies over 4 hosts"


@pytest.mark.parametrize(
    ("plan", "hosts", "told"),
    [
        ("dp9.adp8/ep8", 18, "--data-parallel-size-local 4 --data-parallel-address HOST"),
        ("dp9.tp8", 18, "--nnodes 2 --node-rank 0 --master-addr HOST --tensor-parallel-size 8"),
        ("dp18.tp4", 18, "vllm serve deepseek-ai/DeepSeek-V3 --tensor-parallel-size 4"),
    ],
)
def test_copies_of_a_mixture_of_experts_have_hosts_of_their_own(plan, hosts, told):
    assert told in said("deepseek-v3", plan=plan, hosts=hosts)["vLLM"].line


def test_copies_of_a_mixture_of_experts_that_share_a_host_in_part_are_refused():
    refused = said("deepseek-v3", plan="dp12.pp3.tp2", hosts=18)["vLLM"]

    assert refused.reason == "would split its 12 copies over 18 hosts"


@pytest.mark.parametrize(
    ("hardware", "gpus", "nodes", "hosts"),
    [
        ("h100-sxm", 8, 0, 1),
        ("h100-sxm", 16, 0, 2),
        ("h100-sxm", 8, 2, 2),
        ("gb200", 8, 0, 2),  # one NVLink domain, of hosts of 4
        ("gb200", 6, 0, 2),
        ("gb200", 5, 0, 5),
    ],
)
def test_hosts_are_as_few_as_hold_the_gpus_evenly(hardware, gpus, nodes, hosts):
    asked = resolve(Request(model="flux.1-dev", gpus=gpus, hardware=hardware, nodes=nodes))

    assert asked.deployment.hosts == hosts


def test_a_folder_for_two_hosts_asks_who_is_first():
    found = files(Request(model="flux.1-dev", gpus=16, nodes=2), "ring2.ulysses8", "xdit")
    script = found["launch.sh"].decode()

    assert '--node_rank "$NODE_RANK" --nproc_per_node 8 --master_addr "$HOST"' in script
    assert ': "${HOST:?name of the first host}"' in script
    assert "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7\n" in script
    assert json.loads(found["plan.json"])["devices"] == list(range(8))


# Exported folders run all that was priced.


def test_a_folder_has_sizes_precision_and_offloading():
    asked = Request(model="flux.1-dev", gpus=4, steps=4, precision="fp8", offload=True, batch=2)
    line = files(asked, "ulysses4", "sglang")["launch.sh"].decode()

    told = "--quantization fp8 --enable-torch-compile --dit-cpu-offload false"
    assert f"{told} --text-encoder-cpu-offload" in line
    assert "--height 1024 --width 1024 --num-inference-steps 4 --num-outputs-per-prompt 2" in line
    request = json.loads(files(asked, "tp4", "vllm-omni")["request.json"])
    assert request["num_inference_steps"] == 4
    assert request["height"] == 1024


def test_the_diffusers_script_does_what_was_asked():
    asked = Request(model="flux.1-dev", gpus=4, precision="fp16", offload=True, steps=4)
    script = files(asked, "ulysses4", "diffusers")["run.py"].decode()

    compile(script, "run.py", "exec")
    told = [
        "pipe.to(torch.float16)",
        "pipe.transformer.compile_repeated_blocks()",
        "pipe.enable_model_cpu_offload(gpu_id=",
    ]
    assert "\n".join(told) in script
    assert "num_inference_steps=4)" in script


# Folders, repositories and names.


@pytest.fixture
def folders(tmp_path):
    (tmp_path / "my models" / "hf").mkdir(parents=True)
    (tmp_path / "my models" / "hf" / "config.json").write_text(json.dumps(LLAMA))
    flux = tmp_path / "flux" / "transformer"
    flux.mkdir(parents=True)
    (flux / "config.json").write_text(json.dumps(FLUX))
    return tmp_path


@pytest.mark.parametrize("engine", LANGUAGE)
@pytest.mark.parametrize("file", ["", "/config.json"])
def test_a_language_model_in_a_folder_is_named_by_its_path(folders, engine, file):
    path = f"{folders}/my models/hf"
    line = said(path + file)[engine].line

    assert f" '{path}'" in line


@pytest.mark.parametrize("engine", ["SGLang Diffusion", "vLLM-Omni", "TensorRT Model Connect"])
def test_a_transformer_in_a_folder_is_named_by_its_pipeline(folders, engine):
    assert f" {folders}/flux " in said(f"{folders}/flux/transformer", "tp4")[engine].line


def test_engines_that_take_no_folder_say_so(folders):
    found = said(f"{folders}/flux/transformer", "ulysses4")

    assert "not a folder" in found["xDiT"].reason
    assert found["diffusers"].line


def test_a_script_loads_the_folder(folders):
    asked = Request(model=f"{folders}/flux/transformer/config.json", gpus=4)
    script = files(asked, "ulysses4", "diffusers")["run.py"].decode()

    assert f"name = '{folders}/flux'" in script


def test_text_has_no_path():
    assert " MODEL " in said(json.dumps(LLAMA))["vLLM"].line


@pytest.mark.parametrize("change", [str, str.upper, str.lower])
def test_models_go_by_the_repositories_that_lines_print(change):
    for repository, name in repositories().items():
        assert known_as(change(repository)) == name


def test_a_model_named_by_its_repository_is_the_catalogue_s():
    found = read_model("black-forest-labs/FLUX.1-dev")

    assert found == read_model("flux.1-dev")
    assert "xdit --model black-forest-labs/FLUX.1-dev " in (
        said("black-forest-labs/flux.1-DEV", "ulysses4")["xDiT"].line
    )


def test_a_folder_goes_before_a_repository_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "meta-llama" / "Llama-3.1-8B-Instruct"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))

    assert known_as("meta-llama/Llama-3.1-8B-Instruct") == ""
    assert read_model("meta-llama/Llama-3.1-8B-Instruct").name == "Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("got", "said"),
    [
        ("wan", "did you mean wan"),
        ("black-forest-labs/FLUX.1-deb", "did you mean black-forest-labs/flux.1-dev"),
        ("no/such/model", "no such file or folder"),
    ],
)
def test_unknown_models_are_told_near_names(got, said):
    with pytest.raises(InputError, match=said):
        read_model(got)


def test_names_of_the_catalogue_are_known():
    assert all(known_as(name.upper()) == name for name in names())
    assert isinstance(scenario("flux.1-dev"), Scenario)


def test_a_picture_of_cosmos_takes_its_own_steps_and_engines_are_told() -> None:
    for asked, steps, told in (
        ({"frames": 1}, 50, "num_inference_steps=50"),
        ({"frames": 1, "steps": 35}, 35, "num_inference_steps=35"),
        ({"frames": 93}, 35, "num_frames=93"),
    ):
        scenario = resolve(Request(model="cosmos3", engine="vllm-omni", **asked))
        assert scenario.workload.steps == steps
        line = next(
            one.line for one in launch_lines(scenario, Plan()) if one.engine.startswith("vLLM")
        )
        assert line.endswith(told)
