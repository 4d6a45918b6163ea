"""Names that people give reach shells, scripts, pages and terminals as names and nothing else."""

import ast
import json
import subprocess

import pytest
from commands import FLUX, run

from topology.base.shell import shell_path, shell_word

NAMES = (
    "a b", "it's", 'a"b', "$(touch pwned)", "`touch pwned`", "$HOME", "a;b|c&d", "*", "~", "%s%n",
    "back\\slash", "<b>&amp;", "\x1b[2Jcleared", "two\nlines", "tab\there", "\u202egnp.exe", "#x",
    "ünï", "\udcff", "-rf", "--help", "'''+__import__('os').system('touch pwned')+'''",
)  # fmt: skip


def test_a_shell_takes_a_word_as_it_is_and_a_terminal_shows_it():
    words = [shell_word(name) for name in NAMES]
    typed = subprocess.run(
        ["/bin/sh", "-c", f"printf '%s\\0' -- {' '.join(words)}"], capture_output=True, check=True
    )

    wanted = [name.encode("utf-8", "surrogateescape") for name in NAMES]
    assert typed.stdout.split(b"\0")[1:-1] == wanted
    assert all(word.isprintable() for word in words)
    assert not shell_path("-rf").startswith("-")


@pytest.mark.parametrize("name", ["-rf", "\x1b[2J\n\"<b>'$(touch pwned)"])
def test_a_folder_of_any_name_is_a_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps(FLUX))
    asked = (f"--model={name}/config.json", "--gpus", "2", "--hardware", "h100-sxm")
    for style in ("table", "markdown", "html", "json", "csv"):
        code, out, err = run("estimate", *asked, "--plan", "tp2", "--format", style)
        assert (code, err) == (0, "")
        assert "\x1b" not in out
        assert "<b>" not in out or style != "html"

    built = ("--plan", "tp2", "--backend", "diffusers", "--output", "out")
    code, _, err = run("export", *asked, *built)
    assert code == 0, err
    ast.parse((tmp_path / "out/run.py").read_text())
    subprocess.run(["/bin/sh", "-n", tmp_path / "out/launch.sh"], check=True)
    assert not (tmp_path / "pwned").exists()
