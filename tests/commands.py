"""Commands, and what runs them, in this process and in one of their own."""

import contextlib
import io
import subprocess
import sys
from pathlib import Path

from planner.command import cli

ROOT = Path(__file__).parents[1]
CLUSTER = str(ROOT / "examples" / "cluster.toml")
REQUEST = ("--model", "flux.1-dev", "--gpus", "2")
COMMANDS = {
    "recommend": ("recommend", *REQUEST),
    "estimate": ("estimate", *REQUEST, "--plan", "ulysses2"),
    "simulate": ("simulate", *REQUEST, "--plan", "ring2"),
    "capacity": ("capacity", "--model", "flux.1-dev", "--rate", "6/min", "--slo", "20s"),
    "decoder": ("estimate", "--model", "llama-3.1-8b", "--output-tokens", "16"),
    "collectives": ("collectives", "--hardware", "h100-sxm", "--gpus", "8", "--bytes", "1MiB"),
    "models list": ("models", "list"),
    "models show": ("models", "show", "cosmos3"),
    "topology show": ("topology", "show", "h100-sxm"),
}
NOTHING = ("recommend", "--model", "flux.1-dev", "--gpus", "1", "--hardware", "rtx-4090")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
FLUX = {
    "_class_name": "FluxTransformer2DModel",
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "num_layers": 19,
    "num_single_layers": 38,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "in_channels": 64,
    "guidance_embeds": True,
}


def run(*argv):
    """Exit code, standard output and standard error of one command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(list(argv))
        except SystemExit as stop:  # --help and --version
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def python(*argv, **more):
    """One command in a process of its own."""
    command = [sys.executable, "-m", "planner", *argv]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600, **more
    )


def assert_refused(code, out, err, *said):
    assert (code, out) == (2, "")
    assert err.startswith("planner: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    assert all(word in err for word in said), err
