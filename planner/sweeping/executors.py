"""Who runs the portions of a sweep: the cores of this machine, or the workers of a Dask cluster."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from multiprocessing import parent_process
from typing import Any, Final

from planner.sweeping.portion import Row, rows_of
from planner.sweeping.questions import Portion
from topology.base import InputError, ModelError, format_seconds, unknown

EXECUTORS: Final = ("local", "dask")
PATIENCE_S: Final = 10.0
RETRIES: Final = 3
"""How often a portion is tried again where a worker is lost."""
Done = tuple[str, list[Row]]
"""The name of a portion, and its rows."""
Executor = Callable[[Sequence[Portion]], Iterator[Done]]


def executor_of(name: str, scheduler: str = "") -> Executor:
    """Find the executor that runs the portions of a sweep.

    Raises `InputError` if there is none of that name, or a scheduler is named for one that has
    none, or the other way round.
    """
    if name not in EXECUTORS:
        raise unknown("executor", name, EXECUTORS)
    if (name == "dask") != bool(scheduler):
        expected = "an address such as tcp://10.0.0.1:8786" if name == "dask" else "none"
        scheduler_text = scheduler[:60] or "none"
        raise InputError(f"scheduler: got {scheduler_text} beside {name}, wanted {expected}")
    return dask(scheduler) if name == "dask" else local()


def local(workers: int | None = None) -> Executor:
    """Make the executor of this machine's cores."""

    def portions_done(portions: Sequence[Portion]) -> Iterator[Done]:
        count = min(workers or os.cpu_count() or 1, len(portions))
        if count < 2:
            yield from ((portion.name, rows_of(portion)) for portion in portions)
            return
        with ProcessPoolExecutor(count, initializer=_ignore_interrupts) as pool:
            names = {
                pool.submit(rows_of, submitted): submitted.name for submitted in _by_model(portions)
            }
            try:
                for future in as_completed(names):
                    yield names[future], future.result()
            except BrokenProcessPool:
                raise ModelError("a process of the sweep died, as where memory is short") from None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    return portions_done


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that started this one, and end where that is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := parent_process():
        parent.join()
        os._exit(1)  # nobody is there to take an answer


def _by_model(portions: Sequence[Portion]) -> list[Portion]:
    """Sort by model, which have most in common, and the largest first, which take longest."""
    return sorted(
        portions, key=lambda portion: (portion.asked.models.index(portion.model), -portion.gpus)
    )


def dask(scheduler: str, patience_s: float = PATIENCE_S) -> Executor:
    """Make the executor of a Dask cluster, whose workers have this package too.

    patience_s : seconds in which the scheduler has to answer.

    Raises `InputError` if dask.distributed is not installed, or no scheduler answers at the address
    in time.
    """
    try:
        distributed: Any = import_module("dask.distributed")
    except ImportError:
        remedy = "pip install 'distributed>=2024.1'"
        raise InputError(f"executor: dask needs dask.distributed: {remedy}") from None
    try:
        client = distributed.Client(scheduler, timeout=patience_s)
    except (OSError, TimeoutError, ValueError) as error:
        reason = f"{type(error).__name__} within {format_seconds(patience_s)}"
        raise InputError(f"scheduler {scheduler[:60]}: does not answer: {reason}") from None

    def portions_done(portions: Sequence[Portion]) -> Iterator[Done]:
        with client:
            names = {
                client.submit(rows_of, portion, retries=RETRIES, pure=False): portion.name
                for portion in _by_model(portions)
            }
            for future in distributed.as_completed(names):
                yield names[future], future.result()

    return portions_done
