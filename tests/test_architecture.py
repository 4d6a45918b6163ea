"""The drawing in ARCHITECTURE.md and the house rules, as tests."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("topology", "costmodels", "planner", "validate")  # each may import those before it
SOURCES = sorted(
    path.relative_to(ROOT) for layer in LAYERS for path in (ROOT / layer).rglob("*.py")
)
TABLES = sorted(
    path.relative_to(ROOT) for layer in LAYERS for path in (ROOT / layer).rglob("*.toml")
)
# only inside functions, so that a command loads what it needs
REACHES_UP = "planner/command/cli.py"
UPWARDS = REACHES_UP.removesuffix(".py").replace("/", ".")
EDGES = {
    "catalogue.py",
    "cli.py",
    "files.py",
    "harness.py",
    "system.py",
    "tables.py",
    "__main__.py",
}  # may touch files, screen, environment
SILENT = {"print", "open", "input", "exit", "sys.exit", "os.getenv", "os.environ", "os.system"}
TOUCHES = (".read_text", ".read_bytes", ".write_text", ".write_bytes", ".open", ".unlink")
GPU_LIBRARIES = {"torch", "tensorrt", "nccl", "cuda", "pynvml", "cupy", "triton"}
GPU_PACKAGES = {"validate.bench", "validate.engines", "validate.torch"}  # run on GPUs alone
ALONE = Path("planner/tensorrt/runner")
COUNTED = {"costmodels/data/runtimes.toml": "functions"}  # kernels of our own count
LITERALS = {  # file: numbers that are no facts about hardware
    "topology/catalogue/fabric.py": {31.5e9},  # PCIe 4.0 x16 by definition: 16 GT/s, 128b/130b
    "planner/collective_table.py": {1e9},  # shows GB/s
    "validate/reference/functions.py": {1e-12},  # keeps a norm of zeros finite
}
PLACES = re.compile(  # paths of one machine, and words that say nothing
    r"/(?:home|root|tm[p]|wor[k])/|/wor[k]\b|\bhelpe[r]s?\b|\bagen[t]s?\b|[A-Z]\w+Manage[r]\b"
)


@cache
def tree(path):
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


@cache
def by_kind(path):
    found = {}
    for node in ast.walk(tree(path)):
        found.setdefault(type(node), []).append(node)
    return found


def nodes(path, *kinds):
    return [node for kind in kinds for node in by_kind(path).get(kind, ())]


def at_import_time(node):
    """Every node that runs when a module is imported: function bodies and typing are left out."""
    for child in ast.iter_child_nodes(node):
        typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not typing_only and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from at_import_time(child)


def modules(found):
    for node in found:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def imported(found):
    return {name.split(".")[0] for name in modules(found)}


def imports_point_down(path):
    found = at_import_time(tree(path)) if str(path) == REACHES_UP else ast.walk(tree(path))
    above = set(LAYERS[LAYERS.index(path.parts[0]) + 1 :])
    yield from (f"imports {name}" for name in imported(found) & above)


def imports_are_absolute(path):
    relative = [node for node in nodes(path, ast.ImportFrom) if node.level]
    yield from (f"line {node.lineno}: relative import" for node in relative)


def gpu_libraries_are_imported_when_used(path):
    """The planner runs where there is no GPU."""
    if ".".join(path.parts[:2]) in GPU_PACKAGES:
        return
    found = list(at_import_time(tree(path)))
    early = imported(found) & GPU_LIBRARIES
    early |= {".".join(name.split(".")[:2]) for name in modules(found)} & GPU_PACKAGES
    yield from (f"imports {name} when it is loaded" for name in early)


def functions_are_short(path):
    for function in nodes(path, ast.FunctionDef, ast.AsyncFunctionDef):
        if function.end_lineno - function.lineno >= 60:
            yield f"{function.name}: more than 60 lines"
        if len(function.args.posonlyargs + function.args.args) > 6:
            yield f"{function.name}: more than 6 positional arguments"


def model_code_is_silent(path):
    if path.name in EDGES:
        return
    called = {ast.unparse(call.func) for call in nodes(path, ast.Call)}
    last = {name.rpartition(".")[2] for name in SILENT}
    attributes = [node for node in nodes(path, ast.Attribute) if node.attr in last]
    named = called | {ast.unparse(attribute) for attribute in attributes}
    yield from (f"uses {name}" for name in named & SILENT)
    direct = {name for name in called if not name.startswith("harness.")}
    yield from (f"calls {name}" for name in direct if name.endswith(TOUCHES))


def values_are_frozen(path):
    for kind in nodes(path, ast.ClassDef):
        made = [text for text in map(ast.unparse, kind.decorator_list) if "dataclass" in text]
        frozen = all("frozen=True, slots=True" in text for text in made)
        if not frozen:
            yield f"{kind.name} is not frozen and slotted"


def values_load_fast(path):
    """Folders that are copied out of the package use what Python has."""
    if path == Path("topology/base/values.py") or "runner" in path.parts:
        return
    for imported in nodes(path, ast.ImportFrom):
        if imported.module == "dataclasses" and "dataclass" in {n.name for n in imported.names}:
            yield "takes dataclass from dataclasses: topology.base.values has it, quick to load"


def hardware_numbers_stay_in_the_catalogue(path):
    floats = {node.value for node in nodes(path, ast.Constant) if isinstance(node.value, float)}
    facts = {number for number in floats if number and not 1e-3 <= abs(number) <= 1e3}
    if path.name != "units.py":
        yield from (f"has {number:g}" for number in facts - LITERALS.get(str(path), set()))


RULES = (
    imports_point_down,
    imports_are_absolute,
    gpu_libraries_are_imported_when_used,
    functions_are_short,
    model_code_is_silent,
    values_are_frozen,
    values_load_fast,
    hardware_numbers_stay_in_the_catalogue,
)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps(rule, layer):
    found = [
        f"{path}: {complaint}"
        for path in SOURCES
        if path.parts[0] == layer
        for complaint in rule(path)
    ]

    assert found == []


def test_exceptions_are_still_needed():
    for name, numbers in LITERALS.items():
        found = {node.value for node in nodes(Path(name), ast.Constant)}
        assert numbers <= found, name


def import_graph():
    """Which module imports which, inside functions and for types alone as well.

    Whoever imports a file by way of its package imports the package too, which is a file itself.
    """
    files = {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES
    }
    graph = {name: set() for name in files}
    for name, path in files.items():
        graph[name].update(modules(nodes(path, ast.Import, ast.ImportFrom)))
        graph[name] = {other for other in graph[name] if other in files and other != name}
    return graph


def room(name):
    """The folder that a module lies in; a file beside the rooms of its layer stands for itself."""
    return ".".join(name.split(".")[:2])


def circles(edges):
    found = nx.strongly_connected_components(nx.DiGraph(edges))
    return [sorted(members) for members in found if len(members) > 1]


def test_no_circle_of_imports_is_left():
    """Files in a circle are one idea in several places; so are rooms."""
    edges = [(name, other) for name, others in import_graph().items() for other in others]
    rooms = [
        (room(name), room(other))
        for name, other in edges
        if room(name) != room(other) and name != UPWARDS
    ]

    assert circles(edges) == []
    assert circles(rooms) == []


def test_no_two_classes_have_one_name():
    """But in TensorRT's runner: folders carry it along, so it imports nothing of ours."""
    names = [
        kind.name
        for path in SOURCES
        if not path.is_relative_to(ALONE)
        for kind in nodes(path, ast.ClassDef)
    ]

    assert [name for name, count in Counter(names).items() if count > 1] == []


def unsourced(entry, inherited, path=()):
    """Paths of numbers, as text such as "3.35 TB/s" too, over which no source stands."""
    known = inherited or bool(entry.get("source"))
    for key, value in entry.items():
        if isinstance(value, dict):
            yield from unsourced(value, known, (*path, key))
        elif not known and re.match(r"[0-9.]+( ?[A-Za-z/]+)?$", str(value)):
            yield (*path, key)


def test_tables_parse_and_say_where_their_numbers_come_from():
    for path in TABLES:
        table = tomllib.loads((ROOT / path).read_text(encoding="utf-8"))

        numbers = [
            where
            for where in unsourced(table, inherited=False)
            if COUNTED.get(str(path)) not in where
        ]
        assert table, path
        assert numbers == [], path


def test_importing_the_planner_loads_no_heavy_package():
    """Commands start fast because names are looked up when they are used."""
    heavy = ("numpy", "networkx", "scipy", "torch", "tensorrt", "argparse")
    code = f"import sys, planner; print([name for name in {heavy} if name in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_what_is_tracked_speaks_of_the_project_alone():
    """No path of somebody's machine, and no word that could name anything."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a checkout")
    found = [
        f"{name}:{number}: {line.strip()[:80]}"
        for name in listed.stdout.splitlines()
        if (ROOT / name).is_file() and (ROOT / name).suffix != ".csv"
        for number, line in enumerate(
            (ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines(), 1
        )
        if PLACES.search(line)
    ]

    assert found == []
