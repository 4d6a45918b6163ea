"""Whatever a program passes, and however a command is typed, is an answer or one short line."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from commands import ROOT, assert_refused, run
from growth import calls

import planner
from topology.base import InputError, one_line

HUGE = 10**5000
MASKED = np.ma.array([1, 2], mask=[0, 1])


class Mute:
    def __repr__(self):
        raise RuntimeError

    __float__ = __repr__


VALUES = [
    HUGE, -HUGE, np.array(["a", "b"]), np.array([1, 2]), np.array([]), MASKED,
    np.array([True, False]), True, None, b"8", "a\nb\x1b[31m", "x" * 5000, [[1, 2], [3]], 1j,
    Mute(), object(), "\ud800", 2**70, float("nan"), range(10**12), [], np.int64(2),
]  # fmt: skip
CALLS = {
    "recommend": planner.recommend,
    "read_model": planner.read_model,
    "read_topology": planner.read_topology,
    "plan": lambda value: planner.estimate("flux", 1, value),
    "gpus": lambda value: planner.estimate("flux", value),
}
CALLS |= {
    name: lambda value, name=name: planner.estimate("flux", **{name: value})
    for name in (
        "precision", "objective", "text_tower", "topology", "detect", "hardware", "runtime",
        "algorithm", "attention", "profile", "height", "batch",
    )
    }  # fmt: skip
CALLS |= {
    f"collective {name}": lambda value, name=name: planner.collective(
        **{"op": "all_reduce", "message_bytes": 1024, "gpus": 2, name: value}
    )
    for name in ("op", "message_bytes", "gpus", "hardware", "algorithm", "launch", "topology")
}
CALLS |= {
    f"matmul {name}": lambda value, name=name: planner.matmul(
        **{"m": 8, "n": 8, "k": 8, name: value}
    )
    for name in ("m", "hardware", "precision", "profile")
}
CALLS |= {
    f"attention {name}": lambda value, name=name: planner.attention(
        **{"heads": 8, "queries": 8, "keys": 8, "head_dim": 64, name: value}
    )
    for name in ("heads", "kv_heads", "batch", "causal", "kernel")
}
CALLS |= {
    f"{call.__name__} {name}": lambda value, call=call, name=name, usual=usual: call(
        **{**usual, name: value}
    )
    for call, usual, names in (
        (planner.sweep, {"models": "flux", "gpus": 1},
         ("models", "hardware", "gpus", "plan", "steps", "executor", "scheduler", "disaggregate")),
        (planner.capacity, {"model": "flux", "rate": "1/min", "slo": "60s"},
         ("demand", "model", "rate", "slo", "price", "percentile")),
        (planner.experts,
         {"tokens": 8, "hidden": 64, "intermediate": 64, "experts": 8, "top_k": 2},
         ("tokens", "tp", "ep", "distribution", "gated", "sustained")),
        (planner.dispatch,
         {"tokens": 8, "hidden": 64, "experts": 8, "top_k": 2, "gpus": 8},
         ("gpus", "hardware", "way", "precision", "distribution", "topology")),
        (planner.attention, {"heads": 8, "queries": 8, "keys": 8, "head_dim": 64},
         ("kv_precision", "window", "sustained")),
        (planner.matmul, {"m": 8, "n": 8, "k": 8}, ("sustained",)),
        (planner.simulate, {"model": "flux", "gpus": 2, "plan": "tp2"}, ("runs",)),
    )
    for name in names
}  # fmt: skip


def refusal(call, value):
    """What is said of a value; nothing where there is an answer."""
    try:
        call(value)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_any_value_is_an_answer_or_one_line(call):
    for value in VALUES:
        said = refusal(call, value)
        assert said.isprintable()
        assert len(said) < 1500


@pytest.mark.parametrize("size", [1.5, np.array([1, 2.5]), MASKED])
def test_sizes_of_kernels_are_whole_numbers_and_all_there(size):
    calls = (
        lambda: planner.matmul(size, 8, 8),
        lambda: planner.attention(8, 8, size, 64),
        lambda: planner.attention(size, 8, 8, 64),
    )
    for call in calls:
        with pytest.raises(InputError, match=r"wanted (whole )?numbers"):
            call()


def test_a_range_is_not_read_before_it_is_counted():
    with pytest.raises(InputError, match="message_bytes: got 1,000,000,000,000 numbers, wanted at"):
        planner.collective("all_reduce", range(10**12), 2)


def test_arrays_are_refused_where_one_value_is_wanted():
    two = np.array([1, 2])
    load = {"concurrency": 4, "acceptance": two}
    fleet = {"model": "flux", "rate": "1/min", "slo": "60s", "spare": two}
    for call, said in (
        (lambda: planner.estimate("llama-3.1-8b", **load), "acceptance"),
        (lambda: planner.simulate("flux", 2, "ring2", order=two), "order"),
        (lambda: planner.capacity(**fleet), "spare"),
    ):
        with pytest.raises(InputError, match=rf"^{said}: got array\(\[1, 2\]\), wanted"):
            call()


def test_no_nodes_are_as_many_as_it_takes():
    assert planner.estimate("flux", nodes=None).to_dict() == planner.estimate("flux").to_dict()


def test_runs_may_be_a_number_of_numpy():
    runs = [planner.simulate("flux", 2, "tp2", jitter=0.01, runs=n) for n in (2, np.int64(2))]
    assert runs[0].to_dict() == runs[1].to_dict()


def test_a_mask_is_no_size_of_a_message():
    with pytest.raises(InputError, match="wanted numbers without a mask"):
        planner.collective("all_reduce", MASKED, 2)


@pytest.mark.parametrize("causal", ["8", 1, None, [True], np.array([True])])
def test_causal_is_true_or_false(causal):
    with pytest.raises(InputError, match=r"causal: got .*, wanted True or False"):
        planner.attention(8, 8, 8, 64, causal=causal)


def test_an_unknown_algorithm_is_refused_where_nothing_is_sent():
    with pytest.raises(InputError, match="unknown algorithm 'bogus'"):
        planner.estimate("flux", 1, algorithm="bogus")


@pytest.mark.parametrize(
    "text", ["a\nb", "a\r\n\tb", "\x1b[2J\x07", "\u202e\x85", "x" * 10**6, "x " * 10**5]
)
def test_a_message_is_one_short_line_however_often_it_is_cleaned(text):
    said = str(InputError(f"got {text}"))

    assert said.isprintable()
    assert len(said) < 1600
    assert one_line(said) == said


TYPED = [
    (("recomend", "--model", "flux"), "unknown command 'recomend': did you mean recommend?"),
    (("\x1b[31m" * 100,), "unknown command"),
    (("models", "list", "x"), "models list: got 'x', wanted no name"),
    (("topology", "list", "x"), "topology list: got 'x', wanted no name"),
    (("topology", "detect", "x"), "topology detect: got 'x', wanted no name"),
    (
        ("capacity", "--model", "flux", "--rate", "1e308/s", "--slo", "9s"),
        "rate: got 1e+308, wanted",
    ),
    (("estimate", "--model", "flux", "--algorithm", "bogus"), "unknown algorithm 'bogus'"),
    (("collectives", "--bytes", "17TiB"), "wanted a size from 1 B to 16 TiB"),
    (("collectives", "--bytes", "x" * 5000), "bytes: 'xxx"),
    (("collectives", "--compare", "\x1b[31m"), "--compare \\x1b[31m: No such file"),
    (("estimate", "--model", "flux", "--plan", "tp2." * 20_000 + "tp2"), "axis tp is named twice"),
]


@pytest.mark.parametrize(("words", "message"), TYPED, ids=range(len(TYPED)))
def test_what_is_typed_wrong_is_one_short_line_at_once(words, message):
    code, out, err = run(*words)

    assert_refused(code, out, err, message)
    assert err.strip().isprintable()
    assert len(err) < 500
    assert calls(lambda words: run(*words), words) < 1e6  # half a second's


@pytest.mark.parametrize("module", ["planner.command.cli", "argparse", "planner.models"])
def test_a_stop_while_it_is_loaded_is_silent(tmp_path, module):
    """It waits in the import of a module, says so, and is stopped there.

    What a shell runs in the background is told to ignore stops, and so are its children.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Wait:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.write(1, b'.')\n"
        "            time.sleep(600)\n"
        "sys.meta_path.insert(0, Wait())\n"
    )
    command = [sys.executable, "-m", "planner", "recommend", "--model", "cosmos3", "--gpus", "8"]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as started:  # fmt: skip
        assert started.stdout.read(1) == b"."
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=300)

    assert (started.returncode, out) == (130, b"")
    assert err in (b"", b"planner: interrupted\n")


def test_a_stop_while_code_is_made_is_exit_code_130(tmp_path):
    """Python remembers a stop within ``exec``, and ``python -m`` would die of it at the end."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'planner.command.cli':\n"
        "            exec('raise KeyboardInterrupt')\n"
        "sys.meta_path.insert(0, Stop())\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "planner", "models", "list"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, check=False,
    )  # fmt: skip

    assert (found.returncode, found.stdout, found.stderr) == (130, b"", b"")
