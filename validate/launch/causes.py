"""What a dead, silent or late rank probably suffers from, read off what it last said."""

import re
import signal
from typing import Final

from validate.launch.progress import Beat

P2P: Final = (
    "peer-to-peer access between the GPUs is broken (PCIe ACS or IOMMU): try NCCL_P2P_DISABLE=1"
)
_MEMORY: Final = "/dev/shm is too small: NCCL and PyTorch need 1 GB (docker run --shm-size=1g)"  # noqa: S108
_NCCL: Final = (
    "NCCL was not found: libnccl.so.2, then libnccl.so, is looked for along LD_LIBRARY_PATH"
)
_VERSIONS: Final = "the versions of driver, CUDA and NCCL do not fit together"
_NETWORK: Final = "the network between the ranks fails, or another rank died first"

_SIGNS: Final = (
    (r"libnccl\S*: cannot open|libnccl\S* not found|nccl.*(not built|not available)", _NCCL),
    (r"/dev/shm|shared memory segment|No space left on device", _MEMORY),  # noqa: S108
    (r"[Oo]ut ?[Oo]f ?[Mm]emory", "out of memory"),
    (r"driver version is insufficient|version mismatch|no kernel image|undefined sym", _VERSIONS),
    (r"Address already in use|EADDRINUSE", "another run holds the port"),
    (r"p2p|peer access|ncclUnhandledCudaError|unhandled cuda error", P2P),
    (r"ncclSystemError|unhandled system error|socket|onnection (refused|reset)", _NETWORK),
)  # fmt: skip
OTHER_CASES: Final = "asked for other cases than rank 0"
_AFTERMATH: Final = (
    r"onnection (closed|reset)|ncclRemoteError|Broken pipe|recvValue failed|"
    rf"rank \d+ was {OTHER_CASES}"
)
_EXCEPTION: Final = r"^\s*(\S*(Error|Exception|Interrupt)\b.*|rank \d+: .*|planner: .*)"
_SIGNALS: Final = {
    "SIGKILL": "the system killed it, which usually means that host memory ran out",
    "SIGBUS": _MEMORY,
    "SIGSEGV": _VERSIONS,
}


def sign(log: str) -> str:
    """Read a likely cause off the end of a log, "" where nothing is known.

    >>> sign("OSError: libnccl.so.2: cannot open shared object file")[:18]
    'NCCL was not found'
    """
    for pattern, cause in _SIGNS:
        if re.search(pattern, log):
            return cause
    return ""


def is_aftermath(log: str) -> bool:
    """Whether a rank only died because another had died before."""
    return bool(re.search(_AFTERMATH, log))


def last_words(log: str) -> str:
    r"""Return the last line of a log that names an error, or the last one at all.

    >>> last_words("Traceback ...\nValueError: no\nException ignored in: <x>\n")
    'ValueError: no'
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    error_lines = [
        line for line in lines if re.match(_EXCEPTION, line) and "Exception ignored" not in line
    ]
    return (error_lines or lines or [""])[-1][:300]


def death_words(code: int, beat: Beat, log: str) -> tuple[str, str]:
    """Say how a rank died, and why it may have, "" where nothing is known."""
    if code < 0:
        causes_by_signal = {getattr(signal, name, 0): cause for name, cause in _SIGNALS.items()}
        cause = causes_by_signal.get(-code, sign(log))
        return f"died with signal {-code}{where(beat)}", cause
    words = re.sub(r"^(rank \d+|planner): ", "", last_words(log))
    return f"ended with code {code}{where(beat)}" + (f": {words}" if words else ""), sign(log)


def ended(code: int, log: str) -> str:
    """Say how a process that a rank started ended, its last words, and a likely cause.

    >>> ended(1, "ValueError: no such flag")
    'ended with code 1: ValueError: no such flag'
    """
    event, cause = death_words(code, Beat(phase="its benchmark"), log)
    event = event.replace(" in its benchmark", "")
    return event + (f"; likely cause: {cause}" if cause else "")


def late(beat: Beat, *, alone: bool = False) -> str:
    """Say that a rank is late, where, and why it may be."""
    cause = guess(beat, alone=alone)
    return f"late{where(beat)}, after {beat.deadline - beat.since:.0f} s; likely cause: {cause}"


def guess(beat: Beat, *, alone: bool = False) -> str:
    """Guess why a rank hangs, by what it does.

    >>> guess(Beat(phase="rendezvous"))
    'another rank never showed up, or cannot reach this one'
    """
    if beat.phase.startswith("rendezvous"):
        return "another rank never showed up, or cannot reach this one"
    if beat.waits and beat.group is not None and not alone:
        return "another rank is stuck or gone" + (f", or {P2P}" if beat.gpus else "")
    if beat.op.startswith("compile"):
        return "compilation takes longer than its limit"
    return "this rank is slow or stuck: another process may use its GPU or CPU"


def where(beat: Beat) -> str:
    """Say in which phase a rank is, and at which operation."""
    phase = f" in {beat.phase}" if beat.phase else " before it began"
    return phase + (f" at {beat.op}" if beat.op else "")
