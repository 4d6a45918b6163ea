"""A table that ships is parsed once, and is never another than its file; drafts follow no link."""

import errno
import os
import sys
import tomllib

import pytest

from topology.base import InputError, draft_path, locked_folder, write_new, write_whole
from topology.base.files import shipped_table, toml_of

TEXT = 'kind = "datasheet"\n[b200]\nsizes = [1, 2.5]\nranks = 8\n'
TABLE = {"kind": "datasheet", "b200": {"sizes": [1, 2.5], "ranks": 8}}


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    path = tmp_path / "devices.toml"
    path.write_text(TEXT)
    return path


def never(_):
    raise AssertionError("was parsed again")


def test_a_table_is_parsed_once(written, monkeypatch):
    assert shipped_table(written) == TABLE
    monkeypatch.setattr(tomllib, "loads", never)

    assert shipped_table(written) == TABLE
    assert [path.name[0] for path in written.parent.glob("__pycache__/*")] == ["d"]  # no draft


def test_a_table_that_changed_is_parsed_again(written):
    shipped_table(written)
    written.write_text(TEXT.replace("8", "16"))
    assert shipped_table(written)["b200"]["ranks"] == 16

    written.write_text(TEXT.replace("8", "32"))
    os.utime(written, ns=(1, 1))
    assert shipped_table(written)["b200"]["ranks"] == 32


@pytest.mark.parametrize("kept", [b"", b"torn", b"N", b"\xe9\x01\x00\x00\x00"])
def test_what_was_kept_and_is_torn_is_parsed_again(written, kept):
    shipped_table(written)
    (left,) = written.parent.glob("__pycache__/*")
    left.write_bytes(kept)

    assert shipped_table(written) == TABLE
    assert left.read_bytes() != kept


def test_nothing_is_kept_where_it_cannot_be_or_must_not(written, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert shipped_table(written) == TABLE
    assert not (written.parent / "__pycache__").exists()

    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (written.parent / "__pycache__").write_text("a file")
    assert shipped_table(written) == TABLE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a" + ".a" * 40_000 + " = 1", "a key of more than 64 parts"),
        ("x = {" + "'a' . " * 40_000 + "b = 1}", "a key of more than 64 parts"),
        ("x = " + "[" * 40_000, "too deep to read"),
        ("x = " + "9" * 20_000, "a number of thousands of digits"),
        ("x = [" + "0.1, " * 40_000 + "\n", "Invalid"),
        ("a" * 10**6, "Expected '='"),
    ],
)
def test_what_somebody_wrote_is_read_or_refused_soon(text, said):
    with pytest.raises(InputError, match=said):
        toml_of(text)


def test_a_draft_follows_no_link_and_none_is_left(tmp_path, monkeypatch):
    target, other, longest = tmp_path / "plan.json", tmp_path / "other", tmp_path / ("n" * 250)
    other.write_text("theirs")
    write_whole(longest, "whole")
    assert longest.read_text() == "whole"

    with monkeypatch.context() as drawn:
        drawn.setattr(os, "urandom", bytes)
        link = draft_path(target)
        link.symlink_to(other)
        with pytest.raises(FileExistsError):
            write_whole(target, "ours")
        assert other.read_text() == "theirs"
        link.unlink()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for write, said in ((write_whole, OSError), (write_new, InputError)):
        with pytest.raises(said, match="No space left"):
            write(target, "ours")
    assert sorted(tmp_path.iterdir()) == sorted([longest, other])


def test_a_folder_is_held_where_a_system_has_locks(tmp_path, monkeypatch):
    with (
        locked_folder(tmp_path, "busy"),
        pytest.raises(InputError, match="busy"),
        locked_folder(tmp_path, "busy"),
    ):
        pass
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with locked_folder(tmp_path, "busy"), locked_folder(tmp_path, "busy"):
        pass
