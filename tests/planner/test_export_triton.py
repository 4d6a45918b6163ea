"""A model repository for Triton in exported folders: where one is right, and read by its schema."""

import json
import os
import re
import subprocess
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from planner.export.files import write_folder
from planner.export.tensorrt import tensorrt_folder
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.evaluate import price
from planner.strategies import parse_plan
from validate.reference import shrink


def folder_of(model, text):
    plan = parse_plan(text)
    scenario = resolve(Request(model=model, gpus=plan.gpus))
    small, workload = shrink(scenario.model, scenario.workload, plan)
    little = replace(scenario, model=small, workload=workload)
    return tensorrt_folder(little, price(little, plan))


def test_weights_that_are_cut_are_an_engine_a_rank(tmp_path):
    folder = write_folder(folder_of("flux.1-dev", "tp2"), str(tmp_path / "out"))
    text = (folder / "triton" / "forward" / "config.pbtxt").read_text()
    document = json.loads((folder / "networks" / "forward.json").read_text())

    for value in document["inputs"]:
        dims = ", ".join(map(str, value["shape"]))
        kind = f"TYPE_{value['dtype'].upper()}"
        assert f'input [ {{ name: "{value["name"]}" data_type: {kind} dims: [ {dims} ] }} ]' in text
    told = dict(re.findall(r'key: "(\w+)" value: \{ string_value: "([^"]+)" \}', text))
    assert told == {
        "enable_multi_device": "true",
        "multi_device_gpus": "0,1",
        "multi_device_per_rank_engines": "true",
    }
    assert "tritonserver --model-repository triton" in (folder / "README.md").read_text()


def test_engines_are_found_where_triton_looks_for_them(tmp_path):
    folder = write_folder(folder_of("flux.1-dev", "tp2"), str(tmp_path / "out"))
    (folder / "engines").mkdir()
    for rank in range(2):
        (folder / "engines" / f"forward.rank{rank}.engine").write_text(str(rank))

    subprocess.run(["sh", "triton/place.sh"], cwd=folder, check=True)

    there = folder / "triton" / "forward" / "1"
    assert [(there / f"model.plan.rank{rank}").read_text() for rank in range(2)] == ["0", "1"]
    assert (there / "model.plan").read_text() == "0"


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("flux.1-dev", "ulysses2"),  # ranks read rows of their own
        ("cosmos3", "tp2"),  # and keys of their own heads
        ("wan2.1-1.3b", "cfg2.tp2"),  # two groups of ranks
        ("llama-3.1-8b", "tp2"),
        ("flux.1-dev", "single"),
    ],
)
def test_what_ranks_do_not_read_alike_is_not_served(model, text):
    files = folder_of(model, text)

    assert json.loads(files["plan.json"])["served"] == []
    assert not [name for name in files if name.startswith("triton/")]


@pytest.mark.skipif(find_spec("tritonclient") is None, reason="reads Triton's own schema")
def test_its_configuration_is_of_triton_s_schema():
    text_format = pytest.importorskip("google.protobuf.text_format")
    place = Path(os.fspath(next(iter(find_spec("tritonclient").submodule_search_locations))))
    spec = spec_from_file_location("model_config_pb2", place / "grpc" / "model_config_pb2.py")
    schema = module_from_spec(spec)
    spec.loader.exec_module(schema)

    text = folder_of("flux.1-dev", "tp4")["triton/forward/config.pbtxt"].decode()
    read = text_format.Parse(text, schema.ModelConfig())

    assert (read.backend, read.max_batch_size) == ("tensorrt", 0)
    (group,) = read.instance_group
    assert group.kind == schema.ModelInstanceGroup.KIND_MODEL
    assert read.parameters["multi_device_gpus"].string_value == "0,1,2,3"
    assert {one.data_type for one in read.input} <= {schema.TYPE_BF16, schema.TYPE_FP32}
