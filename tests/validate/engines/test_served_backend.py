"""``planner validate --backend vllm`` and ``sglang``, with stand-ins for their own benchmarks.

A stand-in prints and writes what the engine's code says that it does: no engine has run here.
"""

import json

import pytest

from planner.command.cli import main
from validate.engines import served
from validate.engines.served import configuration, read_times
from validate.plans import host, system
from validate.plans.cases import STEPS, Case
from validate.plans.host import Facts

FACTS = Facts(
    seen={"torch": "2.13", "cuda": "13.0", "has_nccl": True, "gpus": ["NVIDIA H100 80GB HBM3"] * 2},
    shared_bytes=2.0**34,
)
VLLM = """
import json, sys
words = sys.argv[1:]
told = dict(zip(words, words[1:]))
config = json.load(open(told["--model"] + "/config.json"))
assert words[:2] == ["bench", "latency"] and config["architectures"] == ["LlamaForCausalLM"]
FAULT
print("INFO [kv_cache_utils.py] GPU KV cache size: 1,000,000 tokens")
seconds = [0.034 + 0.0046 * (int(told["--output-len"]) - 1)] * int(told["--num-iters"])
print(f"Avg latency: {seconds[0]} seconds")
json.dump({"avg_latency": seconds[0], "latencies": seconds}, open(told["--output-json"], "w"))
"""
SGLANG = """
import json, sys
words = sys.argv[1:]
told = dict(zip(words, words[1:]))
FAULT
print("max_total_num_tokens=1000000")
with open(told["--result-filename"], "a") as file:
    for prompt in words[words.index("--input-len") + 1 :]:
        if not prompt.isdigit():
            break
        row = {"prefill_latency": 0.031, "median_decode_latency": 0.0041}
        file.write(json.dumps(row) + "\\n")
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Put a package in the place of an engine, which may end with a fault."""

    def place(backend, fault=""):
        path = tmp_path / "packages"
        name = {"vllm": "vllm/entrypoints/cli/main.py", "sglang": "sglang/bench_one_batch.py"}
        file = path / name[backend]
        file.parent.mkdir(parents=True)
        for folder in file.relative_to(path).parents:
            (path / folder / "__init__.py").touch()
        file.write_text({"vllm": VLLM, "sglang": SGLANG}[backend].replace("FAULT", fault))
        monkeypatch.syspath_prepend(str(path))
        monkeypatch.setattr(host, "facts", lambda: FACTS)
        monkeypatch.setattr(system, "products", lambda: FACTS.words("gpus"))

    return place


def asked(tmp_path, backend, *words):
    sizes = ("--model", "llama-3.1-8b", "--plan", "tp2")
    return main(
        ["validate", *sizes, "--backend", backend, "--results", str(tmp_path / "rows"), *words]
    )


@pytest.mark.parametrize(("backend", "first"), [("vllm", 0.034), ("sglang", 0.031)])
def test_the_first_token_and_those_that_follow_stand_beside_what_is_predicted(
    tmp_path, capsys, stand_in, backend, first
) -> None:
    stand_in(backend)
    assert (
        asked(tmp_path, backend, "--input-tokens", "2048", "--gate", "40%", "--format", "json") == 0
    )
    prefill, decode = json.loads(capsys.readouterr().out)["cases"]
    assert prefill["measured"]["step_s"] == pytest.approx(first)
    assert decode["measured"]["step_s"] == pytest.approx(0.0046 if backend == "vllm" else 0.0041)
    assert decode["measured"]["note"] == f"{1 / decode['measured']['step_s']:,.0f} tokens/s"
    for case in (prefill, decode):
        assert (case["measured"]["status"], case["measured"]["repeats"]) == ("done", 5)
        assert case["measured"]["cache_tokens"] == 1_000_000
        assert case["predicted"]["cache_tokens"] == pytest.approx(1e6, rel=0.2)
        assert case["predicted"]["step_s"] == pytest.approx(case["measured"]["step_s"], rel=0.2)
    assert (
        asked(tmp_path, backend, "--input-tokens", "2048", "--gate", "40%") == 0
    )  # what is known is not run again
    assert "cache 1,000,000 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("sys.exit('ValueError: no such flag')", "failed", "ended with code 1: ValueError"),
        ("raise RuntimeError('CUDA out of memory')", "out of memory", "cause: out of memory"),
        ("sys.exit(0)", "failed", "no results"),
    ],
)
def test_a_benchmark_that_fails_is_a_row_with_its_cause(
    tmp_path, capsys, stand_in, backend, fault, status, said
) -> None:
    stand_in(backend, fault)
    assert asked(tmp_path, backend, "--format", "json") == 1
    for case in json.loads(capsys.readouterr().out)["cases"]:
        assert case["measured"]["status"] == status
        assert said in case["measured"]["note"]


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_a_benchmark_that_never_ends_is_ended(tmp_path, capsys, stand_in, backend) -> None:
    stand_in(backend, "import time; time.sleep(600)")
    assert asked(tmp_path, backend, "--seconds", "3", "--format", "json") == 1
    first = json.loads(capsys.readouterr().out)["cases"][0]["measured"]
    assert (first["status"], "late in case 1" in first["note"]) == ("failed", True)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "got none, wanted it: pip install"),
        (("--mode", "compile"), "mode: got compile, wanted eager or graph"),
        (("--model", "flux"), "model: got flux, wanted a language model"),
        (("--precision", "int8"), "precision: got int8, wanted bf16, fp16 or fp8"),
        (("--model", "gpt-oss-20b", "--precision", "fp8"), "wanted bf16, fp16 or mxfp4"),
        (("--model", "gpt-oss-20b", "--precision", "mxfp4"), "got none, wanted it: pip install"),
        (("--plan", "dp2"), "plan dp2: got dp, wanted tp"),
    ],
)
@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_what_cannot_run_is_a_line(
    tmp_path, capsys, monkeypatch, backend, words, complaint
) -> None:
    monkeypatch.setattr(served, "find_spec", lambda name: None)
    monkeypatch.setattr(system, "products", list)
    assert asked(tmp_path, backend, *words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert complaint in err


def test_an_engine_gets_the_catalogues_configuration_in_the_asked_precision() -> None:
    whole = configuration(Case(model="deepseek-v3", precision="fp8", engine="vllm"))
    plain = configuration(Case(model="deepseek-v3", engine="vllm"))
    assert whole["quantization_config"]["quant_method"] == "fp8"
    assert ("quantization_config" in plain, plain["torch_dtype"]) == (False, "bfloat16")


def test_what_benchmarks_write_is_read() -> None:
    """Of vLLM one document, of SGLang a line for each repeat."""
    assert read_times("vllm", "decode", '{"latencies": [1.0, 2.0], "avg_latency": 1.5}') == [1, 2]
    row = '{"prefill_latency": 0.5, "median_decode_latency": 0.25, "total_latency": 1}\n'
    assert read_times("sglang-llm", "prefill", row * 2) == [0.5, 0.5]
    assert read_times("sglang-llm", "decode", row) == [0.25]
    assert STEPS == 32
