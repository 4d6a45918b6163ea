"""Start the ranks of a run, watch them, and end them: nothing hangs, and a failure is one line.

The parent calls::

    result = launch(
        world_size,
        [sys.executable, "-m", "some.worker", "--job", "job.json"],
        limits=Limits(start_s=60, phase_s=120),
        env=os.environ,
        log_dir=Path("logs"),
    )
    if not result.ok:
        print(result.message)  # rank 1: died with signal 9 in warm-up at all_reduce tp; likely ...

Every rank gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (as
torchrun sets them) on top of `env`, and writes to ``log_dir/rank<r>.log``. The worker calls::

    place = find_place(os.environ)      # also under torchrun, mpirun, srun and TRT_MY_RANK
    progress = begin(place)             # a heartbeat that the parent reads
    progress.phase("rendezvous", 60)    # what is done now, and the seconds it may take
    progress.op("gemm 12")              # the operation that starts now; costs about a microsecond
    progress.message(b"all_reduce tp", (0, 1))  # the same of a message, and its ranks
    progress.end()

A phase that outlives its limit, a rank that dies, one that never begins, and one for which others
wait while nothing moves end the run: the parent kills all children and names the rank, the
operation it started last, and a likely cause. Without a parent of ours (torchrun, mpirun) each rank
watches its own limit, and once they have met they watch each other; the line is the same.
"""

from validate.launch.causes import ended, is_aftermath, last_words
from validate.launch.place import Place, find_place, is_rank
from validate.launch.progress import Progress, unheard
from validate.launch.supervise import LaunchResult, TimeLimits, begin, launch

__all__ = [
    "LaunchResult",
    "Place",
    "Progress",
    "TimeLimits",
    "begin",
    "ended",
    "find_place",
    "is_aftermath",
    "is_rank",
    "last_words",
    "launch",
    "unheard",
]
