"""A profile with a typing error, or a number that no machine has, is refused where it is read."""

import json
import math
import re
import warnings

import pytest
from commands import ROOT, assert_refused, run

from costmodels.profile import UNIT_LIMITS, load_profile
from costmodels.tables import own_profile, read_profile
from topology.base import InputError
from validate.fit.report import examples
from validate.tables import own_profile_name

GOOD = (ROOT / "costmodels" / "data" / "profiles" / "h100-sxm.toml").read_text(encoding="utf-8")
ESCAPE = "\\u001b[2J\\n"

WRONG = [
    ("format = 1", "format = true", "format: got True, wanted 1"),
    ("format = 1", "format = 1.0", "format: got 1.0, wanted 1"),
    ('hardware = "h100-sxm"', 'hardware = ["h100-sxm"]', "hardware: got ['h100-sxm'], wanted a te"),
    ('hardware = "h100-sxm"', 'hardware = "../../no/x"', "unknown hardware '../../no/x'"),
    ('date = "2026-11-28"', 'date = "2026-99-99"', "date: got '2026-99-99', wanted 2026-11-27"),
    ('date = "2026-11-28"', 'date = "\u0662026-01-01"', "date: got"),
    ('gpus = "2"', 'gpus = "../../x"', "machine.gpus: got '../../x', wanted a whole number"),
    ('gpus = "2"', "gpus = [1, 2]", "machine.gpus: got [1, 2], wanted a text"),
    ('gpus = "2"', f'gpus = "{ESCAPE}"', "machine.gpus: got"),
    ("[launch]\nhost", "[launch]\nhots", "unknown key of launch 'hots': did you mean host"),
    ("communicator =", "communicators =", "unknown key of memory 'communicators'"),
    ("[runtimes.torch-eager]", "[runtimes.torch-eagr]", "unknown key of runtimes 'torch-eagr'"),
    ("gelu = {", "gello = {", "unknown key of runtimes.torch-eager.functions 'gello'"),
    ("traffic = 1.4, kernels", "traffic = 1.4, kernel", "did you mean kernels?"),
    ("traffic = 1.4", "traffic = 2000", "wanted positive ones up to 1000"),
    ("traffic = 1.4", "traffic = nan", ".traffic: 'nan' is not a quantity"),
    ("kernels = 2 }", "kernels = 2.5 }", "kernels: got 2.5, wanted a whole number from 1"),
    ("\nheld_out_rows", "\nheld_out_row", "did you mean held_out_rows"),
    ('worst_error = "', 'worst_errors = "', "unknown key of pointwise.fit 'worst_errors'"),
    ("rows = 36\nworst", "rows = -1\nworst", "fit.rows: got -1, wanted a whole number from 0"),
    ('"cycles@1"', '"cycles@9"', "unknown key of attention.cudnn.fit.standard_errors 'cycles@9'"),
    ('"cycles@1"', '"cycle@1"', "did you mean cycles@1"),
    ('host = "42.99 us"', 'host = "1e308 s"', "launch.host: got 1e+308, wanted at most 1000 s"),
    ('communicator = "486 MiB"', 'communicator = "1e300 B"', "memory.communicator: got 1e+300"),
    ("[attention.cudnn", "[attention.cudn", "did you mean cudnn"),
    ('serial_rate = "3786"\n', "", "serial_rate: got 0, wanted more than 0 beside serial_share"),
    ('tile_rows = ["', 'tile_rows = ["1e-300", "', "tile_rows do not go together"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "says"), WRONG)
def test_what_is_wrong_is_named_with_its_place(tmp_path, before, after, says):
    assert before in GOOD
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(before, after), encoding="utf-8")

    for words in (("show",), ("diff", "h100-sxm")):
        code, out, err = run("profile", *words, str(path))
        assert_refused(code, out, err, says)
        assert err.strip().isprintable()
        assert len(err) < 600


NUMBERS = [line for line in GOOD.splitlines() if re.search(r'^[a-z_0-9]+ = "[0-9.]+', line)][1:]


@pytest.mark.parametrize("value", ["1e308", "1e300", "1e-308"])
def test_no_number_gives_a_time_that_is_none(tmp_path, value):
    path = tmp_path / "mine.toml"
    for line in NUMBERS:
        changed = re.sub(r'"[0-9.]+', f'"{value}', line)
        path.write_text(GOOD.replace(line, changed, 1), encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            code, out, err = run("profile", "diff", "h100-sxm", str(path), "--format", "json")

        if code:
            assert_refused(code, out, err)
        else:
            examples = json.loads(out)["examples_s"].values()
            assert all(0 < time < math.inf for pair in examples for time in pair), changed


def test_the_largest_numbers_together_give_times():
    """Each at its bound, so that no product or power of them overflows."""
    limits = {"power_exponent": "4", "sharpness": "16", "softness": "1"}
    text, section = [], ""
    for line in GOOD.splitlines():
        section = line if line.startswith("[") else section
        found = re.fullmatch(r'([a-z_0-9]+) = "[0-9.]+(?: (us|GB/s|TFLOP/s|W))?"', line)
        if found is None or "fit" in section or section in ("[machine]", "[software]"):
            text.append(line)
            continue
        unit = {"us": "s", "GB/s": "B/s", "TFLOP/s": "FLOP/s", "W": "W", None: "1"}[found[2]]
        most = limits.get(found[1], str(UNIT_LIMITS[unit]))
        text.append(f'{found[1]} = "{most} {unit}"'.replace(' 1"', '"'))
    profile = load_profile("\n".join(text))

    assert all(0 < time < math.inf for time in examples(profile).values())


def test_words_for_people_are_on_one_line():
    text = GOOD.replace("NVIDIA H100 80GB HBM3", ESCAPE).replace("580.159.04", ESCAPE)
    found = load_profile(text)

    assert all(one.isprintable() for _, one in (*found.machine, *found.software))


@pytest.mark.parametrize("name", ["h100", "h100-sxm-x2", "h100-smx"])
def test_the_nearest_names_of_profiles_are_said(name):
    with pytest.raises(InputError, match=r"unknown profile or file .*: did you mean h100-sxm"):
        read_profile(name)


@pytest.mark.parametrize("name", ["\x1b[31m" * 99, "x" * 5000, "/no/such\x1b[2J/file.toml"])
def test_a_name_is_echoed_in_short(name):
    code, out, err = run("estimate", "--model", "flux", "--profile", name)

    assert_refused(code, out, err)
    assert err.strip().isprintable()
    assert len(err) < 400


@pytest.mark.parametrize("folder", ["x" * 5000, "/dev/null", "/proc"])
def test_a_folder_of_profiles_that_is_none_holds_none(monkeypatch, folder):
    monkeypatch.setenv("PLANNER_PROFILES", folder)

    code, out, err = run("profile", "list")
    assert (code, err) == (0, "")
    assert "h100-sxm" in out
    assert_refused(*run("profile", "install", "h100-sxm"), "h100-sxm: ships already, wanted a file")


def test_a_damaged_profile_of_the_folder_hides_no_other(monkeypatch, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "a.toml").write_bytes(b"\xff\x00")
    (tmp_path / "wide.toml").write_text(GOOD, encoding="utf-16")
    monkeypatch.setenv("PLANNER_PROFILES", str(folder))

    assert run("profile", "install", str(tmp_path / "wide.toml"))[0] == 0
    (installed,) = set(folder.glob("*.toml")) - {folder / "a.toml"}
    assert read_profile(str(installed)) == load_profile(GOOD)
    machine = dict(load_profile(GOOD).machine)
    own = own_profile("h100-sxm", machine["gpu"], int(machine["gpus"]))
    name = own_profile_name("h100-sxm", machine["gpu"], int(machine["gpus"]))
    assert (own is None) == (name == "")
