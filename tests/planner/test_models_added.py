"""A class of model is one file, and so is a model of the catalogue."""

import json
import sys

import pytest

import planner
from planner.models import catalogue, readers
from topology.base import InputError

READER = '''
from planner.models import Block, Stream
from planner.models.readers import parts

CLASSES = ("MineTransformer2DModel",)


def read(fields):
    """Read layers that attend to prompt and image together."""
    heads = parts.heads_of(fields, query=16, size=64)
    streams = ("text", "image")
    towers = parts.joint_towers(streams, heads=heads, width=4 * heads.query_width)
    layers = parts.layers_of(fields, default=4)
    return parts.assemble(
        fields,
        "mine",
        usual="flux.1-schnell",
        blocks=(Block(name="joint", count=layers, towers=towers),),
        streams=(parts.text_stream(64), Stream(name="image")),
        grid=parts.packed_grid(fields, inputs=64),
        outer=0,
    )
'''
CONFIG = {"_class_name": "MineTransformer2DModel", "num_layers": 6}


@pytest.fixture
def added(monkeypatch, tmp_path):
    """Put a reader into a folder beside the readers that ship."""
    (tmp_path / "mine.py").write_text(READER)
    monkeypatch.setattr(readers, "__path__", [*readers.__path__, str(tmp_path)])
    yield json.dumps(CONFIG)
    sys.modules.pop("planner.models.readers.mine", None)


def test_a_class_of_model_is_added_by_one_file(added):
    model = planner.read_model(added)

    assert (model.family, model.layers, model.main.hidden) == ("mine", 6, 1024)
    assert model.vae is not None
    assert "as of flux.1-schnell" in model.assumed[-1]


def test_a_model_of_an_added_class_is_planned(added, tmp_path):
    (tmp_path / "config.json").write_text(added)

    plans = planner.recommend(str(tmp_path / "config.json"), gpus=4).to_dict()["plans"]

    assert {"ulysses4", "tp4"} <= {plan["plan"] for plan in plans}
    assert all(plan["latency_s"] > 0 for plan in plans)


def test_without_the_file_the_class_is_unknown():
    with pytest.raises(InputError, match="unknown _class_name"):
        planner.read_model(json.dumps(CONFIG))


def test_no_reader_is_imported_but_the_one_that_is_named(monkeypatch):
    shipped = [name for name in sys.modules if name.startswith("planner.models.readers.")]
    for name in shipped:
        monkeypatch.delitem(sys.modules, name)
    catalogue.catalogued.cache_clear()

    planner.read_model("mochi-1")

    loaded = {name for name in sys.modules if name.startswith("planner.models.readers.")}
    names = {name.rpartition(".")[2] for name in loaded}
    assert "mochi" in names
    assert not {"flux", "wan", "decoder"} & names
