"""Ranks meet: they find each other, agree on what became of a case, and never wait for ever.

What is agreed on goes through a key-value store over TCP, not through NCCL, so that a rank which
failed can still say so.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from topology.errors import ModelError
from validate.launch import Place, Progress

RENDEZVOUS_S: Final = 60
PATIENCE_S: Final = 900
SETTLE_S: Final = 15
"""How long a rank that failed waits for the others to say the same."""


class ApartError(ModelError):
    """Ranks no longer agree: one failed while others went on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where ranks exchange a few words. One after another: `number` counts."""

    place: Place
    store: Store

    def say(self, topic: str, words: object, patience_s: float = PATIENCE_S) -> list[object]:
        """Tell every rank something, and hear what each says of the same topic, in rank order.

        Raises
        ------
        ApartError
            If a rank says nothing for `patience_s`.
        """
        self.store.set(f"{topic}/{self.place.rank}", json.dumps(words))
        keys = [f"{topic}/{rank}" for rank in range(self.place.world)]
        try:
            self.store.wait(keys, timedelta(seconds=patience_s))
        except RuntimeError:
            missing = [r for r, key in enumerate(keys) if not self.store.check([key])]
            raise ApartError(
                f"rank {missing[0] if missing else '?'} says nothing of {topic}"
            ) from None
        return [json.loads(self.store.get(key)) for key in keys]

    def leave(self) -> None:
        """Say good-bye; rank 0, at whose place all meet, goes last."""
        self.store.set(f"left/{self.place.rank}", "")
        if self.place.rank == 0:
            keys = [f"left/{rank}" for rank in range(self.place.world)]
            with suppress(RuntimeError):
                self.store.wait(keys, timedelta(seconds=SETTLE_S))


def meet(place: Place, progress: Progress, device: torch.device) -> Meeting:
    """Find the other ranks, and make NCCL (or gloo) ready.

    Raises
    ------
    ApartError
        If a rank does not show up.
    """
    progress.phase("rendezvous", RENDEZVOUS_S)
    store = _store(place)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=PrefixStore("group", store),
        rank=place.rank,
        world_size=place.world,
        timeout=timedelta(seconds=PATIENCE_S),
        device_id=device if device.type == "cuda" else None,
    )
    return Meeting(place=place, store=PrefixStore("words", store))


def _store(place: Place) -> Store:
    try:
        return cast(
            Store,
            TCPStore(
                place.address,
                place.port,
                place.world,
                is_master=place.rank == 0 and not place.hosted,
                timeout=timedelta(seconds=RENDEZVOUS_S - 2),
            ),
        )
    except (RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())[:160]
        raise ApartError(f"rendezvous at {place.address}:{place.port} failed: {said}") from None
