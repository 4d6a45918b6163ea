"""A function run in a process of its own, which is ended when its time is up."""

import asyncio
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, TypeVar

R = TypeVar("R")
_START_METHOD: Final = (
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)
_PROCESS_CONTEXT: Final[Any] = multiprocessing.get_context(_START_METHOD)


class EndedError(RuntimeError):
    """The process died before it answered, as where memory is short."""


def load(modules: Sequence[str]) -> None:
    """Have processes start with these modules, where they are copies of one that waits."""
    if _START_METHOD == "forkserver":
        _PROCESS_CONTEXT.set_forkserver_preload(list(modules))


async def apart(function: Callable[[list[str]], R], words: list[str], limit_s: float) -> R:
    """Answer in a process of its own.

    function : of a module, so that another process finds it; what it returns can be pickled.
    limit_s : seconds after which the process is ended.

    Raises `TimeoutError` if it has not answered by then, or `EndedError` if it died.
    """
    receiver, sender = _PROCESS_CONTEXT.Pipe(duplex=False)
    process = _PROCESS_CONTEXT.Process(
        target=_send_answer, args=(sender, function, words), daemon=True
    )
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        process.start()
        sender.close()
        loop.add_reader(receiver.fileno(), ready.set)
        async with asyncio.timeout(limit_s):
            await ready.wait()
        answer: R = receiver.recv()
    except EOFError:
        raise EndedError from None
    finally:
        loop.remove_reader(receiver.fileno())
        receiver.close()
        process.kill()
        process.join()
    return answer


def _send_answer(
    sender: Connection, function: Callable[[list[str]], object], words: list[str]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    sender.send(function(words))
