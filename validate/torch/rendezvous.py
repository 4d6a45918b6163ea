"""Ranks meet: they find each other, agree on what became of a case, and never wait for ever.

What is agreed on goes through a key-value store over TCP, not through NCCL, so that a rank which
failed can still say so.
"""

import json
from contextlib import suppress
from dataclasses import field, replace
from datetime import timedelta
from typing import Final, cast

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from topology.base import ModelError
from topology.base.values import dataclass
from validate.launch import Place, Progress, unheard
from validate.launch.peers import watch

RENDEZVOUS_S: Final = 60
PATIENCE_S: Final = 900
SETTLE_S: Final = 15
"""How long a rank that failed waits for the others to say the same."""


class ApartError(ModelError):
    """Ranks no longer agree: one failed while others went on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where ranks exchange a few words."""

    place: Place
    store: Store
    progress: Progress = field(default_factory=unheard)

    def say(self, topic: str, words: object, patience_s: float = PATIENCE_S) -> list[object]:
        """Tell every rank something, and hear what each says of the same topic, in rank order.

        Raises ApartError if a rank says nothing for `patience_s`.
        """
        self.store.set(f"{topic}/{self.place.rank}", json.dumps(words))
        keys = [f"{topic}/{rank}" for rank in range(self.place.world)]
        self.progress.message(f"words on {topic}".encode(), ())
        try:
            self.store.wait(keys, timedelta(seconds=patience_s))
        except RuntimeError:
            missing = [r for r, key in enumerate(keys) if not self.store.check([key])]
            raise ApartError(
                f"rank {missing[0] if missing else '?'} says nothing of {topic}"
            ) from None
        self.progress.waits(now=False)
        return [json.loads(self.store.get(key)) for key in keys]

    def leave(self) -> None:
        """Say good-bye; rank 0, at whose place all meet, goes last, and does not wait for ever."""
        with suppress(RuntimeError):
            self.store.set(f"left/{self.place.rank}", "")
            if self.place.rank == 0:
                keys = [f"left/{rank}" for rank in range(self.place.world)]
                self.store.wait(keys, timedelta(seconds=SETTLE_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeats:
    """Heartbeats of ranks in a store, by a connection that nobody else waits on."""

    store: Store
    world: int

    def tell(self, rank: int, beat: bytes) -> None:
        """Leave one's own; raises OSError where the store is gone."""
        try:
            self.store.set(f"{rank}", cast(str, beat))
        except RuntimeError as error:
            raise OSError from error

    def hear(self) -> list[bytes]:
        """Read those of all ranks; raises OSError where the store is gone."""
        try:
            return cast("list[bytes]", self.store.multi_get([f"{n}" for n in range(self.world)]))
        except RuntimeError as error:
            raise OSError from error


def meet(place: Place, progress: Progress, device: torch.device) -> Rendezvous:
    """Find the other ranks, and make NCCL (or gloo) ready.

    Raises ApartError if a rank does not arrive; it is named.
    """
    progress.phase("rendezvous", RENDEZVOUS_S + SETTLE_S)
    if device.type == "cuda":
        progress.on_gpus()
    store = open_store(place)
    beats = None if place.progress else _heartbeats(place, progress)
    gather(place, store)
    if beats is not None:
        watch(progress, beats, "the store of torchrun" if place.hosted else "rank 0")
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=PrefixStore("group", store),
        rank=place.rank,
        world_size=place.world,
        timeout=timedelta(seconds=PATIENCE_S),
        device_id=device if device.type == "cuda" else None,
    )
    return Rendezvous(place=place, store=PrefixStore("words", store), progress=progress)


def _heartbeats(place: Place, progress: Progress) -> Heartbeats:
    """Open the store once more, which is there by now, and leave a first heartbeat."""
    beats = Heartbeats(
        store=PrefixStore("beats", open_store(replace(place, hosted=True))), world=place.world
    )
    beats.tell(place.rank, bytes(progress.memory))
    return beats


def gather(place: Place, store: Store) -> None:
    """Wait until every rank has said that it is there."""
    keys = [f"here/{rank}" for rank in range(place.world)]
    store.set(keys[place.rank], "")
    try:
        store.wait(keys, timedelta(seconds=RENDEZVOUS_S))
    except RuntimeError:
        raise ApartError(absent(place, _missing(keys, store))) from None


def _missing(keys: list[str], store: Store) -> list[int]:
    """Ranks that have said nothing; rank 0 where the store, which it has, is gone too."""
    try:
        return [rank for rank, key in enumerate(keys) if not store.check([key])] or [0]
    except RuntimeError:
        return [0]


def absent(place: Place, missing: list[int]) -> str:
    """Say who did not arrive.

    >>> absent(Place(rank=0, world=4, local=0), [3])
    'rank 3 of 4 did not arrive within 60 s'
    """
    ranks = ", ".join(map(str, missing))
    subject = f"rank {ranks}" if len(missing) == 1 else f"ranks {ranks}"
    return f"{subject} of {place.world} did not arrive within {RENDEZVOUS_S} s"


def open_store(place: Place) -> Store:
    """Open the store without waiting for the other ranks: they are counted in it."""
    try:
        return cast(
            Store,
            TCPStore(
                place.address,
                place.port,
                place.world,
                is_master=place.rank == 0 and not place.hosted,
                timeout=timedelta(seconds=RENDEZVOUS_S),
                wait_for_workers=False,
            ),
        )
    except (RuntimeError, ValueError) as error:
        reason, address = " ".join(str(error).split())[:160], f"{place.address}:{place.port}"
        if place.rank and not place.hosted:
            reason = f"{absent(place, [0])}; {reason}"
        raise ApartError(f"rendezvous at {address} failed: {reason}") from None
