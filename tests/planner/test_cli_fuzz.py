"""Whatever is typed, and whatever is in a file, is an answer or one line."""

import json

from commands import COMMANDS, FLUX, LLAMA, assert_refused, run
from generators import nonsense
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

small = st.one_of(nonsense, st.sampled_from(["1", "2", "8", "flux", "h100-sxm", "tp2", "json"]))
OPTIONS = """
--model --gpus --hardware --nodes --height --width --frames --steps --batch --input-tokens
--output-tokens --text-tokens --precision --runtime --text-tower --algorithm --offload --objective
--at-most-gpus --top --rejected --plan --op --bytes --launch --format --help --pcie-generation
--topology --detect --attention --compare
"""
options = st.sampled_from(OPTIONS.split())


@given(
    command=st.sampled_from([*COMMANDS.values(), ("recommend",), ("models", "show"), ()]),
    words=st.lists(st.one_of(st.tuples(options, small), st.tuples(small)), max_size=3),
)
@settings(max_examples=100)
def test_any_words_are_an_answer_or_one_line(command, words):
    typed = [word for pair in words for word in pair]
    if any(word.isdecimal() and 64 < int(word) <= 4096 for word in typed):
        return  # thousands of GPUs have thousands of plans
    code, out, err = run(*command, *typed)

    assert code in (0, 1, 2)
    if code == 2:
        assert_refused(code, out, err)
    else:
        assert err == ""


@given(
    base=st.sampled_from([LLAMA, FLUX]),
    key=st.sampled_from(sorted({*LLAMA, *FLUX})),
    value=st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 300),
        st.integers(-(10**12), 10**12),
        st.floats(),
        st.text(max_size=5),
        st.lists(st.integers(), max_size=2),
        st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    ),
    gpus=st.sampled_from([1, 2]),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_config_is_an_answer_or_one_line(tmp_path, base, key, value, gpus):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**base, key: value}))
    code, out, err = run("recommend", "--model", str(path), "--gpus", str(gpus), "--format", "json")

    assert code in (0, 1, 2)
    if code == 2:
        assert_refused(code, out, err)
    else:
        assert "NaN" not in out
        assert json.loads(out)["request"]["gpus"] == gpus
