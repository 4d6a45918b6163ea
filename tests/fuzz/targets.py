"""What people write and the program reads: a text of each, and what reads it and uses it first."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from planner.command import cli
from planner.export.scales import read_scales
from topology.base.table import terminal
from topology.base.values import dataclass
from validate.calibrate import CalibrationTask, finish
from validate.fit.rows import read_csv, to_csv
from validate.plans.compare import compare
from validate.plans.measured import line, read_measured
from validate.plans.report import parts

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = ROOT / "examples"
MANIFEST = (CORPUS / "manifest.json").read_text("utf-8")
LINES = (CORPUS / "lines.jsonl").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Target:
    """A text, and what is done with a file of it; whoever reads it may raise a `ModelError`."""

    file: Path
    use: Callable[[Path], object]

    @property
    def text(self):
        return self.file.read_text("utf-8")

    def copy(self, folder, text):
        """Write a text as a file of the kind that the target takes."""
        path = folder / f"x{self.file.suffix}"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return path


def answered(words, path):
    """Answer a command in JSON; the file stands where its words say so."""
    typed = [str(path) if word == "FILE" else word for word in words.split()]
    said, _ = cli.answer(cli.parsed([*typed, "--format=json"]))
    return json.loads(said, parse_constant=refuse)


def refuse(constant):
    raise AssertionError(f"got {constant} in JSON")


def ask(file, words):
    return Target(file, partial(answered, words))


def compared(path):
    rows = read_measured(path.read_text("utf-8"))
    assert all(line(row) for row in rows)
    return terminal(parts(compare(rows, "h200-sxm"), 0.1))


def table(path):
    return read_csv(to_csv(read_csv(path.read_text("utf-8"))))


def fitted(path, rows="", manifest=""):
    said = path.read_text("utf-8")
    output = path.with_name("fitted.toml")
    output.unlink(missing_ok=True)
    return finish(CalibrationTask(output=output), rows or said, manifest or said)


FLUX = "estimate --model flux.1-schnell --gpus 2 --plan tp2"
LLAMA = "estimate --model llama-3.1-8b --hardware h100-sxm"
MACHINE = "estimate --model flux.1-schnell --gpus 2 --plan ulysses2 --topology FILE"
CARD = f"{MACHINE} --hardware a100-pcie-80gb"
SHOW = "topology show FILE"
MODEL = "estimate --gpus 2 --plan tp2 --model FILE"
DEMAND = "capacity --hardware h100-sxm --model flux.1-schnell --rate 6/min --slo 20s"
TARGETS = {
    "demands": ask(EXAMPLES / "demand.toml", "capacity --hardware l40s --demand FILE"),
    "prices": ask(EXAMPLES / "prices.toml", f"{DEMAND} --price FILE"),
    "cluster": ask(EXAMPLES / "cluster.toml", MACHINE),
    "hardware": ask(EXAMPLES / "my_gpu.toml", f"{FLUX} --hardware FILE"),
    "log": ask(EXAMPLES / "all_reduce.log", "collectives --hardware h100-sxm --compare FILE"),
    "profile": ask(CORPUS / "profile.toml", f"{FLUX} --hardware h100-sxm --profile FILE"),
    "shown profile": ask(CORPUS / "profile.toml", "profile show FILE"),
    "matrix": ask(CORPUS / "matrix.txt", CARD),
    "affinities": ask(CORPUS / "pairs.txt", SHOW),
    "nccl": ask(CORPUS / "nccl.xml", MACHINE),
    "smi": ask(CORPUS / "smi.xml", SHOW),
    "graphs": ask(CORPUS / "graphs.xml", SHOW),
    "machine": ask(CORPUS / "machine.json", CARD),
    "machine rows": ask(CORPUS / "machine_rows.json", CARD),
    "decoder": ask(CORPUS / "decoder.json", MODEL),
    "experts": ask(CORPUS / "experts.json", MODEL),
    "diffusion": ask(CORPUS / "diffusion.json", MODEL),
    "results": Target(CORPUS / "results.jsonl", compared),
    "rows": Target(CORPUS / "rows.csv", table),
    "lines": Target(CORPUS / "lines.jsonl", partial(fitted, manifest=MANIFEST)),
    "manifest": Target(CORPUS / "manifest.json", partial(fitted, rows=LINES)),
    "scales": Target(CORPUS / "scales.json", lambda path: read_scales(str(path), "flux.1-dev")),
    "lengths": ask(CORPUS / "lengths.csv", f"{LLAMA} --concurrency 2 --lengths FILE"),
    "arrivals": ask(CORPUS / "arrivals.csv", f"{LLAMA} --arrivals FILE"),
    "loads": ask(
        CORPUS / "loads.txt",
        "estimate --gpus 2 --plan tp2 --model mixtral-8x7b --expert-distribution FILE",
    ),
    "trace": ask(CORPUS / "trace.json", f"{FLUX.replace('estimate', 'simulate')} --compare FILE"),
}
