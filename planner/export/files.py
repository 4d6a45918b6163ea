"""Writes a folder whole or not at all."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from topology.base import InputError, draft_path, place


def write_folder(files: Mapping[str, bytes], output: str, *, force: bool = False) -> Path:
    """Write files into a new folder; an old one is replaced whole, if that was asked for.

    files : contents by path within the folder.

    Raises `InputError` if the folder exists, or cannot be written (no room, no right); nothing is
    left behind.
    """
    target = place_of(output, force=force)
    draft = draft_path(target)
    try:
        _fill_folder(draft, files)
        _swap_folders(draft, target)
    except OSError as error:
        raise InputError(f"--output {output}: {error.strerror}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def place_of(output: str, *, force: bool = False) -> Path:
    """Find where a folder is to be made.

    Raises `InputError` if no folder can be there, or if one is and may not be replaced.
    """
    target = place(output, "a folder to make")
    if not target.parent.is_dir():
        raise InputError(f"--output {output[:60]!r}: wanted the path of a folder to make")
    if target.exists() and not force:
        raise InputError(f"--output {output}: it exists; --force replaces it")
    if target.exists() and not target.is_dir():
        raise InputError(f"--output {output}: it is a file, wanted a folder")
    if target.exists() and any(target.iterdir()) and not (target / "plan.json").is_file():
        raise InputError(f"--output {output}: --force replaces earlier exports, and it is none")
    return target


def _fill_folder(draft: Path, files: Mapping[str, bytes]) -> None:
    draft.mkdir()
    for name, contents in files.items():
        path = draft / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
        if name.endswith(".sh"):
            path.chmod(0o755)


def _swap_folders(draft: Path, target: Path) -> None:
    """Put the draft in the target's place; what was there comes back if that fails."""
    if not target.exists():
        draft.rename(target)
        return
    old_folder = draft_path(target)
    target.rename(old_folder)
    try:
        draft.rename(target)
    except OSError:
        old_folder.rename(target)
        raise
    shutil.rmtree(old_folder, ignore_errors=True)
