"""Tables that ship in `validate/data`, and profiles in the user's own folder."""

import tomllib
from functools import cache
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from costmodels.profile import Profile
from costmodels.tables import (
    own_files,
    own_profile,
    profile_folder,
    profile_text,
    read_profile,
    shipped_profiles,
)
from topology.base import InputError, write_new


def text(name: str) -> str:
    """Read a file of `validate/data`."""
    return files("validate").joinpath("data", name).read_text(encoding="utf-8")


@cache
def shipped_table(name: str) -> dict[str, Any]:
    """Read a TOML table of `validate/data`, once."""
    return tomllib.loads(text(name))


def own_profile_name(hardware: str, product: str, gpus: int) -> str:
    """Name the newest profile that was measured on a machine like this one, "" without one.

    product : what the driver calls its GPUs. gpus : how many it has.
    """
    newest = own_profile(hardware, product, gpus)
    if newest is None:
        return ""
    names = [*own_files(), *shipped_profiles()]
    return next((name for name in names if _is_same_profile(name, newest)), "")


def install(path: str) -> Path:
    """Copy a profile to where ``--detect`` finds it, under a free name.

    Raises InputError if it is no profile, is there already, or cannot be written.
    """
    profile, folder = read_profile(path), profile_folder()
    if path in shipped_profiles():
        raise InputError(f"{path}: ships already, wanted a file")
    for installed in own_files():
        if _is_same_profile(installed, profile):
            raise InputError(f"{path}: is there already, as {installed}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from None
    numbers = ("" if number == 1 else f"-{number}" for number in count(1))
    free_paths = (folder / f"{profile.name}{number}.toml" for number in numbers)
    target = next(name for name in free_paths if not name.exists())
    write_new(target, profile_text(path))
    return target


def _is_same_profile(path: str, profile: Profile) -> bool:
    try:
        return read_profile(path) == profile
    except InputError:  # another one is damaged
        return False
