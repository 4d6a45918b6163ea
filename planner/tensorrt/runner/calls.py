"""The calls that make an engine as lines of words, which a builder in any language makes again.

A `Recorder` stands for TensorRT while `build` assembles a network and configures its builder. A
line is what is called, its method or attribute, and what is given::

    0 add_input "x" bfloat16 [1,24,6]                       (layers are numbered as they are added)
    1 add_constant [1,6,4] Weights(bfloat16,24,@256)        (numbers from that byte of the file on)
    2 add_constant [1,6,4] Weights(bfloat16,24,made)        (whatever numbers the builder makes up)
    3 add_matrix_multiply 0.0 MatrixOperation.NONE 1.0 MatrixOperation.NONE
    3 name= "product"
    3.0 expect [1,24,4] bfloat16                            (what its output has to be)
    network mark_output 3.0
    config builder_optimization_level= 3
    build

Numbers lie in a file beside it, each at a multiple of `external_weights.ALIGNED` bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from ctypes import c_char
from itertools import count
from types import SimpleNamespace
from typing import Final

from planner.tensorrt.runner.external_weights import ALIGNED
from planner.tensorrt.runner.formats import storage
from planner.tensorrt.runner.layers import blank
from planner.tensorrt.runner.library import TYPES

BUILD: Final = "build"
"""The last line; a file without it was cut short."""
_TYPES: Final = {there: here for here, there in TYPES.items()}
Write = Callable[[bytes], object]


class Word(str):
    """A word of a line that is written as it is: a type, or a member of an enumeration."""

    __slots__ = ()


class _Members:
    """An enumeration: whatever member is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, member: str) -> Word:
        return Word(f"{self._name}.{member}")


class _Called:
    """An object of the library's: methods that are called and attributes that are set are noted."""

    _lines: list[str]
    _name: str

    def __init__(self, lines: list[str], name: str) -> None:
        vars(self).update(_lines=lines, _name=name)

    def __str__(self) -> str:
        return self._name

    def __getattr__(self, method: str) -> Callable[..., object]:
        return lambda *arguments: _note(self._lines, self._name, method, arguments)

    def __setattr__(self, attribute: str, value: object) -> None:
        _note(self._lines, self._name, f"{attribute}=", (value,))


class _Tensor(_Called):
    """A tensor, whose shape and type are those that it is said to have."""

    def expect(self, shape: tuple[int, ...], dtype: Word) -> None:
        """Note what the library has to make of it."""
        _note(self._lines, self._name, "expect", (shape, dtype))
        vars(self).update(shape=shape, dtype=dtype)


class _Layer(_Called):
    def get_output(self, place: int) -> _Tensor:
        return _Tensor(self._lines, f"{self._name}.{place}")


class _Network(_Called):
    """A network; layers are numbered as they are added."""

    _numbers: "_Numbers"
    _next: Iterator[int]

    def __init__(self, lines: list[str], numbers: "_Numbers") -> None:
        super().__init__(lines, "network")
        vars(self).update(_numbers=numbers, _next=count())

    def __getattr__(self, method: str) -> Callable[..., object]:
        if not method.startswith("add_"):
            return super().__getattr__(method)
        return lambda *arguments: self._add(method, *arguments)

    def add_input(self, name: str, dtype: Word, shape: tuple[int, ...]) -> _Tensor:
        """Add an input, which is a tensor and no layer."""
        tensor = self._add("add_input", name, dtype, shape).get_output(0)
        vars(tensor).update(shape=shape, dtype=dtype)
        return tensor

    def add_constant(self, shape: tuple[int, ...], weights: "_Weights") -> _Layer:
        """Add numbers, which go to their file at once."""
        place = self._numbers.place(shape, weights)
        word = Word(f"Weights({weights.dtype},{weights.count},{place})")
        return self._add("add_constant", shape, word)

    def _add(self, method: str, *arguments: object) -> _Layer:
        layer = _Layer(self._lines, str(next(self._next)))
        _note(self._lines, str(layer), method, arguments)
        return layer


def _note(lines: list[str], name: str, method: str, arguments: Sequence[object]) -> None:
    lines.append(" ".join([name, method, *map(_word, arguments)]))


class _Weights:
    """Numbers at an address, or none."""

    def __init__(self, dtype: str = "", address: int = 0, count: int = 0) -> None:
        self.dtype, self.address, self.count = dtype, address, count

    def __str__(self) -> str:
        return f"Weights({self.dtype})"  # those of a constant are written by themselves


class _Numbers:
    """The file of numbers, as far as it is written."""

    def __init__(self, write: Write) -> None:
        self._write, self._size = write, 0

    def place(self, shape: tuple[int, ...], weights: _Weights) -> str:
        """Write numbers and say where; those that nobody gave are left to the builder."""
        dtype = _TYPES[weights.dtype]
        made_up = blank(dtype, shape)
        if weights.address == made_up.ctypes.data:
            return "made"
        size = weights.count * storage(dtype).itemsize if dtype != "fp4" else weights.count // 2
        start = self._size
        self._write((c_char * size).from_address(weights.address).raw)
        self._write(bytes(-size % ALIGNED))
        self._size += size + -size % ALIGNED
        return f"@{start}"


class _Config(_Called):
    """What the builder is told beside; whoever builds has timings and a monitor of its own."""

    def __setattr__(self, attribute: str, value: object) -> None:
        if attribute != "progress_monitor":
            super().__setattr__(attribute, value)

    def create_timing_cache(self, stored: bytes) -> SimpleNamespace:
        """Give one that stays empty."""
        del stored
        return SimpleNamespace(serialize=bytes)

    def set_timing_cache(self, cache: SimpleNamespace, *, ignore_mismatch: bool) -> None:
        """Do without."""


class _Builder:
    """What it serialises are the lines."""

    def __init__(self, numbers: Write) -> None:
        self._lines: list[str] = []
        self._numbers = _Numbers(numbers)

    def create_network(self, flags: int) -> _Network:
        del flags  # types are always those that are said
        return _Network(self._lines, self._numbers)

    def create_builder_config(self) -> _Config:
        return _Config(self._lines, "config")

    def build_serialized_network(self, network: _Network, config: _Config) -> bytes:
        del network, config
        return "\n".join([*self._lines, BUILD, ""]).encode()


class Recorder:
    """Stands for TensorRT's library. numbers : takes their file, piece by piece."""

    __name__ = "recorder"
    Weights = _Weights
    NetworkDefinitionCreationFlag = PreviewFeature = SimpleNamespace()
    IProgressMonitor = type("IProgressMonitor", (), {})
    ILogger = type("ILogger", (), {})

    def __init__(self, numbers: Write) -> None:
        self.Builder = lambda _: _Builder(numbers)

    def __getattr__(self, name: str) -> Word | _Members:
        return Word(name) if name in _TYPES else _Members(name)


def _word(argument: object) -> str:
    """Write what a call is given as a word."""
    if isinstance(argument, str) and not isinstance(argument, Word):
        return '"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(argument, Sequence) and not isinstance(argument, str):
        return f"[{','.join(map(_word, argument))}]"
    return str(int(argument)) if isinstance(argument, bool) else str(argument)
