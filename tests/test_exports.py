"""What `import planner` offers is what users were promised, and every module loads."""

import importlib
import inspect
import pkgutil

import pytest

import planner

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


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'planner' has no attribute 'simulte'"):
        _ = planner.simulte


@pytest.mark.parametrize("name", sorted(every_module()))
def test_modules_load_without_a_gpu(name):
    module = importlib.import_module(name)

    exported = getattr(module, "__all__", [])
    assert list(exported) == sorted(exported, key=lambda one: (one.upper() != one, one))
    assert all(hasattr(module, one) for one in exported)


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
