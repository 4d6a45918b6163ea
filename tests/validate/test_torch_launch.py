"""A run of several processes ends in time, whatever its ranks do, and says whose fault it was."""

import os
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest

from topology.base import InputError
from validate.launch import (
    LaunchResult,
    TimeLimits,
    causes,
    find_place,
    launch,
    peers,
    supervise,
    system,
)
from validate.launch.blame import Seen
from validate.launch.causes import P2P, death_words, guess, last_words, sign
from validate.launch.progress import Beat, read
from validate.launch.supervise import judge

ROOT = Path(__file__).parents[2]
RANK = """
import os, sys, time
from pathlib import Path
from validate.launch import begin, find_place
place = find_place(os.environ)
{before}
progress = begin(place)
progress.phase("warm-up", {limit})
progress.message(b"all_reduce tp x", (0, 1))
progress.waits(now=False)
{after}
progress.end()
"""
STUCK = "time.sleep(600)"


def run(tmp_path, before="", after="", limit=3000.0, world=2):
    code = RANK.format(before=before, after=after, limit=limit)
    return launch(
        world,
        [sys.executable, "-c", code],
        limits=TimeLimits(start_s=1000.0, grace_s=0.3),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        log_dir=tmp_path,
    )


@pytest.fixture
def patience_ends(monkeypatch):
    """Let limits of a run pass as soon as the given files exist, however slow the machine is."""

    def at(seconds, *paths):
        def monotonic():
            return time.monotonic() + (seconds if all(path.exists() for path in paths) else 0)

        clock = types.SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
        monkeypatch.setattr(supervise, "time", clock)

    return at


def test_ranks_that_end_well(tmp_path):
    result = run(tmp_path)

    assert result.ok
    assert result.exit_codes == (0, 0)
    assert result.message == ""


def test_a_rank_that_raises_is_named_with_its_last_words(tmp_path):
    result = run(tmp_path, after="if place.rank == 1: raise ValueError('no such thing')")

    assert not result.ok
    assert result.rank == 1
    assert result.message == (
        "rank 1: ended with code 1 in warm-up at all_reduce tp x: ValueError: no such thing"
    )


def test_a_rank_that_is_killed_ends_the_others_too(tmp_path):
    begun = time.monotonic()
    result = run(tmp_path, after=f"if place.rank == 1: os.kill(os.getpid(), 9)\n{STUCK}")

    assert time.monotonic() - begun < 600
    assert (result.rank, result.op) == (1, "all_reduce tp x")
    assert "signal 9" in result.message
    assert "memory" in result.cause


def test_a_rank_that_never_shows_up_is_named(tmp_path, patience_ends):
    begun = tmp_path / "begun"
    patience_ends(2000.0, begun)

    result = run(
        tmp_path,
        before=f"if place.rank == 1: {STUCK}",
        after=f"Path({str(begun)!r}).touch()\n{STUCK}",
    )

    assert result.rank == 1
    assert "never showed up within 1000 s" in result.message


def test_a_slow_rank_is_the_one_that_has_started_least(tmp_path, patience_ends):
    marks = [tmp_path / "rank.0", tmp_path / "rank.1"]
    patience_ends(4000.0, *marks)
    after = (
        "if place.rank == 0: progress.message(b'all_reduce tp y', (0, 1))\n"
        f"Path({str(tmp_path)!r}, f'rank.{{place.rank}}').touch()\n{STUCK}"
    )

    result = run(tmp_path, after=after)

    assert result.rank == 1
    assert result.message.startswith("rank 1: late in warm-up at all_reduce tp x, after 3000 s")
    assert "rank 0 waits in all_reduce tp y" in result.cause


def test_what_children_start_is_ended_with_them(tmp_path):
    """A rank's own child lives in its process group, and ends with the pipe that it holds."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        after = (
            "import subprocess\n"
            f"subprocess.Popen(['sleep', '600'], stdout=open({str(pipe)!r}, 'w'))\n"
            "raise SystemExit(3)"
        )
        run(tmp_path / "logs", after=after, world=1)

        reader.communicate(timeout=300)  # ends when nobody holds the pipe any more


def seen(rank, code=None, deadline=100.0, log="", **more):
    beat = Beat(since=90.0, deadline=deadline, phase="timing", **more)
    return Seen(rank=rank, code=code, beat=beat, log=log, quiet_s=20.0)


def at(rank, turns, *, waits=True, op="", **more):
    """Return a rank whose last message is of the last group; () is for words."""
    group = list(turns)[-1]
    op = op or (f"all_reduce {group}" if group else "words")
    return seen(rank, op=op, turns=turns, group=group, waits=waits, **more)


def verdict(*ranks, now=50.0, limits=None) -> LaunchResult | None:
    return judge(ranks, now, 0.0, limits or TimeLimits())


def test_ranks_within_their_time_go_on():
    assert verdict(seen(0), seen(1)) is None


def test_all_stuck_at_one_message_points_at_peer_access():
    ranks = [at(rank, {(0, 1): 3}, gpus=True) for rank in range(2)]
    found, host = (
        verdict(*[replace(rank, beat=replace(rank.beat, gpus=gpus)) for rank in ranks], now=101.0)
        for gpus in (True, False)
    )

    assert found.cause.endswith(P2P)
    assert host.cause == "another rank is stuck or gone"


PAIR, LEFT, RIGHT = (0, 1), (0, 2), (1, 3)
STILL = {
    "late": (1, "late", [at(0, {PAIR: 4}), at(1, {PAIR: 3}, waits=False)]),
    "late for words": (1, "late", [at(0, {PAIR: 3, (): 1}), at(1, {PAIR: 3}, waits=False)]),
    "one too few": (1, "stands still", [at(0, {PAIR: 4}), at(1, {PAIR: 3, (): 1})]),
    "one left out": (1, "stands still", [at(0, {PAIR: 4}), at(1, {PAIR: 4, (): 1})]),
    "one too many": (2, "stands still", [
        at(0, {(0, 1, 2): 3, (): 1}), at(1, {(0, 1, 2): 3, (): 1}), at(2, {(0, 1, 2): 4})
    ]),
    "another kind": (1, "stands still", [
        at(0, {(0, 1, 2): 3}), at(1, {(0, 1, 2): 3}, op="all_gather x"), at(2, {(0, 1, 2): 3})
    ]),
    "one left out of two groups": (2, "stands still", [
        at(0, {PAIR: 5, LEFT: 5, (): 1}), at(1, {PAIR: 5, RIGHT: 5}),
        at(2, {LEFT: 5, (2, 3): 4, (): 1}), at(3, {RIGHT: 4, (2, 3): 4}),
    ]),
    "in turns about each other": (3, "stands still", [
        at(0, {(0, 1, 2, 3): 2}), at(1, {(0, 1, 2, 3): 2}), at(2, {(2, 3): 1, (0, 1, 2, 3): 2}),
        at(3, {(0, 1, 2, 3): 1, (2, 3): 2}),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("kind", STILL)
def test_who_is_at_fault_follows_from_the_messages_of_each_group(kind):
    rank, said, ranks = STILL[kind]
    found = verdict(*ranks)

    assert (found.rank, found.message.startswith(f"rank {rank}: {said} in timing")) == (rank, True)
    assert "in which nothing moved" in found.message


def test_a_rank_that_sends_may_go_ahead_and_one_that_works_is_not_blamed_early():
    sent = [at(0, {PAIR: 4, (): 1}), at(1, {PAIR: 4}, op="send_recv pp x", waits=False)]
    busy = [at(0, {PAIR: 4}), replace(at(1, {PAIR: 3}, waits=False), used_s=15.0)]
    compiles = [at(0, {PAIR: 4}), at(1, {PAIR: 3}, waits=False, op="compile")]
    moving = [at(0, {PAIR: 4}), replace(at(1, {PAIR: 3}, waits=False), quiet_s=1.0)]

    assert verdict(*sent).rank == 1  # late for words
    assert [verdict(*ranks) for ranks in (busy, compiles, moving)] == [None] * 3
    assert verdict(*busy, now=101.0).rank == 1


def test_ranks_among_themselves_take_one_that_is_long_silent_to_be_stopped():
    """For a moment any is silent, in code that lets no other thread run."""
    ranks = [at(rank, {PAIR: 4}) for rank in range(2)]
    found = [
        peers.verdict([ranks[0], replace(ranks[1], silent_s=silent, quiet_s=quiet)])
        for silent, quiet in ((16.0, 16.0), (12.0, 16.0), (0.0, 16.0), (16.0, 9.0))
    ]

    assert [blame and blame.rank.rank for blame in found] == [1, None, None, None]
    assert peers.event(found[0]).startswith("silent in timing at all_reduce")
    assert "ranks 0, 1 wait in all_reduce" in found[0].cause


def test_ranks_among_themselves_blame_as_the_parent_does():
    for rank, said, ranks in STILL.values():
        blame = peers.verdict(ranks)
        assert (blame.rank.rank, peers.event(blame)[: len(said)]) == (rank, said)


@pytest.mark.parametrize("waits", ["distributed_c10d.py all_reduce", "streams.py synchronize"])
def test_a_rank_in_code_of_its_own_has_not_come_to_the_message_that_it_began(waits):
    codes = (waits, "mine.py nap")
    ranks = [at(rank, {PAIR: 4}) for rank in range(2)]
    found = verdict(*[replace(one, beat=replace(one.beat, code=codes[one.rank])) for one in ranks])

    assert (found.rank, found.message[:12]) == (1, "rank 1: late")


def test_the_first_to_die_is_named_not_the_one_that_lost_its_connection():
    found = verdict(
        seen(0, code=1, log="RuntimeError: Connection closed by peer [127.0.0.1]"),
        seen(1, code=1, log="RuntimeError: CUDA error: an illegal memory access"),
    )

    assert found.rank == 1


def test_everything_may_take_so_long():
    found = verdict(seen(0), seen(1), now=400.0, limits=TimeLimits(total_s=300.0))

    assert found is None or not found.ok
    late = verdict(
        seen(0, deadline=1000.0),
        seen(1, deadline=1000.0),
        now=400.0,
        limits=TimeLimits(total_s=300.0),
    )
    assert "300 s were over" in late.message


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("libnccl.so.2: cannot open shared object file", "libnccl.so.2, then libnccl.so"),
        ("Error while creating shared memory segment /dev/shm/nccl-x", "/dev/shm is too small"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "out of memory"),
        ("CUDA driver version is insufficient for CUDA runtime version", "versions"),
        ("NCCL WARN Cuda failure 'peer access is not supported'", "NCCL_P2P_DISABLE=1"),
    ],
)
def test_causes_are_read_off_logs(log, words):
    assert words in sign(log)


def test_a_bus_error_means_shared_memory():
    said, cause = death_words(-40, Beat(phase="warm-up"), "")  # of real time: it has no name
    assert (said, cause) == ("died with signal 40 in warm-up", "")
    _, cause = death_words(-7, Beat(phase="warm-up"), "")

    assert "/dev/shm" in cause


def test_what_hangs_in_a_rendezvous_waits_for_a_rank():
    assert "never showed up" in guess(Beat(phase="rendezvous"))
    assert causes.is_aftermath("Connection reset by peer")
    assert last_words("") == ""


@pytest.mark.parametrize(
    "names",
    [
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("TRT_MY_RANK", "TRT_WORLD_SIZE"),
    ],
)
def test_ranks_are_found_however_they_were_started(names):
    place = find_place({names[0]: "2", names[1]: "4"})

    assert (place.rank, place.world, place.local) == (2, 4, 2)


@pytest.mark.parametrize(("rank", "world"), [("4", "4"), ("-1", "4"), ("x", "4"), ("0", "")])
def test_a_rank_that_cannot_be_is_refused(rank, world):
    with pytest.raises(InputError, match="wanted"):
        find_place({"RANK": rank, "WORLD_SIZE": world})


HAMMER = """
import sys
from pathlib import Path
from validate.launch import system
from validate.launch.place import Place
from validate.launch.progress import SIZE, Progress

progress = Progress(Place(rank=0, world=1, local=0), system.shared(Path(sys.argv[1]), SIZE))
while True:
    progress.phase("a", 60)
    progress.op("b")
"""


def test_a_heartbeat_is_never_read_half_written(tmp_path):
    """A deadline of zero, read while it was being written, would end a run that is well."""
    file, seen, last = tmp_path / "progress.0", 0, 0
    with subprocess.Popen([sys.executable, "-c", HAMMER, str(file)], cwd=ROOT) as writer:
        try:
            while seen < 1000:
                assert writer.poll() is None
                beat = read(system.content(file))
                if beat.phase:
                    seen += 1
                    assert beat.deadline >= beat.since > 0
                    assert beat.count >= last
                    last = beat.count
        finally:
            writer.kill()

    assert last > 0
