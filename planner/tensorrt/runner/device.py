"""CUDA and NCCL, as far as a rank needs them; nothing is imported before it is used."""

from collections.abc import Sequence
from ctypes import CDLL, byref, c_char_p, c_int, c_size_t, c_void_p, py_object, pythonapi
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Final

import numpy as np

from planner.tensorrt.runner.errors import InputError, MissingError, RunError
from planner.tensorrt.runner.formats import Bits
from planner.tensorrt.runner.library import Foreign

LIBRARY: Final = "libnccl.so.2"
BYTES: Final = 0
"""NCCL's number of its type of one byte."""


@dataclass(frozen=True, slots=True)
class Cuda:
    """A GPU with one stream, through ``cuda.bindings.runtime``."""

    runtime: ModuleType
    stream: int

    def do(self, name: str, *given: Foreign) -> Foreign:
        """Call a function of CUDA, and return what it gave beside its code, a success."""
        return _done(self.runtime, getattr(self.runtime, name)(*given))

    def allocate(self, size: int) -> int:
        return int(self.do("cudaMalloc", max(size, 1)))

    def free(self, address: int) -> None:
        self.do("cudaFree", address)

    def upload(self, address: int, array: Bits) -> None:
        kind, data = self.runtime.cudaMemcpyKind, np.ascontiguousarray(array)
        host_address = data.ctypes.data
        self.do("cudaMemcpy", address, host_address, data.nbytes, kind.cudaMemcpyHostToDevice)
        self.do("cudaDeviceSynchronize")  # its end may be under way still

    def download(self, address: int, array: Bits) -> None:
        kind, host_address = self.runtime.cudaMemcpyKind, array.ctypes.data
        self.do("cudaMemcpy", host_address, address, array.nbytes, kind.cudaMemcpyDeviceToHost)

    def copy(self, target: int, source: int, size: int) -> None:
        kind = self.runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self.do("cudaMemcpyAsync", target, source, size, kind, self.stream)

    def idle(self) -> bool:
        """Whether all that was put on the stream is done."""
        (code,) = self.runtime.cudaStreamQuery(self.stream)
        if code == self.runtime.cudaError_t.cudaErrorNotReady:
            return False
        _done(self.runtime, (code,))
        return True

    def capture(self) -> None:
        """Record what is put on the stream from now on, without running it."""
        mode = self.runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self.do("cudaStreamBeginCapture", self.stream, mode)

    def captured(self) -> Foreign:
        """End the recording, and return it ready to be launched."""
        return self.do("cudaGraphInstantiate", self.do("cudaStreamEndCapture", self.stream), 0)

    def launch(self, graph: Foreign) -> None:
        self.do("cudaGraphLaunch", graph, self.stream)

    def release(self, graph: Foreign) -> None:
        self.do("cudaGraphExecDestroy", graph)


def open_cuda(number: int) -> Cuda:
    """Take a GPU, and make a stream on it.

    Raises `MissingError` if there are no bindings of CUDA; InputError if there is no such GPU.
    """
    try:
        runtime = import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise MissingError(
            f"CUDA's Python bindings are missing ({error}): "
            "pip install 'cuda-bindings>=13.0,<14' (or 12.8 for CUDA 12)"
        ) from None
    count = int(_done(runtime, runtime.cudaGetDeviceCount()))
    if number >= count:
        raise InputError(f"GPU {number}: this host shows {count}")
    _done(runtime, runtime.cudaSetDevice(number))
    stream = _done(runtime, runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking))
    return Cuda(runtime, int(stream))


def _done(runtime: ModuleType, answer: tuple[Foreign, ...]) -> Foreign:
    """Return what a call gave beside its code, which must be success."""
    code, *results = answer
    if code != runtime.cudaError_t.cudaSuccess:
        raise RunError(f"CUDA: {code!s}")
    return results[0] if results else None


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes at an address that go to another rank of a communicator, or come from it."""

    peer: int
    address: int
    size: int
    sends: bool


@dataclass(frozen=True, slots=True)
class Nccl:
    """Communicators through nccl4py, and messages between two ranks of one."""

    core: ModuleType

    def unique(self) -> bytes:
        unique_id = self.core.get_unique_id()
        return bytes(getattr(unique_id, "as_bytes", None) or unique_id)

    def join(self, ranks: int, rank: int, unique: bytes) -> Foreign:
        unique_id = self.core.UniqueId.from_bytes(unique)
        try:
            return self.core.Communicator.init(nranks=ranks, rank=rank, unique_id=unique_id)
        except Exception as error:  # noqa: BLE001  # of kinds that the library does not name
            raise RunError(f"NCCL: rank {rank} of {ranks} cannot join: {error}") from None

    def pass_on(self, communicator: Foreign, messages: Sequence[Message], stream: int) -> None:
        """Put messages on a stream, all of which are on their way at one time.

        Raises `RunError` if NCCL refuses one.
        """
        nccl = CDLL(LIBRARY)  # that is loaded already
        codes = [nccl.ncclGroupStart()]
        for message in messages:
            transfer = nccl.ncclSend if message.sends else nccl.ncclRecv
            communicator_args = c_void_p(communicator.ptr), c_void_p(stream)
            codes.append(
                transfer(
                    c_void_p(message.address),
                    c_size_t(message.size),
                    BYTES,
                    message.peer,
                    *communicator_args,
                )
            )
        codes.append(nccl.ncclGroupEnd())
        if any(codes):
            raise RunError(f"NCCL: a message between stages failed with code {max(codes)}")


def open_nccl() -> Nccl:
    """Find NCCL, which communicators come from.

    Raises `MissingError` if nccl4py or the library behind it is missing.
    """
    try:
        return Nccl(import_module("nccl.core"))
    except (ImportError, RuntimeError) as error:
        raise MissingError(
            f"NCCL was not found ({error}): "
            "pip install 'nccl4py>=0.1,<1' 'nvidia-nccl-cu13>=2.28,<3'"
        ) from None


def nccl_version() -> str:
    """Ask the NCCL that is loaded for its version, "" where that cannot be done."""
    code = c_int()
    try:
        error_code = CDLL(LIBRARY).ncclGetVersion(byref(code))
    except (OSError, AttributeError):
        return ""
    return "" if error_code else shown_version(code.value)


def shown_version(code: int) -> str:
    """Read NCCL's number of its version.

    >>> shown_version(23004), shown_version(2708)
    ('2.30.4', '2.7.8')
    """
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def capsule(communicator: Foreign) -> Foreign:
    """Wrap a communicator as TensorRT takes it."""
    if not communicator.ptr:
        raise RunError("the NCCL communicator is closed")
    new_capsule = pythonapi.PyCapsule_New
    new_capsule.restype, new_capsule.argtypes = py_object, [c_void_p, c_char_p, c_void_p]
    return new_capsule(c_void_p(communicator.ptr), b"ncclComm_t", None)
