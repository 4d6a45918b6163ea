"""One rank of a benchmark: takes cases, measures them, writes rows.

Started by the session of `validate.bench.system`. A case that fails is a row with its error; after
one that hangs, the session ends all ranks and starts them again behind that case.
"""

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from topology.base import InputError
from topology.base.values import dataclass
from validate.bench import system
from validate.bench.cases import Measurement, all_cases, runs
from validate.fit.rows import Row, done, failure, read_rows
from validate.launch import Progress, begin

STUCK: Final = 45.0  # s: a case that takes longer hangs
SLOW: Final = {"compiled": 150.0, "stack": 150.0, "forced": 60.0, "memory": 90.0}
TIDY: Final = 32 * 2**30  # B that the allocator may keep

Document = dict[str, Any]
Reached = tuple[int, int]
"""Cases behind a run, of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One rank: what it is told, and how it talks to the others.

    progress : its heartbeat. control : a group of the hosts; data : of the devices. Both None on
    one rank.
    """

    task: system.RankTask
    progress: Progress
    device: torch.device
    store: dist.Store
    control: dist.ProcessGroup | None
    data: dist.ProcessGroup | None

    @property
    def rank(self) -> int:
        return self.task.place.rank

    def agree(self, text: str) -> str:
        """Return what rank 0 says."""
        if self.control is None:
            return text
        texts: list[str] = [text]
        dist.broadcast_object_list(texts, src=0, group=self.control, device=torch.device("cpu"))
        return texts[0]

    def all_hear(self, text: str) -> list[str]:
        """Return what every rank says, in order."""
        if self.control is None:
            return [text]
        texts: list[str] = [""] * self.task.place.world
        dist.all_gather_object(texts, text, group=self.control)
        return texts

    @property
    def left(self) -> float:
        """Seconds in which a case may begin."""
        return self.task.until - time.time()


def main() -> None:
    """Run as one rank, and leave without looking back."""
    task = system.task()
    world = _join(task)
    candidates = all_cases(task.place.world, small=task.small)
    cases = [case for case in candidates if case.tier <= task.tiers]
    if world.rank == 0:
        try:
            document = describe(world.device, task.place.world, task.settings)
            system.keep_manifest(task.folder, document)
        except InputError as error:
            system.say(f"rank 0: {error}")
            system.leave(system.REFUSED_CODE)
    _run_all(cases, world)
    world.all_hear("done")
    world.progress.end()
    # Communicators that failed once may hang when they are taken down; there is nothing to save.
    system.leave(0)


def _join(task: system.RankTask) -> World:
    place, progress = task.place, begin(task.place)
    device = torch.device(task.device, place.local if task.device == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = dist.TCPStore(
        place.address,
        place.port,
        place.world,
        is_master=place.rank == 0,
        timeout=timedelta(seconds=120),
    )
    control = data = None
    if place.world > 1:
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("world", store),
            rank=place.rank,
            world_size=place.world,
            timeout=timedelta(seconds=300),
        )
        control = dist.group.WORLD
        backend = "nccl" if device.type == "cuda" else "gloo"
        data = dist.new_group(list(range(place.world)), backend=backend)
    return World(
        task=task,
        progress=progress,
        device=device,
        store=dist.PrefixStore("cases", store),
        control=control,
        data=data,
    )


def _run_all(cases: Sequence[Measurement], world: World) -> None:
    finished = _finished_keys(world)
    pending_cases = [case for case in cases if case.key not in finished]
    done_count = len(cases) - len(pending_cases)
    for number, group in enumerate(runs(pending_cases)):
        run_group = _run_jointly if group[0].together else _run_separately
        if not run_group(group, world, (done_count, len(cases)), number):
            return
        done_count += len(group)


def _finished_keys(world: World) -> frozenset[str]:
    """Cases that are done already, as rank 0 reads them."""
    keys: frozenset[str] = frozenset()
    if world.rank == 0:
        keys = done(read_rows(system.mended_rows(world.task.folder), system.ROWS))
    return frozenset(filter(None, world.agree("\n".join(sorted(keys))).split("\n")))


def _run_jointly(group: Sequence[Measurement], world: World, reached: Reached, _: int) -> bool:
    for step, case in enumerate(group):
        if world.agree("go" if world.left > 0 else "stop") != "go":
            return False
        rows = _attempt(case, world, f"{reached[0] + step + 1}/{reached[1]}")
        own_error = next((row.error for row in rows if row.error), "")
        errors = [error for error in world.all_hear(own_error) if error]
        if errors:
            rows = [failed(case, world.rank, errors[0])] if world.rank == 0 else []
        elif world.rank and case.family not in ("anchor", "memory"):
            rows = []
        system.append(world.task.folder, rows)
    return True


def _run_separately(
    group: Sequence[Measurement], world: World, reached: Reached, number: int
) -> bool:
    """Take the next case that nobody has taken, until there are none."""
    while world.left > 0:
        step = world.store.add(f"group {number}", 1) - 1
        if step >= len(group):
            break
        rows = _attempt(group[step], world, f"{reached[0] + step + 1}/{reached[1]}")
        system.append(world.task.folder, rows)
    return "stop" not in world.all_hear("go" if world.left > 0 else "stop")


def _attempt(case: Measurement, world: World, number: str) -> list[Row]:
    """Run a case, the one of that `number`; an error is a row."""
    from validate.bench.measure import measure  # noqa: PLC0415  # compilers are slow to import

    minutes, seconds = divmod(int(max(0.0, world.left)), 60)
    phase = f"{number}, {minutes}:{seconds:02} left at most: {case.key}"
    world.progress.phase(phase, SLOW.get(case.family, STUCK))
    try:
        return [
            Row(
                key=case.key,
                family=case.family,
                sizes=dict(case.sizes),
                mode=mode,
                values=values,
                rank=world.rank,
            )
            for mode, values in measure(case, world.device, world.rank, world.data)
        ]
    except Exception as error:  # noqa: BLE001  # whatever it is, the next case may be fine
        return [failed(case, world.rank, f"{type(error).__name__}: {error}")]
    finally:
        world.progress.phase(phase, system.SILENT_LIMIT)  # until others have come as far
        if world.device.type == "cuda" and torch.cuda.memory_reserved(world.device) > TIDY:
            torch.cuda.empty_cache()


def failed(case: Measurement, rank: int, reason: str) -> Row:
    """Write down why a case has no result."""
    row = failure(case.key, rank, " ".join(reason.split())[:300])
    return replace(row, sizes=dict(case.sizes))


def describe(device: torch.device, ranks: int, settings: Mapping[str, str]) -> Document:
    """Describe the machine as a JSON document.

    settings : what the session found outside PyTorch: driver, topology, environment, date.
    """
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    return {
        "machine": {
            "gpus": [_gpu(index) for index in range(count)],
            "ranks": ranks,
            "cpu": platform.processor() or platform.machine(),
            "peer_access": count > 1 and torch.cuda.can_device_access_peer(0, 1),
        },
        "software": _software(device),
        **settings,
    }


def _gpu(index: int) -> Document:
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "uuid": str(getattr(properties, "uuid", "")),
    }


def _software(device: torch.device) -> Document:
    versions: Document = {"python": platform.python_version(), "torch": torch.__version__}
    if device.type == "cuda":
        versions["cuda"] = torch.version.cuda or ""
        versions["cudnn"] = str(torch.backends.cudnn.version())
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return versions


if __name__ == "__main__":
    main()
