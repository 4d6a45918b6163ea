"""What a person reads: every number is there, and nothing is wider than the terminal."""

import json
import re
import shlex
from pathlib import Path

import pytest
from commands import FLUX, run
from generators import asked, priced, recommended

from planner.models import names
from planner.models.catalogue import repositories
from planner.rendering import report
from planner.runners.launch import launch_lines
from planner.search.estimate import PAIR_HALF_WIDTH, WORDS, worded
from topology.base import format_bytes, format_seconds
from topology.base.table import document as in_document
from topology.base.table import terminal, wrapped_command

pytestmark = pytest.mark.usefixtures("asked_once")

CASES = [
    ("cosmos3-nano", {}),
    ("flux.1-dev", {"gpus": 2, "hardware": "rtx-4090"}),  # nothing fits
    ("llama-3.1-8b", {"gpus": 2}),
    ("flux.1-schnell", {"gpus": 1, "height": 512, "width": 512, "batch": 4}),
]
cases = pytest.mark.parametrize(("model", "more"), CASES, ids=[name for name, _ in CASES])


def shown(model, more, width=118, rejected=False):
    answer = recommended(model, **more)
    return terminal(report.recommendation(answer, top=5, rejected=rejected), width), answer


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_number_is_broken_on_a_narrow_terminal(width):
    """Columns are left out from the right instead, never the plans."""
    answer = recommended("llama-3.1-8b", gpus=2, concurrency=64)
    table = answer.table()
    lines = table.text(width).splitlines()
    words = {word for row in (table.head, *table.rows) for cell in row for word in cell.split()}

    assert max(map(len, lines)) <= width
    drawn = {word for line in lines[1:] for word in line.split() if "…" not in word}
    assert drawn <= words
    assert {str(estimate.plan) for estimate in answer.runnable} <= drawn


@cases
def test_every_plan_and_every_sentence_is_printed(model, more):
    text, answer = shown(model, more, width=400)

    for number, one in enumerate(answer.runnable[:5], 1):
        assert re.search(rf"^{number} +{re.escape(str(one.plan))} ", text, re.MULTILINE)
    for said in answer.advice:
        assert f"- {said}" in text


@cases
def test_the_first_screen_says_what_to_run_and_what_each_engine_takes(model, more):
    text, answer = shown(model, more, width=400)
    able = [run for run in answer.runs if run.estimate]

    for one in able if len(answer.runs) > 1 else []:
        row = rf"^{one.title} .* {re.escape(str(one.estimate.plan))} +.*"
        row += re.escape(format_seconds(one.estimate.latency_s))
        assert re.search(row, text, re.MULTILINE)
    if able:
        lines = text.splitlines()
        first = next(n for n, line in enumerate(lines) if line.startswith("Run "))
        assert lines[first].startswith(f"Run {answer.lead.plan} with {able[0].title}")
        assert lines[first + 1].strip() == able[0].launch.line
        assert text.count(able[0].launch.line) == 1
    for one in answer.runs[len(able) :]:
        assert re.search(rf"^.*{one.title}.*: {re.escape(one.reason)}$", text, re.MULTILINE)


def test_plans_that_cannot_be_run_stand_below_with_their_reasons():
    text, answer = shown("cosmos3-nano", {"runtime": "tensorrt"}, width=400)
    barred = {str(mark.plan) for mark in answer.refusals}

    assert barred
    assert not barred & set(re.findall(r"^\d+ +(\S+) ", text, re.MULTILINE))
    assert "! not with" not in text  # none of them would be faster
    faster, _ = shown("hunyuanvideo", {"gpus": 16, "runtime": "tensorrt"}, width=400)
    assert re.search(r"! not with TensorRT: ring2.ulysses8 \(\S+ s\), ", faster)


@cases
@pytest.mark.parametrize("width", [60, 80, 118, 200])
def test_nothing_is_wider_than_the_terminal(model, more, width):
    text, _ = shown(model, more, width, rejected=True)

    assert max(len(line) for line in text.splitlines()) <= width
    assert not re.search(r"\bnan\b|\binf\b|None", text)
    assert not [line for line in text.splitlines() if line != line.rstrip()]


@cases
def test_the_headline_says_what_was_asked_and_what_was_taken_as_usual(model, more):
    scenario = asked(model, **more)
    line = report.headline(scenario)

    assert f"{scenario.request.gpus} x {scenario.request.hardware}" in line
    for name, tokens in scenario.workload.tokens:
        said = "tokens in" if name == "tokens" else f"{name} tokens"
        assert f"{tokens:,} {said}" in line
    assert line.endswith(f"{scenario.request.precision} · {scenario.deployment.runtime.name}")


def test_rejected_plans_have_reasons_when_asked_for():
    short, answer = shown("cosmos3-nano", {})
    full, _ = shown("cosmos3-nano", {}, width=400, rejected=True)

    count = len(answer.rejected) + len(answer.refusals)
    assert f"{count} plans rejected (--rejected shows why)" in short
    assert all(one.reason in full for one in answer.rejected)


@pytest.mark.parametrize(
    ("model", "engine"), [("cosmos3-nano", "diffusers"), ("flux.1-dev", "vllm-omni")]
)
def test_plans_of_axes_that_an_engine_has_not_are_among_the_rejected(model, engine):
    text, answer = shown(model, {"gpus": 4, "engine": engine}, width=400, rejected=True)
    title, below = answer.scenario.deployment.title, text.partition("rejected:\n")[2]

    assert answer.refusals
    for row in answer.refusals:
        assert re.search(
            rf"^  {row.plan} +not with {title}: {re.escape(row.reason)}", below, re.MULTILINE
        )


def test_an_estimate_has_a_bar_for_every_part():
    scenario, one = asked("cosmos3-nano"), priced("cosmos3-nano", "cfg2.ulysses4")
    text = terminal(report.estimate(scenario, one, []), 118)

    for name, seconds in one.breakdown_s.items():
        assert (WORDS[name] in text) == (seconds > 0)
    for name, size in one.memory_parts_bytes.items():
        assert (name.replace("_", " ") in text) == (size > 0)
    assert text.count("█") > len(one.breakdown_s)


@pytest.mark.parametrize(
    ("model", "plan"), [("cosmos3-nano", "cfg2.ulysses4"), ("llama-3.1-8b", "tp2")]
)
def test_a_document_names_parts_as_the_table_does(model, plan):
    scenario, one = asked(model), priced(model, plan)
    table = terminal(report.estimate(scenario, one, []), 200)
    document = in_document(report.estimate_page(scenario, one, []))

    assert "_" not in re.sub(r"allgather_kv", "", document)
    for name, size in one.memory_parts_bytes.items():
        assert f"| memory {worded(name)} | " in document
        assert not size or re.search(rf"^ +{worded(name)} ", table, re.MULTILINE)
    for name in one.stages_s:
        assert f"| stage {worded(name)} | " in document
        assert re.search(rf"^ +{worded(name)} ", table, re.MULTILINE)


def test_bars_are_as_long_as_their_parts():
    scenario, one = asked("cosmos3-nano"), priced("cosmos3-nano", "cfg2.ulysses4")
    text = terminal(report.estimate(scenario, one, []), 200)
    bars = {
        name: line.count("█")
        for name in one.stages_s
        for line in text.partition("time by part")[0].splitlines()
        if line.strip().startswith(f"{worded(name)} ")
    }

    longest = max(one.stages_s.values())
    assert max(bars.values()) == report.BAR
    for name, bar in bars.items():
        share = report.BAR * one.stages_s[name] / longest
        assert bar == pytest.approx(max(share, 1.0 if share else 0.0), abs=0.5)


@cases
def test_markdown_tables_are_tables(model, more):
    answer = recommended(model, **more)
    text = in_document(report.recommendation_page(answer, top=5))
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    able = [run for run in answer.runs if run.estimate]

    assert all(len({line.count("|") for line in rows}) == 1 for rows in tables)
    counts = [len(able), min(5, len(answer.runnable))] if able else []
    counts += [min(len(answer.frontier), 12)] if answer.frontier else []
    counts += [len(answer.lead.known)] if able else []
    assert [len(rows) - 2 for rows in tables] == counts
    assert all(f"- {said}" in text for said in answer.advice)


def test_an_estimate_in_markdown_has_every_part():
    scenario, one = asked("flux.1-dev"), priced("flux.1-dev", "ulysses8")
    lines = launch_lines(scenario, one.plan, one.placement)
    text = in_document(report.estimate_page(scenario, one, lines))

    assert all(f"| memory {worded(name)} |" in text for name in one.memory_parts_bytes)
    assert all(f"| stage {worded(name)} |" in text for name in one.stages_s)
    assert f"| {one.plan} |" in text
    assert all(f"{launch.engine}:" in text for launch in lines)
    assert all(f"```sh\n{launch.line}\n```" in text for launch in lines if launch.line)


@pytest.mark.parametrize("style", ["table", "markdown"])
@pytest.mark.parametrize(
    ("plan", "more", "said"),
    [
        ("ring4", (), "ring needs point-to-point messages"),
        ("ulysses4", (), "TensorRT: all-to-all needs NCCL 2.28 or newer"),
        ("allgather_kv4", ("--engine", "diffusers"), "has no allgather_kv axis: what it calls"),
        ("ring4", ("--runtime", "torch-compile"), ""),
    ],
)
def test_an_estimate_says_what_cannot_run_its_plan_and_what_to_watch(plan, more, said, style):
    words = ("--model", "flux.1-dev", "--gpus", "4", "--plan", plan, *more, "--format", style)
    text = " ".join(run("estimate", *words)[1].split())

    assert said in text
    assert ("! not with" in text) is (plan != "ulysses4" and bool(said))


def test_colours_are_for_terminals():
    plain, _ = shown("cosmos3-nano", {})
    scenario = asked("cosmos3-nano")
    coloured = terminal(report.estimate(scenario, priced("cosmos3-nano"), []), 80, colour=True)

    assert "\x1b[" not in plain
    assert "\x1b[" in coloured


@pytest.mark.parametrize("model", ["cosmos3-nano", "llama-3.1-8b"])
@pytest.mark.parametrize("width", [30, 80])
def test_a_line_to_type_is_whole_for_a_shell_however_it_is_broken(model, width):
    lines = [run.launch.line for run in recommended(model).runs if run.launch]
    lines.append("""run --with '{"a": "b c"}' --and "it's  here"  # then ask it""")

    for line in lines:
        broken = wrapped_command(line, width)
        words = shlex.split(broken.replace(" \\\n", " "), comments=True)
        long = [part for part in broken.splitlines() if len(part) > width]
        assert words == shlex.split(line, comments=True)
        assert all(" " not in part.removesuffix(" \\").strip("# ") or "'" in part for part in long)


def unlinked():
    """Models of the catalogue whose weights no engine has a repository for."""
    return [name for name in names() if name not in repositories().values()]


@pytest.mark.parametrize("name", [*unlinked(), "FLUX"])
def test_models_without_a_repository_are_shown_as_well(name, tmp_path):
    """A config.json has none either."""
    if name == "FLUX":
        name = str(tmp_path / "config.json")
        Path(name).write_text(json.dumps(FLUX), encoding="utf-8")
    for style in ("table", "json", "markdown"):
        code, out, err = run("recommend", "--model", name, "--gpus", "2", "--format", style)
        assert code in (0, 1)
        assert not err
        assert not re.search(r"\bNone\b|\bnan\b", out)
        assert out.strip()


@pytest.mark.parametrize("style", ["table", "json", "markdown"])
def test_what_is_left_out_of_many_gpus_is_printed(style):
    _, out, _ = run("recommend", "--model", "llama-3.1-8b", "--gpus", "72", "--format", style)

    assert "rings of more than 32 are left out" in " ".join(out.split())


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        ("llama-3.1-8b", {"gpus": 2}, "2,048 tokens in, 128 out, both assumed ·"),
        ("llama-3.1-8b", {"gpus": 2, "input_tokens": 512}, "512 tokens in, 128 out assumed ·"),
        ("llama-3.1-8b", {"gpus": 2, "output_tokens": 9}, "2,048 tokens in assumed, 9 out ·"),
        ("llama-3.1-8b", {"gpus": 2, "input_tokens": 512, "output_tokens": 9}, " in, 9 out ·"),
        ("flux.1-dev", {"gpus": 16, "nodes": 2}, "16 x h100-sxm on 2 hosts over infiniband"),
        ("flux.1-dev", {"gpus": 8, "hardware": "gb200"}, "8 x gb200 on 2 hosts over NVLink"),
        ("flux.1-dev", {"gpus": 8}, "8 x h100-sxm ·"),
    ],
)
def test_the_headline_names_hosts_and_tokens(model, more, said):
    assert said in report.headline(asked(model, **more))


@pytest.mark.parametrize(
    ("objective", "column"), [("throughput", "results/s"), ("cost", "GPU-s per result")]
)
def test_what_plans_are_ranked_by_has_a_column(objective, column):
    more = {"gpus": 4, "objective": objective, "at_most_gpus": True}
    text, answer = shown("flux.1-dev", more, width=400)
    header = re.search(r"^# .*$", text, re.MULTILINE)[0]

    assert column in header
    assert "GPUs" in header
    document = in_document(report.recommendation_page(answer, top=5))
    assert f"| # | plan | GPUs | {column} | latency |" in document
    assert f"| 1 | {answer.plans[0].plan} | {answer.plans[0].gpus} | " in document


def test_a_speed_up_over_a_gpu_without_room_says_so():
    text, _ = shown("cosmos3-super", {"gpus": 8}, width=400)
    assert re.search(r"over one GPU, [\d.]+ s, had it the 13\d GiB", text)

    text, _ = shown("flux.1-dev", {"gpus": 8}, width=400)
    assert "had it the" not in text


def test_an_engine_says_how_much_faster_it_is_compiled():
    text, answer = shown("flux.1-dev", {"gpus": 4, "engine": "xdit"}, width=400)
    compiled, eager = (run.estimate for run in answer.runs)

    assert (compiled.runtime, eager.runtime) == ("torch-compile", "torch-eager")
    assert answer.lead.plan == compiled.plan
    gain = eager.latency_s / compiled.latency_s
    assert gain > 2
    assert f"{gain:.2f}x" in text
    assert "over eager" in text


def test_a_version_is_compared_with_eager_code_of_its_own():
    engines = ("--engine", "xdit@0.4.5,xdit")
    _, text, _ = run("recommend", "--model", "flux.1-dev", "--gpus", "4", *engines)

    assert len(re.findall(r"^xDiT .* torch-eager", text, re.MULTILINE)) == 2
    assert not re.search(r"torch-eager .*\dx$", text, re.MULTILINE)
    assert len(re.findall(r"torch-compile .* \d\.\d\dx$", text, re.MULTILINE)) == 2


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        ("hunyuanvideo", {}, "writes networks that time the transformer and make no videos"),
        ("flux.1-dev", {}, "makes pictures by `python -m runner generate`"),
        ("wan2.1-1.3b", {}, "makes videos by `python -m runner generate`"),
        ("wan2.1-1.3b", {"gpus": 16, "nodes": 2}, "computes the transformer, and makes no videos"),
        ("cosmos3-nano", {}, "makes videos by `python -m runner generate`"),
        ("wan2.2-a14b", {}, "makes videos by `python -m runner generate`"),
        ("llama-3.1-8b", {}, "makes text by `python -m runner generate`"),
    ],
)
def test_what_an_export_makes_is_said_by_model(model, more, said):
    text, answer = shown(model, {"gpus": 2, "engine": "planner", **more}, width=400)

    assert f"planner export {said}" in text
    assert "; nobody has run that on GPUs yet\n" in text
    assert said in in_document(report.recommendation(answer, top=5))


def test_beside_an_export_the_fastest_engine_s_line_stands_once():
    text, answer = shown("flux.1-dev", {"gpus": 4, "hardware": "l40s"}, width=400)
    first, other = answer.runs[:2]

    assert (first.title, other.title) == ("TensorRT", "xDiT")
    _, one, _, line, said, instead = text.split("\n\n")[1].splitlines()
    assert one.strip() == first.launch.line.replace("dp4", "single")
    assert line.strip() == first.launch.line
    assert f"{other.estimate.plan} with xDiT (torch-compile): " in said
    assert text.count(other.launch.command) == 1
    assert instead.strip().startswith(other.launch.command)


def test_an_engine_that_makes_the_result_leads_where_what_makes_none_is_as_fast():
    text, answer = shown("hunyuanvideo-1.5", {"gpus": 8, "hardware": "h20"}, width=400)
    first, other = answer.runs[:2]

    assert (first.title, other.title) == ("vLLM-Omni", "TensorRT")
    assert answer.scenario.deployment.title == first.title
    assert 0 < first.estimate.latency_s / other.estimate.latency_s - 1 < PAIR_HALF_WIDTH
    said = f"\ntoo close to call: {other.estimate.plan} with TensorRT: "
    assert said in text
    assert "make no videos" in text.split(said)[1].splitlines()[0]


def test_what_would_fit_has_the_line_of_the_fastest_engine_too():
    text, answer = shown("flux.1-dev", {"gpus": 1, "hardware": "rtx-4090"}, width=400)

    assert answer.alternatives
    for alternative in answer.alternatives:
        exported, other = alternative.runs[:2]
        assert f"    {exported.launch.line}\n    {other.launch.line}\n" in text


def test_of_engines_nothing_is_said_of_exports():
    text, _ = shown("flux.1-dev", {"gpus": 2, "engine": "xdit"}, width=400)

    assert "nobody has run" not in text


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        ("llama-3.1-8b", {"input_tokens": 200_000}, "the context of llama-3.1-8b is 131,072"),
        ("wan2.1-1.3b", {"frames": 80}, "takes 4 n + 1; priced as 77, and some engines make 81"),
    ],
)
def test_sizes_that_a_model_does_not_take_are_said_above_all_plans_and_once(model, more, said):
    text, _ = shown(model, {"gpus": 2, **more}, width=400)
    assert text.count(said) == 1
    assert text.index(said) < text.index("Run ")


def test_the_first_line_of_a_language_model_says_of_what_load_its_numbers_are():
    text, answer = shown("llama-3.1-8b", {"gpus": 2}, width=400)
    together = answer.lead.serving.concurrency
    assert f" for a request by itself, {format_bytes(answer.lead.memory_bytes)} a GPU" in text
    assert f"a GPU with {together:.0f} at once\n" in text


def test_an_engine_of_one_gpu_says_so_in_no_name_of_an_axis():
    text, _ = shown("flux.1-dev", {"gpus": 4}, width=400)
    assert "own repository: has no axis that spreads it over 4 GPUs" in text


def test_reasons_that_differ_in_a_number_count_together():
    text, _ = shown("hunyuanvideo", {"gpus": 16, "nodes": 2, "engine": "sglang"}, width=400)
    assert "SGLang Diffusion: 33 latent frames do not divide by 16" in text


def test_half_widths_have_no_powers_of_ten():
    text, _ = shown("wan2.1-14b", {"gpus": 1, "hardware": "a100-sxm-80gb"}, width=400)

    assert re.search(r"\d,\d{3} s ± \d{2,3} ", text)


@pytest.mark.parametrize(
    ("model", "plan"), [("flux.1-dev", "single"), ("wan2.1-1.3b", "cfg2"), ("llama-3.1-8b", "tp2")]
)
def test_the_parts_of_memory_add_up_without_the_one_that_is_not_there(model, plan):
    one = priced(model, plan)
    parts = one.memory_parts_bytes

    left_out = parts.get(one.memory_apart, 0.0)
    assert one.memory_bytes == pytest.approx(sum(parts.values()) - left_out)


def test_where_fewer_gpus_may_do_every_number_has_a_row():
    text, answer = shown("cosmos3-nano", {"gpus": 8, "at_most_gpus": True}, width=400)

    bars = []
    for one in answer.scaling:
        found = re.search(
            rf"^ +{one.gpus} +\S+ s +\S+ +{re.escape(str(one.plan))} +(█+)$", text, re.MULTILINE
        )
        bars.append(len(found[1]))
    assert bars == sorted(bars, reverse=True)
    assert bars[0] == report.BAR
    assert "best plan of each" not in shown("cosmos3-nano", {"gpus": 8})[0]
