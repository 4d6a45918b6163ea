"""What a machine lacks for engines of several GPUs, and what to do about it."""

import re
import tomllib
from ctypes.util import find_library
from dataclasses import replace
from pathlib import Path

import pytest

from planner.engines.tables import allowed
from topology.base import GIB, InputError
from validate.doctor import diagnose, doctor
from validate.tensorrt.probe import Host, InstalledLibrary, NamedGpu, find_nccl

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
GOOD = Host(
    system="x86_64 Linux 6",
    processor="x86_64",
    distribution="Ubuntu 24.04",
    driver="580.82.07",
    cuda="13.0",
    gpus=(NamedGpu(name="NVIDIA B200", capability=(10, 0)),) * 8,
    tensorrt=InstalledLibrary(version="11.4.1.3", path="/usr/lib/tensorrt"),
    nccl=InstalledLibrary(version="2.30.4", path="/usr/lib/libnccl.so.2"),
    searched=("/usr/lib",),
    packages={"nccl4py": "0.6.0", "cuda-bindings": "13.0.1"},
    shared_bytes=16.0 * GIB,
)


def state(machine, name):
    found = [one for one in diagnose(machine).checks if one.name == name]
    assert len(found) == 1
    return found[0]


def test_a_machine_with_everything_is_well():
    found = diagnose(GOOD)

    assert found.ok
    assert {one.state for one in found.checks} == {"ok"}
    assert found.to_dict()["ok"] is True


def test_an_empty_machine_is_told_what_to_install():
    found = diagnose(Host())

    assert not found.ok
    missing = {one.name: one.advice for one in found.checks if one.state == "missing"}
    assert "driver" in missing["driver"]
    assert "pip install 'tensorrt-cu13>=11.0,<12'" in missing["TensorRT"]
    assert "pip install 'nvidia-nccl-cu13>=2.28,<3'" in missing["NCCL"]
    assert all(missing.values())


@pytest.mark.parametrize(
    ("name", "changes", "want", "word"),
    [
        ("GPUs", {"gpus": (NamedGpu(name="T4", capability=(7, 5)),) * 2}, "missing", "8.0"),
        ("GPUs", {"gpus": (NamedGpu(name="H100", capability=(9, 0)),)}, "watch", "more of them"),
        ("driver", {"driver": "550.54"}, "missing", "580.65"),
        ("driver", {"cuda": "11.8"}, "missing", "for CUDA 12.9 and 13.2"),
        ("driver", {"cuda": "12.9", "processor": "aarch64"}, "missing", "for CUDA 13.2"),
        ("system", {"distribution": "Debian GNU/Linux 12"}, "watch", "Ubuntu 24.04, Rocky Linux 8"),
        ("system", {"processor": "aarch64"}, "watch", "Ubuntu 22.04"),
        ("system", {"processor": "riscv64"}, "missing", "x86_64 Ubuntu 24.04"),
        ("whole GPUs", {"mig": 2}, "missing", "nvidia-smi -mig 0"),
        (
            "TensorRT",
            {"tensorrt": InstalledLibrary(version="10.9.0", path="p")},
            "missing",
            "cu13>=11.0,<12",
        ),
        (
            "TensorRT",
            {"tensorrt": InstalledLibrary(version="10.16.1", path="p")},
            "watch",
            "need 11.0",
        ),
        (
            "TensorRT",
            {"tensorrt": InstalledLibrary(version="11.2.1.2", path="p")},
            "watch",
            "one axis",
        ),
        ("NCCL", {"nccl": InstalledLibrary(version="2.18.1", path="p")}, "missing", "2.19"),
        ("NCCL", {"nccl": InstalledLibrary(version="2.27.7", path="p")}, "watch", "all-to-all"),
        ("NCCL", {"nccl": None, "beside": "/site/nccl/lib"}, "missing", "/site/nccl/lib"),
        ("peer access", {"apart": ((0, 1), (1, 0))}, "watch", "NCCL_P2P_DISABLE"),
        ("shared memory", {"shared_bytes": 64.0 * 2**20}, "missing", "--shm-size"),
        (
            "cuda-bindings",
            {"packages": {"nccl4py": "1"}},
            "missing",
            "pip install 'cuda-bindings>=13.0,<14'",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_cure(name, changes, want, word):
    found = state(replace(GOOD, **changes), name)

    assert found.state == want
    assert word in found.advice


def test_hopper_has_no_attention_on_several_devices():
    hopper = replace(GOOD, gpus=(NamedGpu(name="H100", capability=(9, 0)),) * 8)

    assert state(hopper, "multi-device attention").state == "watch"
    assert diagnose(hopper).ok


def test_a_version_that_may_lose_collectives_is_told_the_way_round():
    found = replace(GOOD, tensorrt=replace(GOOD.tensorrt, version="11.0.0.114"))

    check = state(found, "TensorRT")
    assert check.state == "watch"
    assert "--tensorrt-version 11.0.0.114" in check.advice


def test_a_version_that_is_not_here_is_judged():
    check = next(one for one in doctor({}, "11.2.1.2").checks if one.name == "TensorRT")

    assert (check.state, check.found) == ("watch", "11.2.1.2, as asked for")
    assert "4380" in check.advice
    with pytest.raises(InputError, match=r"tensorrt_version: got 11\.9, wanted one that there is"):
        doctor({}, "11.9")


def test_a_smaller_release_of_a_known_system_is_well():
    assert state(replace(GOOD, distribution="Rocky Linux 8.10"), "system").state == "ok"


def test_all_that_is_told_to_install_has_all_to_all():
    """A TensorRT before 11 has none, and NCCL before 2.28 lacks its symbol."""
    known = allowed()
    for cuda in known.packages:
        assert f">={known.since['all_to_all'][0]}." in known.install("tensorrt", cuda)
        nccl = ".".join(map(str, known.nccl_all_to_all))
        assert f">={nccl}," in known.install("nvidia-nccl", cuda)


def test_cuda_12_is_given_its_own_packages():
    found = diagnose(replace(GOOD, cuda="12.9", driver="575.57", nccl=None, tensorrt=None))
    advice = " ".join(one.advice for one in found.checks)

    assert "tensorrt-cu12" in advice
    assert "nvidia-nccl-cu12" in advice


def test_nccl_is_looked_for_along_the_path_in_order(tmp_path):
    """A file that is no library is found, and has no version."""
    empty, other = tmp_path / "a", tmp_path / "b"
    empty.mkdir(), other.mkdir()
    (other / "libnothing.so.2").write_bytes(b"")

    found = find_nccl([str(empty), str(other)], ("libnothing.so.2",))
    assert found == InstalledLibrary(version="", path=str(other / "libnothing.so.2"))
    assert find_nccl([str(empty)], ("libnothing.so.2",)) is None


def test_a_library_that_is_no_nccl_is_said_to_be_none():
    path = find_library("c")
    found = find_nccl([], (path,))

    assert found == InstalledLibrary(version="", path=path)
    (check,) = (one for one in diagnose(replace(GOOD, nccl=found)).checks if one.name == "NCCL")
    assert (check.state, check.found) == ("missing", f"{path}: it cannot be loaded, or is no NCCL")
    assert "nvidia-nccl-cu13" in check.advice


def test_looking_at_this_machine_fails_nowhere():
    found = doctor({"LD_LIBRARY_PATH": "/nowhere:/usr/lib"})

    assert len(found.checks) >= 6
    assert all(line.count("|") == 5 for line in found.markdown().splitlines())
    assert any("driver" in line for line in found.lines())


@pytest.mark.parametrize(("extra", "cuda"), [("gpu", "12"), ("gpu-cu13", "13")])
def test_what_is_to_be_installed_is_what_the_extras_have(extra, cuda):
    assert list(allowed().packages[cuda]) == EXTRAS[extra]


def test_every_text_that_tells_what_to_install_asks_for_what_the_extras_have():
    known = {one for extra in EXTRAS.values() for one in extra}
    told = {
        (path.name, wanted)
        for layer in ("planner", "validate")
        for path in (ROOT / layer).rglob("*.py")
        for line in path.read_text().splitlines()
        if "pip install" in line
        for wanted in re.findall(r"'([a-z0-9-]+[><=][^']*)'", line.partition("pip install")[2])
    }
    bare = {
        f"{path.name}: {line.strip()}"
        for layer in ("planner", "validate")
        for path in (ROOT / layer).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"pip install (?!'\{next)[^'\s]", line) or "pip install '.[" in line
    }

    assert {wanted for _, wanted in told} <= known
    assert len(told) >= 5
    assert bare == set()
