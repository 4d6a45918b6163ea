"""A prompt to a text by the runner: how ranks go on token by token, and what is asked for."""

import json
from argparse import Namespace
from dataclasses import replace
from types import SimpleNamespace

import decodermodel as model
import numpy as np
import pytest
from exportedfolders import as_built, started

from planner.export.export import files
from planner.export.files import write_folder
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.strategies import parse_plan
from planner.tensorrt import Recipe, buffer_size, written
from planner.tensorrt.runner import __main__ as command
from planner.tensorrt.runner import harness, texts
from planner.tensorrt.runner.place import buffers_of
from planner.tensorrt.runner.weights import drawn
from validate.tensorrt.numbers import Numbers, run_networks

PROMPT, ANSWER, ENDS = [5, 17, 2, 60], 8, 95


@pytest.fixture
def exported(tmp_path):
    """Exports a small model over ranks, its weights beside it; engines are said to be built."""

    def export(plan, output_tokens=ANSWER, config=model.CONFIG, prompts=(PROMPT,)):
        weights = tmp_path / "weights"
        weights.mkdir()
        model.save(weights, {**config, "eos_token_id": ENDS}, model.checkpoint(config))
        request = Request(
            model=str(weights), gpus=parse_plan(plan).gpus, input_tokens=6,
            output_tokens=output_tokens, batch=len(prompts),
        )  # fmt: skip
        folder = write_folder(files(request, plan, "tensorrt"), str(tmp_path / "out"))
        opened = as_built(folder, weights)
        harness.save(folder / "inputs", "prompt.tokens#0", texts.padded(prompts))
        return opened, request

    return export


def by_networks(opened, request, tokens):
    """Tokens of every rank by its networks in numpy, of drawn weights."""
    scenario, plan = resolve(request), parse_plan(opened.plan["plan"])
    recipe = Recipe(numerics=scenario.model.numerics)
    networks, order = written(scenario.model, scenario.workload, plan, recipe)
    order = {**order, "steps": tokens - 1}
    rows = harness.rows_given(opened.path / "inputs", "prompt.tokens")
    order["buffers"]["filled"]["start"] = rows.reshape(-1, 1, 1)
    embedding = harness.embedding_of(opened)
    every = [likeliest(embedding, tokens + 1) for _ in range(plan.gpus)]
    given = harness.given_from(opened.path / "inputs", embedding, "prompt.tokens")
    outputs = run_networks(networks, order, Numbers(weights=drawn(), given=given, follow=every))
    for one, output in zip(every, outputs, strict=True):
        one(output)
    return [np.transpose(one.chosen).tolist() for one in every]


def likeliest(embedding, most, ends=()):
    return texts.Likeliest(
        name="next.tokens", embedding=embedding, vocabulary=model.TOKENS, most=most, ends=ends
    )


@pytest.mark.parametrize(
    ("plan", "graph", "prompts"),
    [
        ("tp2", False, [PROMPT]),
        ("tp2", True, [PROMPT, PROMPT[:2], [*PROMPT, 9, 9]]),
        ("pp2", True, [PROMPT]),
        ("pp2.tp2", False, [PROMPT, PROMPT[1:]]),
    ],
)
def test_ranks_go_on_from_the_same_tokens_as_their_networks(exported, plan, graph, prompts):
    """Behind prompts shorter than the engines take; steps replayed as a graph too."""
    opened, request = exported(plan, prompts=prompts)
    tokens, text, jobs = ANSWER, texts.text_of(opened.plan), {}
    embedding = harness.embedding_of(opened)

    def talking(rank, job):
        given = harness.given_from(opened.path / "inputs", embedding, harness.counted(opened.plan))
        job = replace(job, given=given, starts=harness.starts_of(opened, rank))
        jobs[rank] = command._talking(opened, text, job, embedding, tokens)  # noqa: SLF001
        return jobs[rank]

    left = started(opened, graph=graph, change=talking)

    assert [len(one.seconds) for one in left.values()] == [tokens - 1] * parse_plan(plan).gpus
    found = [np.transpose(jobs[rank].follow.chosen).tolist() for rank in left]
    assert found == by_networks(opened, request, tokens)
    assert np.shape(found[0]) == (len(prompts), tokens)
    assert len({*found[0][0]}) > 2


def test_a_stage_of_a_pipeline_holds_the_cache_of_its_own_layers(exported):
    opened, _ = exported("pp2")
    plan = opened.plan

    first, second = (
        {name for name in buffers_of(plan, rank) if name.startswith("cache")} for rank in range(2)
    )

    assert {name.partition("@")[2] for name in first} == {"0"}
    assert {name.partition("@")[2] for name in second} == {"1"}
    assert len(first) == len(second) == 2
    assert "prompt.tokens" not in buffers_of(plan, 1)
    assert plan["buffer_bytes"] < sum(map(buffer_size, plan["buffers"].values()))


def test_a_text_ends_where_its_token_says_or_there_are_enough():
    scores = np.zeros((2, 1, 4), np.float32)
    on = texts.Likeliest(
        name="next.tokens", embedding=lambda name, tokens: (name, tokens), vocabulary=3, most=4,
        ends=[2],
    )  # fmt: skip

    def chosen(*tokens):
        scores[:] = 0
        scores[:, :, 3] = 9  # padding of the vocabulary
        scores[range(2), 0, tokens] = 1
        return on(scores)

    name, rows = chosen(0, 1)["next.tokens"]
    assert (name, rows.tolist()) == ("next.tokens", [[0], [1]])
    assert chosen(2, 1) is not None  # one of the texts has ended
    assert chosen(0, 2) is None
    assert [token.tolist() for token in on.chosen] == [[0, 1], [2, 1], [0, 2]]
    last = texts.Likeliest(name="", embedding=None, vocabulary=3, most=1)
    assert last(scores) is None


@pytest.fixture
def asked(exported, tmp_path, monkeypatch):
    """Runs ``generate`` with a tokenizer of letters, and ranks that leave the tokens given."""

    def generate(*words, left=(1, 2, ENDS, 3), plan="tp2", **more):
        opened, _ = exported(plan, **more)
        said = {}

        def ranks(argv, world, limit, environment):
            said["argv"] = argv
            for rank, own in enumerate([left] if np.ndim(left) == 1 else left):
                harness.save(opened.path / "results", f"tokens.rank{rank}", np.atleast_2d(own))

        tokenizer = SimpleNamespace(
            encode=lambda text: SimpleNamespace(ids=[ord(letter) - ord("a") for letter in text]),
            decode=lambda tokens: "".join(chr(ord("a") + token) for token in tokens),
        )
        package = SimpleNamespace(Tokenizer=SimpleNamespace(from_file=lambda path: tokenizer))
        monkeypatch.setattr(texts, "import_module", {"tokenizers": package}.__getitem__)
        monkeypatch.setattr(command, "start", ranks)
        code = command.main(["generate", *words, "--folder", str(opened.path)])
        path = opened.path / "inputs" / "prompt.tokens#0.npy"
        return code, said.get("argv", []), np.load(path).tolist()

    return generate


def test_a_prompt_is_gone_on_from_to_the_token_that_ends_it(asked, capsys):
    code, argv, prompt = asked("fox", "--tokens", "4", "--graph")

    assert code == 0
    assert prompt == [[5, 14, 23]]
    assert argv[2] == "run"
    assert argv[-3:] == ["--tokens", "4", "--graph"]
    assert capsys.readouterr().out == "bc\n"


def test_prompts_of_a_batch_are_gone_on_from_each(asked, capsys):
    """Two on each of two replicas; each text ends where its own token says."""
    left = [[[1, 2, ENDS], [3, ENDS, 4]], [[5, 5, 5], [6, 7, ENDS]]]
    words = ["fox", "a", "dog", "dogs", "--tokens", "3"]
    code, _, prompt = asked(*words, left=left, plan="dp2", prompts=[PROMPT] * 4)

    assert code == 0
    assert prompt == [[5, 14, 23, -1], [0, -1, -1, -1], [3, 14, 6, -1], [3, 14, 6, 18]]
    assert capsys.readouterr().out == "bc\nd\nfff\ngh\n"


def test_one_prompt_is_every_sample_s(asked):
    code, _, prompt = asked("fox", left=[[[1]], [[1]]], plan="dp2", prompts=[PROMPT] * 2)

    assert (code, prompt) == (0, [[5, 14, 23]] * 2)


def test_tokens_behind_the_end_of_a_prompt_are_refused(tmp_path):
    harness.save(tmp_path, "prompt.tokens#0", np.asarray([[3, -1, 4]]))

    with pytest.raises(texts.InputError, match="got tokens behind -1"):
        harness.rows_given(tmp_path, "prompt.tokens")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fox", "dog"], "prompt: got 2, wanted 1, or 1 as exported for (planner export --batch)"),
        (["foxfoxf"], "prompt: got 7 tokens, wanted 1 to 6, as engines were exported for"),
        ([""], "prompt: got 0 tokens, wanted 1 to 6"),
        (
            ["fox", "--tokens", "13"],
            "--tokens: got 13, wanted at most 12: the cache has room for 14",
        ),
        (["fox", "--tokens", "0"], "got 0, wanted a whole number of at least 1"),
        (["fox", "--tokens", "x"], "--tokens: got x, wanted a whole number of at least 1"),
        (["fox", "--negative", "dog"], "--negative: got it, wanted none: "),
        (["fox", "--output", "fox.txt"], "--output: got it, wanted none: "),
    ],
)
def test_what_a_text_cannot_be_made_of_is_one_line(asked, capsys, words, said):
    code, argv, _ = asked(*words)

    err = capsys.readouterr().err
    assert (code, argv, err.count("\n")) == (2, [], 1)
    assert said in err


def test_a_folder_for_a_prompt_alone_makes_no_text(asked, capsys):
    code, argv, _ = asked("fox", output_tokens=0)

    assert (code, argv) == (2, [])
    assert "for text behind it: planner export --output-tokens N" in capsys.readouterr().err


def test_a_model_for_timing_makes_no_text(asked, capsys):
    code, argv, _ = asked("fox", config={**model.CONFIG, "attention_bias": True})

    assert (code, argv) == (2, [])
    assert "networks for timing" in capsys.readouterr().err


def test_tokens_are_of_language_models_alone(exported, capsys):
    opened, _ = exported("single", output_tokens=0)

    code = command.main(["run", "--tokens", "3", "--folder", str(opened.path)])

    assert code == 2
    assert "makes no text" in capsys.readouterr().err


def test_a_tokenizer_that_is_missing_or_none_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "import_module", lambda name: __import__("no.such"))
    with pytest.raises(texts.MissingError, match="pip install 'tokenizers"):
        texts.tokenizer_in(str(tmp_path))

    def refused(path):
        raise Exception("No such file")  # noqa: TRY002  # as the package does

    package = SimpleNamespace(Tokenizer=SimpleNamespace(from_file=refused))
    monkeypatch.setattr(texts, "import_module", lambda name: package)
    with pytest.raises(texts.InputError, match=r"tokenizer\.json: no tokenizer: No such file"):
        texts.tokenizer_in(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "value", "ends"),
    [
        ("generation_config.json", [7, 9], [7, 9]),
        ("config.json", 7, [7]),
        ("config.json", None, []),
        ("other.json", 7, []),
    ],
)
def test_what_ends_a_text_is_read_from_the_checkpoint(tmp_path, name, value, ends):
    (tmp_path / name).write_text(json.dumps({"eos_token_id": value}))

    assert harness.ends_in(str(tmp_path)) == ends


@pytest.mark.parametrize("value", [3.5, "abc", {"a": 1}, [2, "a"], -1, True])
def test_what_ends_a_text_and_is_no_token_is_refused_ahead_of_the_ranks(asked, tmp_path, value):
    code, _, _ = asked("fox", "--tokens", "0")  # exports
    assert code == 2
    path = tmp_path / "weights" / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": value}))

    with pytest.raises(texts.InputError, match=r"eos_token_id .*, wanted a number of a token"):
        harness.ends_in(str(path.parent))
    assert command.main(["generate", "fox", "--folder", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out" / "results").exists()
