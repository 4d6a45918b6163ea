"""Plans as events: the closed form where both are exact, and what only events can tell."""

import json
import re
from pathlib import Path

import pytest

import planner
from planner.command import cli
from planner.simulation import simulation
from planner.simulation.gantt import middle
from topology.base import InputError

PLANS = [
    ("flux.1-dev", 4, "ring4", {}),
    ("flux.1-dev", 4, "ulysses2.ring2", {}),
    ("flux.1-dev", 1, "single", {}),
    ("cosmos3", 8, "cfg2.ulysses4", {}),
    ("wan2.1-14b", 8, "pp2.tp4", {}),
    ("wan2.1-1.3b", 4, "cfg2.allgather_kv2", {"hardware": "l40s"}),
    ("llama-3.1-8b", 4, "tp4", {"output_tokens": 32}),
    ("llama-3.1-8b", 4, "pp4", {"output_tokens": 32}),
    ("gemma-3-27b", 2, "pp2", {"output_tokens": 32, "hardware": "h200-sxm"}),
    ("sana-1.6b", 4, "cfg2.ulysses2", {}),
]
NAMES = [f"{model} {plan}" for model, _, plan, _ in PLANS]


@pytest.mark.parametrize(("model", "gpus", "plan", "asked"), PLANS, ids=NAMES)
def test_it_is_the_closed_form_where_the_host_keeps_ahead(model, gpus, plan, asked):
    """Of a pipeline the closed form lets every turn wait for the slowest of all ranks."""
    found = planner.simulate(model, gpus, plan, **asked)

    near = 0.01 if "pp" in plan else 1e-3
    assert found.latency_s == pytest.approx(found.estimate.latency_s, rel=near)
    for name, seconds in found.estimate.stages_s.items():
        assert found.stages_s[name] == pytest.approx(seconds, rel=near, abs=1e-6), name


@pytest.mark.parametrize(("model", "gpus", "plan", "asked"), PLANS, ids=NAMES)
def test_what_a_rank_does_adds_up_to_the_turn(model, gpus, plan, asked):
    found = planner.simulate(model, gpus, plan, runtime="torch-eager", **asked)

    for one in found.ranks:
        parts = sum(one.compute_s.values()) + one.communication_s - one.communication_hidden_s
        assert parts + one.waiting_s + one.idle_s == pytest.approx(found.turn_s, rel=1e-6)
        assert (
            min(one.communication_s, one.communication_hidden_s, one.waiting_s, one.idle_s) >= -1e-9
        )
        assert one.communication_hidden_s <= one.communication_s + 1e-12


def test_hosts_that_cannot_keep_up_in_part_of_a_step_are_as_far_ahead_in_both():
    """On each rank waits for its host in a part of every step, in which it has no lead left."""
    found = planner.simulate("flux.1-dev", 2, "ulysses2", hardware="b200", runtime="torch-eager")

    assert found.latency_s == pytest.approx(found.estimate.latency_s, rel=1e-3)
    assert all(one.idle_s > 0 for one in found.ranks)


@pytest.mark.parametrize("plan", ["ring4", "ulysses4", "tp4"])
def test_one_slow_gpu_holds_all_up(plan):
    even = planner.simulate("flux.1-dev", 4, plan, even=True)
    slow = planner.simulate("flux.1-dev", 4, plan, even=True, slow={2: 1.2})

    compute = sum(even.ranks[2].compute_s.values())
    assert even.turn_s < slow.turn_s <= even.turn_s + 0.2 * compute * (1 + 1e-9)
    assert slow.turn_s > even.turn_s + 0.1 * compute
    others = [one.waiting_s for one in slow.ranks if one.rank != 2]
    assert min(others) > slow.ranks[2].waiting_s


@pytest.mark.parametrize(
    ("model", "plan", "places"), [("flux.1-dev", "pp2", 2), ("llama-3.1-70b", "pp4", 4)]
)
def test_places_of_a_pipeline_take_turns(model, plan, places):
    """One request: each place works for its part of the time, and a slow one costs that part."""
    usual = planner.simulate(model, places, plan, even=True)
    slow = planner.simulate(model, places, plan, even=True, slow={0: 2.0})

    for one in usual.ranks:
        assert sum(one.compute_s.values()) == pytest.approx(usual.turn_s / places, rel=0.1)
    assert slow.turn_s / usual.turn_s == pytest.approx(1 + 1 / places, rel=0.05)


def test_one_gpu_decodes_the_picture():
    usual = planner.simulate("flux.1-dev", 4, "ulysses4")
    for rank, times in ((0, 2.0), (3, 1.0)):
        found = planner.simulate("flux.1-dev", 4, "ulysses4", slow={rank: 2.0})
        assert found.stages_s["vae_decode"] == pytest.approx(
            times * usual.stages_s["vae_decode"], rel=1e-6
        )


def test_what_cannot_run_the_plan_is_said(capsys):
    _, out, _ = run(capsys, *WORDS, "--engine", "trtmc")

    assert "! not with" in out


def test_equal_gpus_wait_for_none():
    even = planner.simulate("flux.1-dev", 4, "ulysses4", even=True)
    usual = planner.simulate("flux.1-dev", 4, "ulysses4")

    assert max(one.waiting_s for one in even.ranks) < 1e-9
    assert even.latency_s < usual.latency_s < even.latency_s * 1.02


def test_replicas_do_not_meet():
    found = planner.simulate("flux.1-dev", 8, "dp2.ulysses4")
    one = planner.simulate("flux.1-dev", 4, "ulysses4")

    assert len(found.ranks) == 4
    assert found.turn_s == pytest.approx(one.turn_s)


def test_the_window_is_a_layer_in_the_middle():
    found = planner.simulate("wan2.1-14b", 4, "ring4")
    window = middle(found.events, found.stage, found.turn_s)

    assert re.fullmatch(r"layer 41 of 80 \(layers\)", window.words)
    assert 0 < window.start < window.end < found.turn_s
    assert window.seconds == pytest.approx(found.turn_s / 80, rel=0.05)


def run(capsys, *words):
    code = cli.main(["simulate", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


WORDS = ("--model", "flux", "--gpus", "4", "--plan", "ring4")


def test_the_command_draws_a_layer(capsys):
    code, out, err = run(capsys, *WORDS)

    assert (code, err) == (0, "")
    assert "as the closed form has it" in out
    assert "rank 0 compute  g" in out
    assert re.search(r"rank 3 comm +\.*c", out)
    assert "g matrix products, a attention" in out


def test_json_is_what_python_gives(capsys):
    code, out, _ = run(capsys, *WORDS, "--slow", "1=1.5", "--format", "json")

    assert code == 0
    document = json.loads(out)
    assert document == planner.simulate("flux", 4, "ring4", slow={1: 1.5}).to_dict()
    assert [one["pace"] > 1.4 for one in document["ranks"]] == [False, True, False, False]


def test_markdown_and_a_page(capsys, tmp_path):
    _, out, _ = run(capsys, *WORDS, "--format", "markdown")
    page = tmp_path / "page.html"
    code, _, _ = run(capsys, *WORDS, "--format", "html", "--output", str(page))

    assert "| rank | pace | compute |" in out
    written = page.read_text(encoding="utf-8")
    assert code == 0
    assert written.count("<rect") > 50
    assert "waiting for a rank: before" in written
    assert "<script" not in written
    assert written.count('type="radio"') == 3  # how wide the timeline is
    assert ":checked) svg{width:1600%}" in written


def test_a_trace_holds_every_operation_of_a_turn(capsys, tmp_path):
    file = tmp_path / "trace.json"
    code, _, _ = run(capsys, *WORDS, "--trace", str(file))

    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    found = planner.simulate("flux", 4, "ring4")
    done = [event for event in events if event["ph"] == "X"]
    assert code == 0
    assert len(done) == len(found.events)
    assert max(one["ts"] + one["dur"] for one in done) == pytest.approx(found.turn_s * 1e6)
    assert {one["pid"] for one in done} == {0, 1, 2, 3}


def test_a_trace_has_an_arrow_from_the_rank_that_was_waited_for(capsys, tmp_path):
    """To each of the three others, inside the spans of the message on both."""
    file = tmp_path / "trace.json"
    run(capsys, *WORDS[:4], "--plan", "ulysses4", "--slow", "2=1.3", "--trace", str(file))
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]

    starts, ends = ({one["id"]: one for one in events if one["ph"] == kind} for kind in "sf")
    messages = {
        (one["pid"], one["ts"], one["name"])
        for one in events
        if one["ph"] == "X" and one["cat"] == "communication"
    }
    assert starts.keys() == ends.keys()
    assert len(starts) == len(messages) * 3 / 4
    for number, start in starts.items():
        for one in (start, ends[number]):
            assert (one["pid"], one["ts"], one["name"]) in messages
    sent = [one["pid"] for one in starts.values()]
    assert sent.count(2) > 0.9 * len(sent)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--slow", "9=1.1"), "slow: got rank 9, wanted one from 0 to 3 of a replica\n"),
        (
            ("--gpus", "8", "--plan", "dp2.ring4", "--slow", "5=1.1"),
            "wanted one from 0 to 3 of a replica: all are alike, and that is rank 1 of its own",
        ),
        (("--slow", "1=0"), "slow: got 0 for rank 1, wanted how many times as long as usual"),
        (("--slow", "1=nan"), "slow: got nan for rank 1"),
        (("--slow", "1=2", "--slow", "1=3"), "argument --slow: got 1 twice, wanted each once"),
        (("--trace", "new.json", "--output", "/no/x"), "--output /no/x: No such file"),
        (("--pause", "9=1"), "pause: got rank 9, wanted one from 0 to 3 of a replica"),
        (("--jitter", "-1"), "jitter: got -1, wanted a number, from 0 to 2"),
        (("--runs", "5"), "runs: got 5 without jitter, which makes them differ"),
        (("--runs", "0", "--jitter", "0.1"), "runs: got 0, wanted a whole number from 1 to 1000"),
        (("--link", "GPU9-NVSwitch=1"), "unknown link 'GPU9-NVSwitch': expected one of nvlink"),
        (
            ("--link", "GPU3-GPU4=1"),
            "network, GPU4-NVSwitch, GPU3-NVSwitch, GPU4-switch4, GPU3-switch3\n",
        ),
        (("--jitter", "x%"), "argument --jitter: got 'x%', wanted a share such as 0.95 or 95%"),
        (("--link", "nvlink=-1"), "links: got 'nvlink' and -1.0, wanted a link and times its"),
        (("--link", "nvlink"), "argument --link: got 'nvlink', wanted a link and times its"),
        (("--link", "pcie=1", "--link", "pcie=2"), "got pcie twice, wanted each once"),
        (
            ("--hardware", "l40s", "--link", "pcie=0"),
            "without pcie nothing joins GPU0 and GPU1: send_recv of double.text+image.chunk1 along",
        ),
        (("--traffic", "GPU0-GPU1=0.5"), "unknown link 'GPU0-GPU1': expected one of nvlink"),
        (("--slow", "3"), "argument --slow: got '3', wanted a rank and a number such as 3=1.1"),
        (("--slow", "a=1"), "argument --slow: got 'a=1'"),
        (("--plan", "ulysses5", "--gpus", "5"), "plan ulysses5"),
        (("--trace", "/nowhere/at/all.json"), "--trace /nowhere/at/all.json"),
        (("--trace", ""), "argument --trace: got ''"),
        (("--trace", "a.json", "--output", "./a.json"), "got a.json, which --output names too"),
    ],
)
def test_bad_input_is_one_line(capsys, words, said):
    code, out, err = run(capsys, *WORDS, *words)

    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err


def test_a_network_that_is_down_stops_the_first_message_between_hosts():
    said = (
        "links: without network nothing joins 2 hosts: all_to_all of .* along ulysses stops, "
        "which ranks 0, 2, 4, 6, 8, 10, 12, 14 wait for"
    )
    with pytest.raises(InputError, match=said):
        planner.simulate("wan2.1-14b", 16, "ulysses8.cfg2", links={"network": 0})
    with pytest.raises(InputError, match=r"nothing joins 2 hosts$"):  # no plan of 16 GPUs
        planner.simulate("wan2.1-14b", 16, "ring8", links={"network": 0})


def test_a_link_that_is_down_is_gone_around_where_there_is_a_way():
    """Without its NVLinks a GPU is reached over PCIe, which the plan waits for."""
    usual, around = (
        planner.simulate("flux", 8, "ulysses8", links=links, even=True)
        for links in ({}, {"GPU1-NVSwitch": 0})
    )

    assert around.turn_s > 2 * usual.turn_s


def test_a_trace_is_written_only_where_nothing_is_refused(capsys, tmp_path):
    file = tmp_path / "trace.json"
    code, _, err = run(capsys, *WORDS, "--trace", str(file), "--beside", "nothing:tp2")

    assert code == 2
    assert "unknown model 'nothing'" in err
    assert not file.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slow": [1, 2]}, r"slow: got \[1, 2\], wanted numbers by rank"),
        ({"slow": "1=1.1"}, "slow: got '1=1.1', wanted numbers by rank"),
        ({"slow": {1: "x"}}, "slow: got 'x' for rank 1, wanted a number"),
        ({"slow": {1: None}}, "slow: got None for rank 1, wanted a number"),
        ({"slow": {1: 10**400}}, "slow: got 1000.* for rank 1, wanted how many times"),
        ({"slow": {"1": 1.1}}, "slow: got rank '1', wanted a whole number"),
        ({"slow": {1.5: 1.1}}, "slow: got rank 1.5, wanted a whole number"),
        ({"even": "no"}, "even: got 'no', wanted True or False"),
    ],
)
def test_values_of_another_type_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        planner.simulate("flux", 4, "ring4", **options)


def test_the_critical_path_is_the_whole_turn():
    for plan, asked in (("ring4", {}), ("pp4", {}), ("ulysses4", {"runtime": "torch-eager"})):
        found = planner.simulate("flux.1-dev", 4, plan, slow={2: 1.2}, **asked)

        assert sum(piece.seconds for piece in found.path) == pytest.approx(found.turn_s)
        ranks = [piece.rank for piece in found.path if piece.kind == "gemm"]
        if plan != "pp4":
            assert ranks.count(2) > 0.9 * len(ranks)


def test_a_host_that_pauses_holds_all_up_until_it_has_a_lead():
    """Once, by as much; in later turns it is so far ahead, unless it pauses for longer than one."""
    usual, *paused = [
        planner.simulate("flux.1-dev", 4, "ulysses4", even=True, pause={1: seconds})
        for seconds in (0.0, 0.02, 0.2)
    ]

    assert paused[0].turn_s == pytest.approx(usual.turn_s)
    denoised = [one.stages_s["denoise"] for one in (usual, *paused)]
    assert denoised[1] == pytest.approx(denoised[0] + 0.02)
    assert paused[1].turn_s == pytest.approx(0.2)
    assert denoised[2] == pytest.approx(usual.turns * 0.2 + usual.turn_s)


def test_chance_costs_more_where_ranks_wait_for_each_other():
    given = {"even": True, "jitter": 0.2, "runs": 3, "height": 512, "width": 512}
    apart = planner.simulate("flux.1-dev", 1, "single", **given)
    together = planner.simulate("flux.1-dev", 4, "ulysses4", **given)

    cost = [one.turn_s / one.estimate.stages_s["denoise"] * 28 for one in (apart, together)]
    assert cost[0] < cost[1]
    within = together.percentiles_s
    assert within["p50"] < within["p90"] < within["p99"]
    assert planner.simulate("flux.1-dev", 4, "ulysses4", **given).to_dict() == together.to_dict()


@pytest.mark.parametrize(
    ("links", "more"), [({"GPU1-NVSwitch": 0.5}, 1), ({"nvlink": 0.5}, 1), ({"nvlink": 2}, -1)]
)
def test_links_that_are_not_as_usual_change_what_passes_them(links, more):
    usual, altered = (
        planner.estimate("flux.1-dev", 8, plan="tp8", links=given) for given in ({}, links)
    )

    change = altered.latency_s - usual.latency_s
    assert change * more > 0.05 * usual.breakdown_s["communication_exposed"]


def test_a_gpu_with_a_slow_link_is_left_out_where_it_can_be():
    usual = planner.estimate("flux.1-dev", 4, plan="tp4")
    altered = planner.estimate("flux.1-dev", 4, plan="tp4", links={"GPU1-NVSwitch": 0.5})

    assert altered.latency_s == usual.latency_s
    assert 1 not in altered.placement.devices


def test_collectives_pass_altered_links_too(capsys):
    words = ("collectives", "--gpus", "4", "--bytes", "1GiB", "--format", "json")
    times = []
    for links in ((), ("--link", "nvlink=0.5")):
        assert cli.main([*words, *links]) == 0
        times.append(json.loads(capsys.readouterr().out)["rows"][0]["time_s"])

    assert times[1] > 1.3 * times[0]


def test_what_would_change_it_is_run_too(capsys):
    code, out, _ = run(capsys, *WORDS, "--what-if", "--format", "json")

    document = json.loads(out)
    times = {row["change"]: row["latency_s"] for row in document["what_if"]}
    assert code == 0
    assert times["NVLink twice as fast"] < document["latency_s"] < times["NVLink half as fast"]
    assert times["all GPUs equally fast"] < document["latency_s"]
    assert list(times.values()) == sorted(times.values())


@pytest.mark.parametrize("kind", ["nvlink", "network"])
def test_a_link_that_was_altered_is_changed_from_there(capsys, kind):
    """Twice half is as usual."""
    asked = ("--model", "flux.1-dev", "--gpus", "16", "--plan", "ring16", "--steps", "1", "--even")
    code, out, err = run(capsys, *asked, "--link", f"{kind}=0.5", "--what-if", "--format", "json")

    assert (code, err) == (0, "")
    times = {row["change"]: row["latency_s"] for row in json.loads(out)["what_if"]}
    words = {"nvlink": "NVLink", "network": "the network"}[kind]
    assert times[f"{words} twice as fast"] == pytest.approx(times[f"{kind} as usual"])


def test_no_link_is_made_faster_than_links_may_be(capsys):
    code, out, err = run(capsys, *WORDS, "--link", "nvlink=60", "--what-if", "--format", "json")

    assert (code, err) == (0, "")
    assert "NVLink twice as fast" not in {row["change"] for row in json.loads(out)["what_if"]}


def test_a_nic_fewer_is_one_that_is_there(capsys):
    asked = ("--model", "flux.1-dev", "--gpus", "16", "--plan", "ring16", "--steps", "1", "--even")
    code, out, err = run(
        capsys, *asked, "--link", "NIC0-network=0", "--what-if", "--format", "json"
    )

    assert (code, err) == (0, "")
    document = json.loads(out)
    times = {row["change"]: row["latency_s"] for row in document["what_if"]}
    assert times["one NIC fewer a host"] != document["latency_s"]


def test_links_that_no_message_passes_are_not_changed(capsys):
    """Replicas never meet."""
    asked = ("--model", "flux.1-dev", "--gpus", "16", "--plan", "dp16", "--batch", "16")
    code, out, err = run(capsys, *asked, "--what-if", "--format", "json")

    assert (code, err) == (0, "")
    assert json.loads(out)["what_if"] == []


def test_the_first_plans_are_ranked_again_by_events():
    found = planner.recommend("flux.1-dev", 4, simulate=3)

    first, fourth = found.plans[:3], found.plans[3]
    times = [plan.simulated_s for plan in first]
    assert times == sorted(times)
    assert times[0] == pytest.approx(
        planner.simulate(
            "flux.1-dev", 4, first[0].plan, runtime=first[0].runtime, engine=first[0].engine
        ).latency_s
    )
    assert fourth.simulated_s is None
    assert found.lead is first[0]


def test_what_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(simulation, "MOST_TASKS", 1000)

    with pytest.raises(InputError, match=r"simulate: ring4 has .* operations on 4 ranks, wanted"):
        planner.simulate("flux", 4, "ring4")
    monkeypatch.setattr(simulation, "MOST_TASKS", 50_000)
    with pytest.raises(InputError, match=r"in each of 1000 runs, wanted .* in all; fewer runs do"):
        planner.simulate("flux", 4, "ring4", jitter=0.1, runs=1000)
