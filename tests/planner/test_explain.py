"""What is said about a recommendation is true: factors, shares and prices."""

import json
import re
from dataclasses import replace
from math import hypot

import pytest
from generators import asked, made, ranked, recommended
from hypothesis import given
from hypothesis import strategies as st

from costmodels.basis import Basis
from planner import api
from planner.advice.advice import advice, difference, too_close
from planner.advice.notes import notes_on, size_notes, sparse_note, variable_notes
from planner.export.export import files
from planner.models import read_model
from planner.rendering import report
from planner.request.request import Request
from planner.request.workload import Workload
from planner.scenario.scenario import resolve
from planner.search.estimate import PAIR_HALF_WIDTH, UNCERTAINTY, PlanEstimate
from planner.search.evaluate import price
from planner.search.judging import judge
from planner.search.ranking import Ranking
from planner.strategies import parse_plan
from topology.base import counted, format_seconds
from topology.base.table import document, terminal

pytestmark = pytest.mark.usefixtures("asked_once")

KNOWN = dict.fromkeys(("gemm", "attention", "communication_exposed"), Basis.MEASURED)


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "line"),
    [
        ("flux.1-dev", 8, 4, ", which dp splits: dp4 at most; at batch 1 each replica serves"),
        ("flux.1-dev", 2, 3, "throughput is at batch 3; at batch 1 each replica serves a request"),
        ("llama-3.1-8b", 2, 4, "throughput is at batch 4, which dp splits: dp2 at most; a larger"),
    ],
)
def test_one_line_says_what_throughput_is_of(model, gpus, batch, line):
    scenario, found = asked(model, gpus, batch=batch), recommended(model, gpus, batch=batch)
    about = [one for one in found.advice if "throughput is at" in one]

    assert len(about) == 1
    assert line in about[0]
    shown = report.estimate(scenario, found.plans[0], [])
    assert about[0] in terminal(shown, 400)
    assert about[0] in document(report.estimate_page(scenario, found.plans[0], []))


def test_nothing_is_said_of_a_batch_that_replicas_share_evenly():
    for batch in (1, 2):
        assert "at batch" not in " ".join(recommended("flux.1-dev", 2, batch=batch).advice)


def test_more_results_a_second_at_batch_one_than_the_replicas_of_a_batch_make():
    most = [
        max(one.throughput_per_s for one in ranked("cosmos3-nano", 8, batch=batch).plans)
        for batch in (1, 4)
    ]
    assert most[0] > most[1]


def plan(text, gemm, communication, attention=0.0, **more):
    parsed = parse_plan(text)
    parts = {"gemm": gemm, "attention": attention, "communication_exposed": communication}
    return made(
        **{
            "plan": parsed,
            "gpus": parsed.gpus,
            "latency_s": gemm + communication + attention,
            "breakdown_s": parts,
            "stages_s": {"denoise": gemm + communication + attention},
            "known": KNOWN,
            "throughput_per_s": parsed.degree("dp") / (gemm + communication + attention or 1.0),
            **more,
        }
    )


def said(*plans, scaling=(), **more):
    scenario = asked("flux.1-dev", plans[0].gpus, **more)
    by_gpus = {one.gpus: (one,) for one in scaling}
    ranking = Ranking(
        request=scenario.request, plans=plans, by_gpus=by_gpus, rejected=(), baseline=None
    )
    return list(advice(scenario, ranking, (), plans[0]))


def test_the_first_plan_wins_by_the_part_that_differs_most():
    why = said(plan("tp8", 4.0, 1.0), plan("ring8", 4.0, 2.0))[0]

    assert why == "tp8 is 20.0 % faster than ring8: less time in communication (1 s against 2 s)"


def test_what_two_plans_share_does_not_blur_their_difference():
    """Both spend 100 s on products, guessed at; ten more of communication are told apart."""
    guessed = {**KNOWN, "gemm": Basis.ASSUMED}
    one = plan("tp8", 100.0, 1.0, known=guessed)
    two = plan("ring8", 100.0, 11.0, known=guessed)

    seconds, half = difference(one, two)
    assert seconds == pytest.approx(10)
    assert half == pytest.approx(hypot(10 * UNCERTAINTY[Basis.MEASURED], PAIR_HALF_WIDTH * 111))
    assert not too_close(one, two)


def test_a_per_cent_is_too_close_to_call_however_well_the_parts_are_known():
    """Errors of two plans of one request differ by more, measured on GPUs."""
    assert too_close(plan("tp8", 100.0, 1.0), plan("ring8", 100.0, 2.0))


def test_a_difference_within_what_is_known_is_too_close_to_call():
    guessed = {**KNOWN, "gemm": Basis.ASSUMED}
    one, two = plan("tp8", 10.0, 1.0, known=guessed), plan("ring8", 9.0, 2.01, known=guessed)

    assert too_close(one, two)
    assert "too close to call" in said(one, two)[0]
    assert said(one, two)[0] == (
        "tp8 and ring8 are too close to call: 0.1 % apart, less than the model can tell of matrix "
        "products (assumed, ± 35 %); measure both"
    )


def test_the_order_is_not_said_to_hold_of_plans_too_close_to_call():
    lines = said(plan("tp8", 100.0, 1.0), plan("ring8", 101.0, 1.0))

    assert lines[0].endswith("apart, and the model is good to 2.4 %; measure both")
    assert not [line for line in lines if "the order holds" in line]
    assert any("the order holds" in line for line in said(plan("tp8", 6.0, 1), plan("ring8", 8, 1)))


def test_one_result_is_asked_of_one_replica_and_throughput_of_all():
    answer = api.recommend("flux.1-dev", gpus=4, hardware="l40s")
    shared = api.recommend("flux.1-dev", gpus=4, hardware="l40s", batch=4)
    said = report.recommendation(answer, top=3)
    begins = (
        "For one result at a time use 1 GPU: single with TensorRT: ", "--plan single ",
        "For throughput run dp4 with TensorRT: ", "--plan dp4 ",
    )  # fmt: skip

    assert str(answer.lead.plan) == answer.to_dict()["recommended"] == "dp4"
    for text in (terminal(said, 400), document(report.recommendation_page(answer, top=3))):
        lines = [line for line in text.splitlines() if any(words in line for words in begins)]
        assert all(words in line for words, line in zip(begins, lines, strict=False))
    assert shared.lead.plan.degree("dp") == 4  # each has an image of its own
    assert shared.fewer is None
    assert "\nRun dp4 with" in terminal(report.recommendation(shared, top=3), 400)


def test_fewer_gpus_that_are_faster_come_first():
    answer = api.recommend("flux.1-dev", gpus=4, hardware="l40s", batch=3)
    said = terminal(report.recommendation(answer, top=3), 400)

    assert answer.fewer.gpus == 1
    assert answer.fewer.latency_s < answer.lead.latency_s
    took = format_seconds(answer.fewer.latency_s)
    assert f"\nUse 1 GPU: single with TensorRT: {took} " in said
    assert said.index("--plan single ") < said.index("\nAll 4 are slower: ")


def test_engines_are_told_the_sides_that_are_priced():
    """xDiT wants rows of latents to divide: 1000 pixels are 125, the 992 that are made 124."""
    answer = api.recommend("flux.1-dev", gpus=2, height=1000, width=1001)
    lines = [run.launch.line for run in answer.runs if run.title == "xDiT" and run.launch]

    assert lines
    assert all("_degree 2" in n and "--height 992 --width 992" in n for n in lines)
    assert not [run.reason for run in answer.runs if "rows of latents" in run.reason]


parts = st.tuples(*[st.integers(0, 100).map(float)] * 3)


@given(one=parts, two=parts)
def test_differences_turn_their_sign_with_the_order(one, two):
    first, second = plan("tp8", *one), plan("ring8", *two)

    there, back = difference(first, second), difference(second, first)
    assert there[0] == pytest.approx(-back[0])
    assert there[1] == pytest.approx(back[1])
    assert too_close(first, second) == too_close(second, first)
    assert too_close(first, first)


@pytest.mark.parametrize(
    ("first", "rival", "sentence"),
    [
        # 6 + f = 4 + 4 f at f = 2/3
        ((6.0, 1.0), (4.0, 4.0), "ring8 would come first if communication were 1.5 times faster"),
        # 6 + f = 8 at f = 2
        ((6.0, 1.0), (8.0, 0.0), "ring8 would come first if communication were 2 times slower"),
        # never
        ((6.0, 1.0), (8.0, 1.0), "the order holds if communication or attention are off by up to"),
        # 6 + f = 6.05 at f = 1.05: a share
        ((6.0, 1.0), (7.05, 0.0), "ring8 would come first if communication were 5 % slower than"),
        # 7 + f = 6 + 2.05 f at f = 1 / 1.05
        ((7.0, 1.0), (6.0, 2.05), "ring8 would come first if communication were 5 % faster than"),
        # only at ten times: not worth a line
        ((6.0, 1.0), (16.0, 0.0), "the order holds"),
    ],
)
def test_the_order_changes_where_it_is_said_to_change(first, rival, sentence):
    assert said(plan("tp8", *first), plan("ring8", *rival))[1].startswith(sentence)


@pytest.mark.parametrize("model", ["cosmos3-nano", "sd3.5-large", "flux.1-dev"])
def test_the_factor_that_is_printed_does_turn_the_order(model):
    """Scale the part by a little more than the factor, and the rival is faster."""
    answer = recommended(model)
    line = next(one for one in answer.advice if "would come first" in one)
    name, word, factor, way = re.fullmatch(
        r"(\S+) would come first if (\w+) were ([0-9.]+ (?:times|%)) (faster|slower) than modelled",
        line,
    ).groups()
    part = {"communication": "communication_exposed", "attention": "attention"}[word]
    rival = next(one for one in answer.plans if str(one.plan) == name)
    number, unit = factor.split()
    size = float(number) if unit == "times" else 1 + float(number) / 100
    scale = size if way == "slower" else 1 / size

    def scaled(one, more):
        return one.latency_s + one.breakdown_s[part] * (more - 1)

    beyond, before = (
        (scale * 1.06, scale / 1.06) if way == "slower" else (scale / 1.06, scale * 1.06)
    )
    assert scaled(rival, beyond) < scaled(answer.plans[0], beyond)
    assert scaled(rival, before) > scaled(answer.plans[0], before)


def test_fewer_gpus_are_named_when_more_gain_nothing():
    small, large = plan("single", 10.0, 0.0), plan("tp8", 9.9, 0.0)
    line = said(large, scaling=(small, large))[0]

    assert line == "use 1 GPU: single takes 10 s, and 8 gain less than 3 %"


def test_the_fewest_of_those_that_do_is_named():
    scaling = (plan("single", 30.0, 0.0), plan("tp2", 10.1, 0.0), plan("tp4", 10.0, 0.0))

    assert said(plan("tp8", 10.0, 0.0), scaling=scaling)[0].startswith("use 2 GPUs: tp2")


def test_the_last_doubling_has_its_price():
    """8 GPUs, 1.6 times as fast as 4: 8 x 10 s against 4 x 16 s is a quarter more."""
    scaling = (plan("tp4", 16.0, 0.0),)
    line = said(plan("tp8", 10.0, 0.0), scaling=scaling)[0]

    assert line == (
        "8 GPUs are 1.60 times as fast as 4 (tp4, 16 s) and take 25 % more "
        "GPU-seconds (GPUs x s) per result"
    )


def test_a_doubling_that_gains_little_says_so_with_its_numbers():
    """1.2 times as fast: 8 x 10 s against 4 x 12 s."""
    line = said(plan("tp8", 10.0, 0.0), scaling=(plan("tp4", 12.0, 0.0),))[0]

    assert line == (
        "8 GPUs gain little over 4 (tp4, 12 s): 1.20 times as fast, at 80 "
        "GPU-seconds (GPUs x s) per result against 48 (67 % more)"
    )


@pytest.mark.parametrize(
    ("few", "seconds", "words"),
    [
        ("tp4", 12.4, "gain little over 4"),
        ("tp4", 12.6, "are 1.26 times as fast as 4"),
        ("tp4", 10.5, "gain little over 4 (tp4, 10.5 s): 5 % faster"),
        ("tp2", 15.0, "gain little over 2"),  # two doublings
        ("tp2", 16.0, "are 1.60 times as fast as 2"),
        ("tp6", 11.2, "are 1.12 times as fast as 6"),  # a third more GPUs, an eighth faster
    ],
)
def test_little_is_less_than_a_quarter_a_doubling(few, seconds, words):
    assert words in said(plan("tp8", 10.0, 0.0), scaling=(plan(few, seconds, 0.0),))[0]


def test_schnell_gains_little_from_its_last_four_gpus():
    """One image in four steps is too little work for 8 B200; the ranking stays as it is."""
    answer = recommended("flux.1-schnell", hardware="b200", height=512, width=512)
    line = next(one for one in answer.advice if "GPU-seconds" in one or one.startswith("use "))

    assert "8 GPUs gain little over 4" in line or line.startswith("use ")
    assert answer.plans[0].gpus == 8
    order = [(one.unproven, one.latency_s) for one in answer.runnable]
    assert order == sorted(order)


def test_what_is_the_same_gains_nothing():
    """Never "1.00 times as fast", nor "1 times faster"."""
    for seconds in (10.0, 10.01, 10.2, 10.29):
        line = said(plan("tp8", 10.0, 0.0), scaling=(plan("tp4", seconds, 0.0),))[0]
        assert line.startswith("use 4 GPUs")
    lines = said(plan("tp8", 10.0, 1.0), plan("ring8", 10.0, 1.0), plan("ulysses8", 9.0, 2.0))
    assert not [line for line in lines if re.search(r"\b1(\.0+)? times", line)]


@pytest.mark.parametrize(
    ("objective", "sentences"),
    [
        (
            "throughput",
            [
                "dp8 serves 1.60 times as many requests a second as tp8",
                "8 GPUs serve 2.00 times as many requests a second as 4",
            ],
        ),
        ("memory", ["dp8 needs 1 GiB a GPU, tp8 2 GiB"]),
        ("cost", ["dp8 takes 50 GPU-seconds (GPUs x s) per result, tp8 80"]),
    ],
)
def test_other_objectives_are_explained_by_what_they_ask_for(objective, sentences):
    plans = (
        plan("dp8", 50.0, 0.0, memory_bytes=2.0**30),
        plan("tp8", 10.0, 0.0, memory_bytes=2.0**31),
    )
    scaling = (plan("dp4", 50.0, 0.0),)

    assert said(*plans, scaling=scaling, objective=objective) == sentences


def test_small_gains_are_shares_for_every_objective():
    one, two = plan("dp8", 50.0, 0.0), plan("dp8.tp1", 52.0, 0.0)

    line = said(one, two, objective="throughput")[0]
    assert line == "dp8 serves 4 % more requests a second than dp8"


@pytest.mark.parametrize("objective", ["latency", "throughput", "memory", "cost"])
@pytest.mark.parametrize(("model", "gpus"), [("wan2.1-14b", 4), ("llama-3.1-8b", 2)])
def test_no_sentence_praises_what_is_worse(model, gpus, objective):
    lines = recommended(model, gpus, objective=objective).advice

    assert lines
    assert not [line for line in lines if re.search(r"-\d+(\.\d+)? % (faster|more)", line)]


def test_a_parallel_decode_is_offered_where_it_shows():
    """Cosmos 3 decodes for a fifth of the time; engines can split that."""
    answer = recommended("cosmos3-nano", runtime="tensorrt")
    line = next(one for one in answer.advice if "VAE decode" in one)
    wide = judge(asked("cosmos3-nano"), replace(answer.plans[0].plan, vae=8))

    assert f"({wide.plan})" in line
    assert wide.latency_s < answer.plans[0].latency_s
    assert not [one for one in recommended("cosmos3-nano", 1).advice if "VAE decode" in one]
    assert not [one for one in recommended("llama-3.1-8b", 2).advice if "VAE decode" in one]


def test_what_is_not_modelled_is_said_first():
    """DeepSeek V3.2 looks at 2048 keys that small attention chooses."""
    sparse = {
        "model_type": "deepseek_v32", "hidden_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 1024,
        "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
        "v_head_dim": 32, "index_n_heads": 4, "index_head_dim": 32, "index_topk": 2048,
        "vocab_size": 1000,
    }  # fmt: skip
    said = "attention to keys that an indexer chooses is not modelled yet"

    assert recommended(json.dumps(sparse)).advice == (said,)


@pytest.mark.parametrize("model", ["cosmos3-nano", "flux.1-schnell", "llama-3.1-70b", "mochi-1"])
def test_advice_is_short_sentences(model):
    for line in recommended(model).advice:
        assert "\n" not in line
        assert len(line) < 200
        assert not re.search(r"\bnan\b|\binf\b|None", line)


def test_answers_are_estimates():
    assert all(isinstance(one, PlanEstimate) for one in ranked("flux.1-dev").scaling)


def test_plans_that_nothing_runs_are_answered_with_a_request_that_something_does():
    """SGLang has no pipeline; of 4 x L4 only a pipeline holds FLUX.1."""
    answer = recommended("flux.1-dev", 4, hardware="l4", engine="sglang")

    assert answer.lead is None
    assert answer.to_dict()["recommended"] is None
    assert "pp" in str(answer.plans[0].plan)
    assert answer.advice[0].startswith("nothing that is known runs these plans; would fit: ")
    assert answer.alternatives
    for other in answer.alternatives:
        assert other.run.launch.line
        assert f"{other.run.estimate.plan} with {other.options}" in answer.advice[0] or (
            f"{other.run.estimate.plan} on " in answer.advice[0]
        )


def test_a_plan_that_is_slow_for_want_of_memory_is_answered_with_lighter_ones():
    """8 x RTX 4090 hold FLUX.1 in bf16 only where its weights are cut over PCIe."""
    answer = recommended("flux.1-dev", 8, hardware="rtx-4090")

    assert "--precision fp8" in [other.options for other in answer.alternatives]
    for other in answer.alternatives:
        assert other.run.estimate.latency_s < answer.lead.latency_s


@pytest.mark.parametrize(("nodes", "hosts"), [(13, 8), (0, 1)])
def test_fewer_gpus_are_as_many_on_a_host_as_was_asked(nodes, hosts):
    """One GPU on each of 13 hosts, and so on each of 8; nobody asked for that of 8 otherwise."""
    lines = recommended("flux.1-dev", 13, nodes=nodes).advice
    line = next(line for line in lines if line.startswith("use 8 GPUs"))
    where, name, seconds = re.match(r"use 8 GPUs( on .*?): (\S+) takes (.*), and 13", line).groups()
    alone = judge(asked("flux.1-dev", 8, nodes=hosts if nodes else 0), parse_plan(name))

    assert where == f" on {counted(hosts, 'host')}"
    assert seconds == format_seconds(alone.latency_s)


def test_what_graphs_add_to_messages_is_said_with_the_variable_that_takes_it_away():
    """The folder that ``planner export`` writes sets it, and expects what is promised."""
    asked = Request(model="flux.1-dev", gpus=4)
    scenario = resolve(asked)
    mixed, unmixed = (price(one, parse_plan("ulysses4")) for one in (scenario, scenario.unmixed))
    gain = mixed.latency_s - unmixed.latency_s
    calls = 57 * 2 * 28  # a step of each layer, there and back

    assert 3e-6 < gain / calls < 25e-6
    (line,) = variable_notes(scenario, mixed)
    assert line.startswith(f"NCCL_GRAPH_MIXING_SUPPORT=0 takes {format_seconds(gain)} off")
    assert line in notes_on(scenario, mixed)
    folder = files(asked, "ulysses4", "tensorrt")
    document = json.loads(folder["plan.json"])
    assert document["environment"] == {"NCCL_GRAPH_MIXING_SUPPORT": "0"}
    assert document["expected"]["latency_s"] == pytest.approx(unmixed.latency_s)
    assert "environment NCCL_GRAPH_MIXING_SUPPORT 0" in folder["cpp/schedule.txt"].decode()
    assert "NCCL_GRAPH_MIXING_SUPPORT=0" in folder["README.md"].decode()


@pytest.mark.parametrize(
    ("model", "gpus", "runtime"),
    [
        ("flux.1-dev", 1, "tensorrt"),  # no messages
        ("flux.1-dev", 4, "torch-compile"),  # no graph
        ("llama-3.1-8b", 4, "tensorrt"),  # prompts are run while graphs are under way
    ],
)
def test_the_variable_is_not_offered_where_it_does_nothing_or_is_wrong(model, gpus, runtime):
    asked = Request(model=model, gpus=gpus, runtime=runtime)
    plan = parse_plan("single" if gpus == 1 else f"tp{gpus}")
    scenario = resolve(asked)

    assert not list(variable_notes(scenario, price(scenario, plan)))


def test_priority_is_offered_to_a_ring_that_has_none():
    asked = Request(
        model="qwen-image", gpus=2, engine="vllm-omni", runtime="torch-compile", hardware="h100-sxm"
    )
    ring, ulysses = parse_plan("ring2"), parse_plan("ulysses2")
    scenario, ours = resolve(asked), resolve(replace(asked, engine="planner"))
    pcie = resolve(replace(asked, hardware="l40s"))
    (line,) = variable_notes(scenario, price(scenario, ring))

    assert re.match(r"TORCH_NCCL_HIGH_PRIORITY=1 takes .* off \(\d+\.\d %\): messages", line)
    assert not list(variable_notes(scenario, price(scenario, ulysses)))
    assert not list(variable_notes(ours, price(ours, ring)))
    assert not list(variable_notes(pcie, price(pcie, ring)))


@pytest.mark.parametrize(
    ("model", "asked", "said"),
    [
        ("flux.1-dev", {"height": 17}, ["height 17: the pipeline rounds it down to"]),
        ("flux.1-dev", {"height": 1024, "width": 1000}, ["width 1000: the pipeline rounds"]),
        ("flux.1-dev", {"height": 1024}, []),
        ("cosmos3", {"height": 720}, []),  # rounded up, and cut back
    ],
)
def test_sides_that_the_pipeline_makes_smaller_are_said(model, asked, said):
    notes = list(size_notes(resolve(Request(model=model, gpus=1, **asked))))

    assert len(notes) == len(said)
    assert all(note.startswith(begins) for note, begins in zip(notes, said, strict=True))


def test_a_choice_of_keys_is_priced_as_dense_with_a_word():
    """DeepSeek-V3.2's indexer chooses 2,048 keys; shorter sequences have no more."""
    model = read_model("deepseek-v3.2")
    short, long = (Workload(tokens=(("tokens", n),), output_tokens=64) for n in (1024, 4096))

    assert next(sparse_note(model, long)).startswith("attention is priced as if each token saw")
    assert not list(sparse_note(model, short))
    assert not list(sparse_note(read_model("deepseek-v3.1"), long))


def test_cards_without_peer_access_say_so_and_what_it_changes():
    answer = api.recommend("flux.1-dev", gpus=4, hardware="l40s")
    said = [line for line in answer.advice if "no peer access" in line]

    assert len(said) == 1
    assert "measured: ai-dynamo/aiconfigurator#1346" in said[0]
    name, then, now = re.search(r"with it (\S+) takes (.*), not (.*)$", said[0]).groups()
    joined = replace(
        resolve(Request(model="flux.1-dev", gpus=4, hardware="l40s")).deployment.hardware,
        peer_to_peer=True,
        no_peers="",
    )
    scenario = answer.scenario
    there = replace(scenario, deployment=replace(scenario.deployment, hardware=joined))
    fastest = price(there, parse_plan(name)).latency_s
    assert format_seconds(fastest) == then != now
    assert fastest < answer.lead.latency_s
    assert all(price(there, n.plan).latency_s >= fastest for n in answer.runnable if not n.unproven)


def test_where_peer_access_decides_servers_without_it_are_spoken_of():
    answer = api.recommend("flux.1-dev", gpus=2, hardware="l40")
    (said,) = (line for line in answer.advice if "peer access" in line)

    name, then = re.search(r"there (\S+) takes (.*), and dp2 ", said).groups()
    scenario = answer.scenario
    hardware = replace(scenario.deployment.hardware, peer_to_peer=False)
    there = replace(scenario, deployment=replace(scenario.deployment, hardware=hardware))
    assert name == str(answer.lead.plan) == "ring2"
    assert then == format_seconds(price(there, answer.lead.plan).latency_s)
    bridged = api.recommend("flux.1-dev", gpus=2, hardware="h100-nvl")
    assert not [line for line in bridged.advice if "peer access" in line]


def test_peer_access_that_makes_no_plan_the_fastest_is_not_spoken_of():
    """The branches of guidance hardly talk, so that links between the two GPUs matter little."""
    answer = api.recommend("sd3.5-large", gpus=2, hardware="l40s", engine="xdit")

    assert str(answer.lead.plan) == "cfg2"
    assert not [line for line in answer.advice if "no peer access" in line]


@pytest.mark.parametrize("gpus", [4, 8])
def test_what_altered_links_cost_the_plan_is_said(gpus):
    more = {"gpus": gpus, "hardware": "h100-sxm", "engine": "xdit"}
    answer = api.recommend("flux.1-dev", links={"GPU3-NVSwitch": 0.25}, **more)
    lead = answer.lead
    usual = api.estimate("flux.1-dev", plan=lead.plan, links={"GPU3-NVSwitch": 1}, **more)
    line = next(line for line in answer.advice if "altered links" in line)

    if gpus == 4:
        assert lead.latency_s == usual.latency_s
        assert line == f"the altered links cost {lead.plan} nothing; GPU3 is left out"
    else:
        share = 100 * (lead.latency_s / usual.latency_s - 1)
        assert line.endswith(f"usual ones {format_seconds(usual.latency_s)}: {share:.1f} % more")
