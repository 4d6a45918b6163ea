"""Speculative decoding: what is verified, drafted and gained, proved, priced and launched."""

import json
import shlex

import numpy as np
import pytest
import testmodels
from commands import assert_refused, run

import planner
from costmodels.price import FoundPrices
from costmodels.timeline import cost
from planner.api import request_of
from planner.engines.engine import Scheduling
from planner.engines.tables import acceptances
from planner.lowering import Chunk, lower_steps
from planner.models import read_model
from planner.request.lengths import Load
from planner.request.workload import Speculation
from planner.scenario.scenario import resolve
from planner.search.speculation import draft_request, speculated_costs
from planner.serving.scheduler import Queue, Workers
from planner.strategies import parse_plan
from topology.base import InputError
from validate.reference.run import execute
from validate.reference.weights import Source

pytestmark = pytest.mark.usefixtures("asked_once", "searched_once")

TARGET = ("--model", "llama-3.1-70b", "--gpus", "4")
DRAFTS = ("--speculative", "3", "--draft", "llama-3.1-8b")
SMALL = {"speculative": 3, "draft": "llama-3.1-8b"}


def answer(*words):
    code, out, err = run(*words, "--format", "json")
    assert (code, err) == (0, "")
    return json.loads(out)


# What a step verifies.


@pytest.mark.parametrize("name", ["llama", "deepseek"])
@pytest.mark.parametrize("text", ["single", "tp2"])
def test_scores_of_drafted_tokens_are_those_of_tokens_one_by_one(name, text):
    model = getattr(testmodels, name)
    workload, plan = testmodels.workload(model), parse_plan(text)
    random = np.random.default_rng(0).standard_normal
    hidden = model.main.hidden
    prompt, later = random((2, 5, hidden)), random((2, 3, hidden))

    def scores(steps, given):
        class Given(Source):
            def array(self, called, shape):
                return given[called].reshape(shape) if called in given else super().array(
                    called, shape
                )  # fmt: skip

        program = lower_steps(model, workload, plan, steps)
        outs = execute([program], workload, Given(0))
        return np.asarray(outs[0])[0]

    begin = [Chunk(name="a", tokens=5, context=0, sequences=2)]
    verify = [Chunk(name="a", tokens=3, context=5, sequences=2, scored=True)]
    inputs = {"step0.tokens#0": prompt.reshape(10, hidden), "step1.tokens#0": later.reshape(6, -1)}
    together = scores([begin, verify], inputs).reshape(2, 3, -1)

    for number in range(3):
        whole = np.concatenate([prompt, later[:, : number + 1]], axis=1)
        steps = [[Chunk(name="a", tokens=6 + number, context=0, sequences=2)]]
        alone = scores(steps, {"step.tokens#0": whole.reshape(-1, hidden)})
        np.testing.assert_allclose(together[:, number], alone, atol=1e-6)


# What is gained.


@pytest.mark.parametrize("acceptance", [0.01, 0.5, 0.71, 0.9, 0.999])
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_a_step_gains_what_the_geometric_series_says(tokens, acceptance):
    draft = read_model("llama-3.1-8b")
    gain = Speculation(tokens=tokens, acceptance=acceptance, draft=draft).gain

    assert gain == pytest.approx((1 - acceptance ** (tokens + 1)) / (1 - acceptance))
    assert 1 < gain < tokens + 1


def test_a_draft_writes_what_is_accepted_of_many_draws():
    """Tokens of a step, drawn one by one: accepted until one is not, and one more."""
    random = np.random.default_rng(7).random((200_000, 4)) < 0.71
    written = np.cumprod(random, axis=1).sum(axis=1) + 1
    draft = read_model("llama-3.1-8b")

    gain = Speculation(tokens=4, acceptance=0.71, draft=draft).gain
    assert written.mean() == pytest.approx(gain, rel=5e-3)


def test_sequences_grow_by_as_many_tokens_a_step():
    """Two tokens a step: the first of the prompt, then four steps for seven more."""
    load = Load(prompts=[50], outputs=[8], arrivals=[0.0])
    ways = Scheduling(chunk=100, block=1)
    lengths = []

    def step(tokens, context, rows, length):
        lengths.append(length)
        return [1.0]

    workers = Workers(ways=ways, capacity=1000, steps=step)
    trail = Queue(workers, load, gain=2.0).run()

    (request,) = trail.sequences
    assert (request.first, request.finish) == (1.0, 5.0)
    assert trail.most_tokens == 50 + 4 * 2
    assert lengths[-1] == 50 + 2 * 1.5  # the middle of four steps


# What it costs.


def test_a_step_is_what_is_verified_and_one_pass_of_the_draft_for_each_token():
    scenario = resolve(request_of("llama-3.1-70b", 4, SMALL))
    plan = parse_plan("tp4")
    drafts, own = draft_request(scenario, plan)
    target = scenario.deployment.target(scenario.model, plan)
    whole, _ = speculated_costs(scenario, plan, (target, FoundPrices()), 2000, 1000)

    def step(of, cut, tokens, *, scored):
        chunk = Chunk(name="answers", tokens=tokens, context=2000, scored=scored)
        program = lower_steps(of.model, of.workload, cut, [[chunk]])
        return float(cost(program.stages[0], of.deployment.target(of.model, cut)).time)

    verified, drafted = step(scenario, plan, 4, scored=True), step(drafts, own, 1, scored=False)
    assert str(own) == "tp4"
    assert float(whole.time) == pytest.approx(verified + 3 * drafted)
    assert verified > step(scenario, plan, 1, scored=False)


def test_more_acceptance_is_faster_and_none_is_slower_than_no_draft():
    times = [
        planner.estimate("llama-3.1-70b", 4, "tp4", acceptance=share, **SMALL).stages_s["decode"]
        for share in (0.001, 0.3, 0.6, 0.9, 0.999)
    ]
    plain = planner.estimate("llama-3.1-70b", 4, "tp4").stages_s["decode"]

    assert times == sorted(times, reverse=True)
    assert times[0] > plain > times[2]


def test_drafts_help_a_few_requests_more_than_many():
    """Verified tokens are nearly free until products are bound by arithmetic."""
    gains = []
    for many in (1, 8, 64):
        asked = {"concurrency": many, "engine": "vllm"}
        plain = planner.estimate("llama-3.1-70b", 4, "tp4", **asked).serving
        drafted = planner.estimate("llama-3.1-70b", 4, "tp4", **asked, **SMALL).serving
        gains.append(plain.tpot.mean / drafted.tpot.mean)

    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.5


def test_one_request_at_once_is_the_estimate_of_one():
    found = planner.estimate(
        "llama-3.1-70b", 4, "tp4", concurrency=1, spread=0.0, output_tokens=500, **SMALL
    )
    ttft, decode = found.stages_s["prefill"], found.stages_s["decode"]

    assert found.serving.ttft.mean == pytest.approx(ttft, rel=0.02)
    assert found.serving.tpot.mean == pytest.approx(decode / 500, rel=0.02)


def test_memory_has_the_draft_and_what_it_keeps():
    alone = planner.estimate("llama-3.1-70b", 4, "tp4")
    both = planner.estimate("llama-3.1-70b", 4, "tp4", **SMALL)
    draft = read_model("llama-3.1-8b")
    parts, apart = both.memory_parts_bytes, alone.memory_parts_bytes

    assert parts["other_weights"] - apart["other_weights"] == pytest.approx(
        2 * draft.parameters / 4, rel=1e-3
    )
    assert parts["kv"] / apart["kv"] == pytest.approx((80 + 32) / 80, rel=1e-3)
    served = [planner.estimate("llama-3.1-70b", 4, "tp4", concurrency=4, **more).serving
              for more in ({}, SMALL)]  # fmt: skip
    assert served[1].kv_tokens < served[0].kv_tokens


@pytest.mark.parametrize("plan", ["tp8", "adp8/ep8"])
def test_own_layers_cost_their_share_and_are_the_usual_choice(plan):
    """One layer of 61 of DeepSeek-V3, with a projection of its own: 11.6 B, the model's head."""
    asked = {"hardware": "b200", "concurrency": 32}
    plain = planner.estimate("deepseek-v3", 8, plan, **asked)
    own = planner.estimate("deepseek-v3", 8, plan, speculative=1, **asked)
    found = own.to_dict()["speculation"]

    assert found["acceptance"] == acceptances()["mtp"].value == 0.85
    assert found["tokens_a_step"] == pytest.approx(1.85)
    grown = own.memory_parts_bytes["other_weights"] - plain.memory_parts_bytes["other_weights"]
    layers = plain.memory_parts_bytes["transformer_weights"] / 61
    assert 0.7 * layers < grown < 1.3 * layers
    assert own.serving.tpot.mean < plain.serving.tpot.mean
    assert 1 < own.stages_s["prefill"] / plain.stages_s["prefill"] < 1 + 3 / 61


# What is said and typed.


def test_an_answer_says_who_drafts_and_what_is_accepted():
    found = answer("estimate", *TARGET, "--plan", "tp4", *DRAFTS)

    assert found["speculation"] == {
        "tokens": 3,
        "acceptance": 0.71,
        "draft": "llama-3.1-8b",
        "tokens_a_step": pytest.approx((1 - 0.71**4) / 0.29),
    }
    assert found == planner.estimate("llama-3.1-70b", 4, "tp4", **SMALL).to_dict()
    out = " ".join(run("estimate", *TARGET, "--plan", "tp4", *DRAFTS)[1].split())
    assert "3 tokens drafted by llama-3.1-8b, 71 % accepted: 2.57 a step" in out
    asked = answer("recommend", *TARGET, *DRAFTS)["request"]
    assert (asked["speculative"], asked["draft"]) == (3, "llama-3.1-8b")


def launched(*words):
    rows = answer("recommend", *words)["engines"]
    return {row["engine"]: row.get("command", row.get("reason")) for row in rows}


def test_engines_are_told_of_a_draft():
    lines = launched(*TARGET, *DRAFTS)
    words = shlex.split(lines["vllm"])

    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "method": "draft_model",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "num_speculative_tokens": 3,
    }
    sglang = "--speculative-algorithm STANDALONE --speculative-draft-model-path meta-llama/"
    assert sglang in lines["sglang-llm"]
    assert "--speculative-num-draft-tokens 4" in lines["sglang-llm"]
    assert "decoding_type: DraftTarget, max_draft_len: 3" in lines["tensorrt-llm"]


def test_engines_are_told_of_own_layers():
    lines = launched("--model", "deepseek-v3", "--gpus", "8", "--hardware", "b200",
                     "--speculative", "2")  # fmt: skip
    words = shlex.split(lines["vllm"])

    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "method": "mtp",
        "num_speculative_tokens": 2,
    }
    assert "--speculative-algorithm NEXTN --speculative-num-steps 2" in lines["sglang-llm"]
    assert "decoding_type: MTP, num_nextn_predict_layers: 2" in lines["tensorrt-llm"]


def test_a_draft_in_a_folder_of_any_name_is_one_word(tmp_path):
    folder = tmp_path / 'it\'s "mine"; rm -rf x'
    folder.mkdir()
    config = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8,
        "vocab_size": 128256,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    words = ("--speculative", "2", "--draft", str(folder))
    lines = launched(*TARGET, *words)

    vllm, sglang = shlex.split(lines["vllm"]), shlex.split(lines["sglang-llm"])
    told = json.loads(vllm[vllm.index("--speculative-config") + 1])
    assert told["model"] == str(folder)
    assert sglang[sglang.index("--speculative-draft-model-path") + 1] == str(folder)


def test_engines_refuse_drafts_in_a_pipeline():
    words = ("--model", "llama-3.1-8b", "--gpus", "2", "--speculative", "2", "--draft",
             "llama-3.1-8b")  # fmt: skip
    for engine in ("vllm", "sglang"):
        out = run("estimate", *words, "--plan", "pp2", "--engine", engine)[1]
        assert "(1." in out
        assert "speculation and pp exclude each other" in out
        plans = answer("recommend", *words, "--engine", engine)
        assert "pp" not in plans["recommended"]


def test_fleets_take_drafts_too(tmp_path):
    words = ("capacity", "--model", "llama-3.1-70b", "--rate", "2/s", "--slo-tpot", "15ms")
    engine = ("--engine", "vllm")
    found = answer(*words, *DRAFTS, *engine)["answers"][0]
    file = tmp_path / "demand.toml"
    file.write_text(
        '[[demand]]\nmodel = "llama-3.1-70b"\nrate = "2/s"\nslo_tpot = "15 ms"\nengine = "vllm"\n'
        'speculative = 3\ndraft = "llama-3.1-8b"\n'
    )

    assert answer("capacity", "--demand", str(file))["answers"][0] == found
    assert found["demand"]["speculative"] == 3
    assert "--speculative-config" in found["fleets"][0]["command"]
    plain = answer(*words, *engine)["answers"][0]["fleets"][0]
    assert found["fleets"][0]["gpus"] <= plain["gpus"]


# What is refused.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--speculative", "2"), "draft: got none, and llama-3.1-8b has no layers that predict"),
        (("--speculative", "2", "--draft", "mtp"), "draft: got mtp, and llama-3.1-8b has no such"),
        (("--speculative", "2", "--draft", "qwen3-8b"), "draft: got qwen3-8b of 151,936 tokens"),
        (("--speculative", "2", "--draft", "flux"), "draft: got flux.1-dev, wanted a language"),
        (("--speculative", "2", "--draft", "no"), "no"),
        (("--speculative", "0", "--draft", "x"), "speculative: got 0, wanted a whole number from"),
        (("--speculative", "17", "--draft", "x"), "speculative: got 17, wanted a whole number"),
        ((*DRAFTS, "--acceptance", "1"), "acceptance: got 1.0, wanted more than 0 and at most"),
        ((*DRAFTS, "--acceptance", "0"), "acceptance: got 0.0, wanted more than 0 and at most"),
        ((*DRAFTS, "--acceptance", "nan"), "acceptance: got nan, wanted more than 0"),
        (("--acceptance", "0.5"), "acceptance: got 0.5, wanted speculative beside it"),
        (("--draft", "llama-3.1-8b"), "draft: got 'llama-3.1-8b', wanted speculative beside it"),
        ((*DRAFTS, "--engine", "planner"), "speculative: got 3, which planner validate does not"),
        (("--lora", "adapter"), "argument --lora: adapters (LoRA) are not modelled; price the"),
    ],
)
def test_drafts_that_cannot_be_are_one_line(words, said):
    assert_refused(*run("estimate", "--model", "llama-3.1-8b", *words), said)


@pytest.mark.parametrize("command", [("estimate", "--plan", "tp8"), ("recommend",)])
def test_a_draft_that_cannot_run_is_one_line(command):
    words = (*command, "--model", "deepseek-v3", "--gpus", "8", "--hardware", "b200")
    drafts = ("--speculative", "2", "--draft", "deepseek-v3.2")
    assert_refused(*run(*words, *drafts), "draft: got deepseek-v3.2, attention to keys that an")


def test_events_follow_steps_of_a_token_each():
    words = ("simulate", "--model", "llama-3.1-8b", *DRAFTS)
    assert_refused(*run(*words), "speculative: got one, wanted none: events follow steps of")


def test_images_draft_nothing():
    with pytest.raises(InputError, match="speculative: got 2, wanted none"):
        planner.estimate("flux.1-dev", speculative=2)


@pytest.mark.parametrize("call", [planner.estimate, planner.recommend])
def test_adapters_are_refused_with_a_reason(call, tmp_path):
    with pytest.raises(InputError, match=r"lora: adapters \(LoRA\) are not modelled"):
        call("llama-3.1-8b", lora="adapter")
    file = tmp_path / "demand.toml"
    file.write_text('[[demand]]\nmodel = "llama-3.1-8b"\nrate = "1/s"\nslo = "1s"\nlora = "x"\n')
    said = "demand.toml, demand 1: lora: adapters (LoRA) are not modelled"
    assert_refused(*run("capacity", "--demand", str(file)), said)
