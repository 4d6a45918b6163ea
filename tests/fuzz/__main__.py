"""Try many damaged texts: ``PYTHONPATH=tests python -m fuzz log rows --runs 20000``.

Without a name all targets. Of each what raised, took over 10 s or over 500 MB is kept in a folder
of files that the target's own command can be given. ``--atheris`` has Google's fuzzer look for
texts that reach new lines, for one target and so many seconds (``pip install atheris``).
"""

import argparse
import random
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

from fuzz.damage import damaged

if "--atheris" in sys.argv:
    import atheris

    with atheris.instrument_imports(include=["topology", "costmodels", "planner", "validate"]):
        from fuzz.targets import TARGETS
else:
    from fuzz.targets import TARGETS

from topology.base import ModelError

LONGEST_S = 10.0
MOST = 500 * 2**10  # KiB
STEP = 100 * 2**10  # KiB that one text may add


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def tried(target, path):
    """Use a text; says what was wrong with how that went, "" where it was used or refused."""
    begun, before = time.process_time(), peak()
    try:
        target.use(path)
    except ModelError as error:
        if not str(error).isprintable():
            return f"a line that is none: {error!s:.60}"
    except Exception as error:  # noqa: BLE001  # it is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
    if time.process_time() - begun > LONGEST_S:
        return "over 10 s"
    return "over 500 MB" if peak() > MOST and peak() - before > STEP else ""


def search(name, runs, seed, kept):
    """Try so many texts; each fault is kept once."""
    target, drawn, faults = TARGETS[name], random.Random(seed), {}
    for _ in range(runs):
        text = damaged(target.text, drawn)
        with TemporaryDirectory() as folder:
            fault = tried(target, target.copy(Path(folder), text))
        if fault and fault not in faults:
            kept.mkdir(exist_ok=True)
            faults[fault] = kept / f"{name}-{len(faults)}{target.file.suffix}"
            faults[fault].write_bytes(text.encode("utf-8", "surrogatepass"))
    return faults


class Drawn(random.Random):
    """Chance that bytes decide one after another: nearly the same bytes damage nearly alike."""

    def __init__(self, data):
        super().__init__(0)
        self.left = iter(data)

    def getrandbits(self, bits):
        """Take as many bits of the next bytes, zeros where none are left."""
        count = -(-bits // 8)
        taken = bytes([next(self.left, 0) for _ in range(count)])
        return int.from_bytes(taken, "little") >> (8 * count - bits)

    def random(self):
        """Take a number below 1 of the next bytes."""
        return self.getrandbits(32) / 2**32


def guided(name, folder, seconds):
    """Have atheris draw; it ends the process at the first fault, and keeps its input itself."""
    target = TARGETS[name]

    def one(data):
        text = damaged(target.text, Drawn(data))
        if fault := tried(target, target.copy(folder, text)):
            raise AssertionError(f"{fault}\n{text}")

    limits = ["-max_len=64", "-len_control=0", f"-max_total_time={seconds}"]
    atheris.Setup([sys.argv[0], *limits], one)
    atheris.Fuzz()


def main():
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", default=[], help=", ".join(TARGETS))
    parser.add_argument("--runs", type=int, default=1000, help="texts of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, default=Path("faults"), help="folder for texts")
    parser.add_argument("--atheris", type=int, metavar="SECONDS")
    asked = parser.parse_args()
    if asked.atheris:
        with TemporaryDirectory() as folder:
            guided(asked.names[0], Path(folder), asked.atheris)
    warnings.simplefilter("error")
    found = 0
    for name in asked.names or TARGETS:
        faults = search(name, asked.runs, asked.seed, asked.kept)
        print(f"{name}: {asked.runs} texts, {len(faults)} faults, {peak() // 1024} MB", flush=True)
        for fault, path in faults.items():
            print(f"  {path}: {fault}")
        found += len(faults)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
