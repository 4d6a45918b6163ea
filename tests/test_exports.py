"""What `import planner` offers is what users were promised, and every module loads."""

import dataclasses
import importlib
import importlib.resources
import importlib.util
import inspect
import pkgutil
import re
import sys
from xml.etree import ElementTree as ET

import pytest

import planner
from planner.api import Options
from planner.request.request import Request

pytestmark = pytest.mark.usefixtures("asked_once")

PROMISED = {
    "InputError",
    "attention",
    "collective",
    "estimate",
    "matmul",
    "read_model",
    "read_topology",
    "recommend",
}
PACKAGES = ("topology", "costmodels", "planner", "validate")
ON_GPUS = ("validate.bench", "validate.torch")


def every_module():
    for package in map(importlib.import_module, PACKAGES):
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith(ON_GPUS) and not found.name.endswith("__main__"):
                yield found.name


def test_the_promised_names_are_there():
    assert set(planner.__all__) >= PROMISED
    assert all(callable(getattr(planner, name)) for name in planner.__all__)
    assert issubclass(planner.InputError, ValueError)


def test_the_module_shows_its_public_names():
    assert dir(planner) == sorted(planner.__all__)


FUNCTIONS = sorted(set(planner.__all__) - {"InputError"})
LATER = ("capacity", "experts", "serve", "sweep")


@pytest.mark.parametrize("name", [*FUNCTIONS, *LATER])
def test_no_module_takes_the_name_of_a_public_function(name):
    """Importing the module would put it in the place of the function."""
    assert importlib.util.find_spec(f"planner.{name}") is None


@pytest.mark.parametrize("name", ["estimate", "recommend", "simulate"])
def test_keywords_of_a_request_are_written_out(name):
    parameters = inspect.signature(getattr(planner, name)).parameters
    fields = {field.name: field for field in dataclasses.fields(Request)}

    assert set(parameters) >= set(fields)
    for key in set(fields) - {"model", "gpus"}:
        assert parameters[key].default == fields[key].default
        assert parameters[key].annotation is not inspect.Parameter.empty
    assert set(Options.__annotations__) == set(fields) - {"model", "gpus"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_misspelled_keyword_is_answered_with_the_nearest(name):
    function = getattr(planner, name)
    keyword = [*inspect.signature(function).parameters][-1]
    misspelled = f"{keyword[:-1]}_"

    with pytest.raises(planner.InputError, match=f"'{misspelled}': did you mean .*{keyword}"):
        function(**{misspelled: 1})


@pytest.mark.parametrize("package", PACKAGES)
def test_types_are_for_users_too(package):
    assert importlib.resources.files(package).joinpath("py.typed").is_file()


QUICKLY = ("--follow-imports=silent", "--no-site-packages")  # types of numpy take most of the time


def test_a_misspelled_keyword_is_an_error_of_types(tmp_path):
    mypy = pytest.importorskip("mypy.api")
    script = tmp_path / "script.py"
    script.write_text(
        "import planner\n"
        "plan = planner.estimate(planner.read_model('flux'), gpus=2, plan='tp2', height=512)\n"
        "seconds: float = plan.latency_s\n"
        "planner.recommend('flux', gpus=2, hardwear='b200')\n"
        "planner.matmul(8, 8, 8, precison='bf16')\n"
    )
    cache = str(tmp_path / "cache")
    out, _, _ = mypy.run([*QUICKLY, "--cache-dir", cache, str(script)])
    errors = [line for line in out.splitlines() if "error" in line and "script.py" in line]

    assert [re.search(r":(\d+):", line)[1] for line in errors] == ["4", "5"], out


RESULTS = (
    "planner.estimate('flux', gpus=2, plan='ulysses2')",
    "planner.recommend('flux', gpus=2)",
    "planner.simulate('flux', gpus=2, plan='ulysses2')",
    "planner.capacity(model='flux', rate='1/s', slo='20s')",
    "planner.read_model('mixtral-8x7b')",
    "planner.read_topology('GPU0 GPU1\\nGPU0 X NV4\\nGPU1 NV4 X\\n')",
)


@pytest.mark.parametrize("call", RESULTS)
def test_a_result_is_a_line_in_a_terminal_and_a_table_in_a_notebook(call):
    result = eval(call)

    assert len(repr(result)) < 100
    assert repr(result).startswith(f"<{type(result).__name__}")
    drawn = ET.fromstring(f"<div>{result._repr_html_()}</div>")
    tags = {part.tag.rpartition("}")[2] for part in drawn.iter()}
    assert not tags & {"script", "link", "img", "iframe"}
    assert ("svg" in tags) == ("read_" not in call)
    assert len(drawn.findall(".//tr")) > 1


@pytest.mark.parametrize("call", RESULTS[:4])
def test_a_result_is_a_frame_of_whichever_package_is_there(call, monkeypatch):
    result = eval(call)
    columns = result.rows()[0].keys()
    for package in ("pandas", "polars"):
        pytest.importorskip(package)
        frame = result.to_frame()
        assert type(frame).__module__.startswith(package)
        assert list(frame.columns) == list(columns)
        assert len(frame) == len(result.rows())
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(planner.InputError, match="got neither pandas nor polars"):
        result.to_frame()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'planner' has no attribute 'simulte'"):
        _ = planner.simulte


def test_modules_load_without_a_gpu():
    for name in sorted(every_module()):
        module = importlib.import_module(name)

        exported = getattr(module, "__all__", [])
        assert list(exported) == sorted(exported, key=lambda one: (one.upper() != one, one)), name
        assert all(hasattr(module, one) for one in exported), name


@pytest.mark.parametrize(
    ("name", "arguments", "defaults"),
    [
        ("estimate", ["model", "gpus", "plan"], {"plan": None}),
        ("recommend", ["model", "gpus"], {}),
        (
            "collective",
            ["op", "message_bytes", "gpus", "hardware", "nodes", "algorithm", "launch"],
            {"nodes": 1, "algorithm": "auto", "launch": "graph"},
        ),
        ("matmul", ["m", "n", "k", "hardware", "precision"], {"precision": "bf16"}),
        (
            "attention",
            ["heads", "queries", "keys", "head_dim", "hardware", "batch", "kv_heads", "causal"],
            {"batch": 1, "kv_heads": None, "causal": False, "precision": "bf16"},
        ),
    ],
)
def test_signatures_are_as_written(name, arguments, defaults):
    parameters = inspect.signature(getattr(planner, name)).parameters

    assert list(parameters)[: len(arguments)] == arguments
    assert {key: parameters[key].default for key in defaults} == defaults
