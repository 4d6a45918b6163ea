"""Every reader of what people write gives a value or one line, whatever is done to its text.

`FUZZ=1000 pytest tests/fuzz` takes a thousand times as many examples.
"""

import json
import os
from functools import partial
from pathlib import Path

import pytest
import testpastes as pastes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodels.profile import load_profile
from planner.export.scales import read_scales
from planner.fleet.demand_file import read_demands, read_prices
from planner.models import read_model
from planner.request.lengths import read_requests
from planner.request.request import Request
from topology.base import InputError
from topology.catalogue import find_hardware
from topology.readers import read_topology
from validate.fit.rows import line, read_csv, read_rows
from validate.nccl_tests.log import read_log
from validate.plans.measured import read_measured

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "validate/data/2026-11-28-h200-sxm-x2"
FEW = 8


def text_of(path):
    return (ROOT / path).read_text("utf-8")


def requests_of(path, field):
    return read_requests(Request(model="llama-3.1-8b", gpus=1, **{field: path}))


ROWS = "".join((MEASURED / "rows.csv").read_text("utf-8").splitlines(keepends=True)[:9])
RESULTS = (MEASURED / "plans.jsonl").read_text("utf-8").split("\n")[0] + "\n"
MACHINE = json.dumps(read_topology(pastes.DEGRADED).to_dict())
SCALES = json.dumps({"schema": "1", "model": "m", "largest": {"a": 1.5, "b": 2.5}})
TEXTS = {
    "demands": (partial(read_demands, name="d", profile=""), text_of("examples/demand.toml")),
    "prices": (partial(read_prices, name="p"), text_of("examples/prices.toml")),
    "cluster": (read_topology, text_of("examples/cluster.toml")),
    "machine": (read_topology, MACHINE),
    "model": (read_model, text_of("examples/my_model.json")),
    "profile": (load_profile, text_of("costmodels/data/profiles/h100-sxm.toml")),
    "results": (read_measured, RESULTS),
    "rows": (read_csv, ROWS),
    "lines": (read_rows, "".join(f"{line(row)}\n" for row in read_csv(ROWS))),
    "log": (read_log, text_of("examples/all_reduce.log")),
}
HISTOGRAM = "input_tokens,output_tokens,share\n128,256,0.3\n1024,12,0.5\n"
TRACE = "arrival_s,input_tokens,output_tokens\n0.0,128,256\n0.5,1024,12\n"
FILES = {
    "hardware": (find_hardware, text_of("examples/my_gpu.toml"), ".toml"),
    "lengths": (partial(requests_of, field="lengths"), HISTOGRAM, ".csv"),
    "arrivals": (partial(requests_of, field="arrivals"), TRACE, ".csv"),
    "scales": (partial(read_scales, model="m"), SCALES, ".json"),
}
ODD = st.sampled_from(
    ["-1", "1e9", "1" * 400, "nan", "null", "{}", "[]", '"', "\n", "\x1b[2J", "_", "٣", "\x00", ""]
)


@st.composite
def damaged(draw, text):
    """A text with pieces cut out, put in or repeated."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        end = at + draw(st.integers(0, 30))
        text = text[:at] + draw(ODD | st.just(text[at:end] * 2)) + text[end:]
    return text


def reads_or_refuses(reader, text):
    try:
        reader(text)
    except InputError as error:
        return "\n" not in str(error) and "\x1b" not in str(error)
    return True


FUZZ = settings(
    max_examples=FEW * int(os.environ.get("FUZZ", "1")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def test_undamaged_texts_are_read(tmp_path):
    read = {name: reader(text) for name, (reader, text) in TEXTS.items()}
    for name, (reader, text, ending) in FILES.items():
        path = tmp_path / f"x{ending}"
        path.write_text(text, "utf-8")
        read[name] = reader(str(path))

    assert [name for name, value in read.items() if not value] == []


@pytest.mark.parametrize("name", TEXTS)
@FUZZ
@given(data=st.data())
def test_any_text_is_read_or_refused(name, data):
    reader, text = TEXTS[name]
    assert reads_or_refuses(reader, data.draw(damaged(text)))


@pytest.mark.parametrize("name", FILES)
@FUZZ
@given(data=st.data())
def test_any_file_is_read_or_refused(name, data, tmp_path):
    reader, text, ending = FILES[name]
    path = tmp_path / f"x{ending}"
    path.write_text(data.draw(damaged(text)), "utf-8", errors="replace")
    assert reads_or_refuses(reader, str(path))
