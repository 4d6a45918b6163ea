"""Tables that ship with the cost models, and profiles: nothing else here touches a file."""

import os
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from costmodels.profile import Profile, check_known, load_profile, profile_of
from costmodels.runtime import Runtime, load_runtimes
from topology.base import (
    InputError,
    content,
    decoded_text,
    is_file,
    read_sourced,
    shipped_table,
    unknown,
)
from topology.catalogue import find_hardware

SHIPPED_PROFILE: Final = ""
NO_PROFILE: Final = "none"
_FILE_MARKS: Final = frozenset("/\\.")  # of what can only be a file
MOST_PROFILE_BYTES: Final = 4 * 2**20  # B of a profile's file


def profile_for(hardware: str, path: str = SHIPPED_PROFILE) -> Profile | None:
    """Find the profile for a hardware name.

    path : of a profile, or its name, ``none``, or nothing for the newest one that ships.

    Raises InputError if the file cannot be read, is no profile, or is one of other hardware.
    """
    if path == NO_PROFILE:
        return None
    if path == SHIPPED_PROFILE:
        return shipped_profile(hardware)
    profile = read_profile(path)
    if profile.hardware != hardware:
        raise InputError(f"{path}: a profile of {profile.hardware}, wanted one of {hardware}")
    return profile


def check_profile(path: str) -> None:
    """Read the profile that was asked for, where nothing is priced with it."""
    if path not in (NO_PROFILE, SHIPPED_PROFILE):
        read_profile(path)


@cache
def shipped_profile(hardware: str) -> Profile | None:
    """Read the newest profile of a hardware name that ships, once; None where there is none."""
    name = _read("profiles/index.toml")["newest"].get(hardware)
    return None if name is None else profile_of(_read(f"profiles/{name}"), _text(name), name)


def own_profile(hardware: str, product: str, gpus: int) -> Profile | None:
    """Find the newest profile that was measured on a machine like this one; None where none was.

    product : what the driver calls its GPUs. gpus : how many it has.
    """
    matches = []
    for path in (*shipped_profiles(), *own_files()):
        with suppress(InputError):  # files of the user's own may be bad
            profile = read_profile(path)
            expected_machine = dict(profile.machine) | {"gpu": product, "gpus": str(gpus)}
            if profile.hardware == hardware and dict(profile.machine) == expected_machine:
                matches.append(profile)
    matches = [profile for profile in matches if profile != shipped_profile(hardware)]
    return max(matches, key=lambda profile: profile.date, default=None)


def own_files() -> list[str]:
    """List the paths of the profiles in the user's own folder; none where that cannot be one."""
    try:
        return sorted(map(str, profile_folder().glob("*.toml")))
    except OSError:
        return []


def profile_folder() -> Path:
    """Where profiles are looked for: ``PLANNER_PROFILES``, or below the user's settings."""
    configured = os.environ.get("PLANNER_PROFILES")
    home = os.path.expanduser("~")  # noqa: PTH111  # that of a path fails where there is no home
    settings = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    return Path(configured) if configured else Path(settings) / "multi-gpu-planner" / "profiles"


def read_profile(path: str) -> Profile:
    """Read a profile from a file, or one that ships by its name.

    Raises InputError if it cannot be read, is no profile, or speaks of what there is not.
    """
    if path in shipped_profiles():
        return load_profile(_text(f"{path}.toml"), path)
    profile = load_profile(profile_text(path), path)
    try:
        _check_names(profile)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return profile


def profile_text(path: str) -> str:
    """Read the text of a profile's file."""
    label = f"profile {path}"
    if _FILE_MARKS.isdisjoint(path) and not is_file(path):
        raise unknown("profile or file", path, shipped_profiles())
    try:
        data = content(path, MOST_PROFILE_BYTES)
    except InputError as error:
        raise InputError(f"{label}: {error}") from None
    return decoded_text(data, label)


def _check_names(profile: Profile) -> None:
    """Refuse tables that nothing would ever look up."""
    from costmodels.collectives.parameters import CLASSES  # noqa: PLC0415
    from costmodels.collectives.tables import library  # noqa: PLC0415  # only for files
    from costmodels.kernels.attention import IMPLEMENTATIONS  # noqa: PLC0415

    generation = find_hardware(profile.hardware).device.architecture
    curves = {place.rpartition(".")[2] for place in library().curves}
    places = [f"curves.{place}".split(".") for place, _ in profile.curves.curves]
    times = [f"times.{time.place}".split(".") for time in profile.curves.times]
    check_known("runtimes", [name for name, _ in profile.runtimes], runtimes())
    check_known("attention", [name for name, _ in profile.kernels.attention], IMPLEMENTATIONS)
    for part, name, link, *name_parts in (*places, *times):
        check_known(part, [name], [generation])
        check_known(f"{part}.{name}", [link], CLASSES)
        if part == "curves":
            check_known(f"{part}.{name}.{link}", [".".join(name_parts)], curves)


@cache
def shipped_profiles() -> tuple[str, ...]:
    """List the names of the profiles that ship.

    >>> "index" in shipped_profiles()
    False
    """
    folder = files("costmodels").joinpath("data", "profiles")
    tables = (entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
    names = {name.removesuffix(".toml") for name in tables}
    return tuple(sorted(names - {"index"}))


@cache
def runtimes() -> dict[str, Runtime]:
    """Read `data/runtimes.toml`, once."""
    return load_runtimes(_read("runtimes.toml"))


def runtime(name: str) -> Runtime:
    """Look up a runtime, or say which there are."""
    shipped = runtimes()
    if name.lower() not in shipped:
        raise unknown("runtime", name, shipped)
    return shipped[name.lower()]


@cache
def overlap_table() -> dict[str, tuple[float, float]]:
    """Read `data/overlap.toml`, once: share, and seconds before it, by kind of collective."""
    kinds = _read("overlap.toml")["share"]
    shares = (_number("overlap.toml", "1", "share", kind) for kind in kinds)
    starts = (_number("overlap.toml", "s", "start", kind) for kind in kinds)
    return dict(zip(kinds, zip(shares, starts, strict=True), strict=True))


def kernel_names() -> list[dict[str, str]]:
    """Read `data/kernel_names.toml`: patterns of names and their classes, the first that fits."""
    return list(_read("kernel_names.toml")["name"])


def rank_spread() -> float:
    """Return the standard deviation of the speed of GPUs of one kind, relative."""
    return _number("ranks.toml", "1", "spread")


def communicator_bytes(profile: Profile | None = None) -> float:
    """Bytes of GPU memory that NCCL takes for one communicator."""
    measured = None if profile is None else profile.communicator
    return _number("memory.toml", "B", "communicator") if measured is None else measured.value


def headroom() -> float:
    """Share of a GPU's memory that is left free."""
    return _number("memory.toml", "1", "headroom")


@cache
def _number(file: str, unit: str, *keys: str) -> float:
    """Read one number of a table that ships, once."""
    table = entry = _read(file)
    for key in keys:
        entry = entry[key]
    return read_sourced(".".join(keys), entry, unit, table).value


def _read(name: str) -> dict[str, Any]:
    return shipped_table(files("costmodels").joinpath("data", name))


def _text(profile: str) -> str:
    return files("costmodels").joinpath("data", "profiles", profile).read_text(encoding="utf-8")
