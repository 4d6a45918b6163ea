"""Which ranks an nccl-tests log lists, and on how many hosts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_RANK: Final = re.compile(
    r"Rank\s{1,9}(\d{1,9})\s.{0,99}?(?:\bon\s{1,9}(\S{1,255})\s{1,9})?device\s{1,9}(\d{1,9})"
    r"\s{1,9}\[([^\]]{0,40})\]\s*(.*)$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One line of a list of ranks; host and product are empty where the line has none."""

    number: int
    host: str
    device: int
    bus: str
    product: str


def read_rank(line: str) -> Rank | None:
    """Read a line of the list, whose host some people cut away; None for any other line.

    >>> read_rank("#  Rank  3 Group  0 Pid 7 on  node1 device  1 [0x0b] NVIDIA L40S").host
    'node1'
    >>> read_rank("#  Rank  3 Group  0 Pid 7 device  1 [0000:0b:00] NVIDIA B200").product
    'NVIDIA B200'
    """
    match = _RANK.search(line)
    if match is None:
        return None
    number, host, device, bus, product = match.groups()
    return Rank(
        number=int(number),
        host=host or "",
        device=int(device),
        bus=bus,
        product=product.strip(),
    )


def ranks_listed(ranks: Sequence[Rank]) -> int:
    """Count the ranks by the highest number."""
    return max(rank.number for rank in ranks) + 1


def is_whole(ranks: Sequence[Rank]) -> bool:
    """Whether the list has every rank up to its highest."""
    return len({rank.number for rank in ranks}) == ranks_listed(ranks)


def hosts_of(ranks: Sequence[Rank], gpus: int) -> int:
    """Count the hosts: by name, or by devices a host where names or ranks are missing."""
    named = all(rank.host for rank in ranks)
    if named and len({rank.number for rank in ranks}) == gpus:
        return len({rank.host for rank in ranks})
    return max(1, gpus // devices_of(ranks))


def devices_of(ranks: Sequence[Rank]) -> int:
    """Count the GPUs of a host by the highest device."""
    return 1 + max(rank.device for rank in ranks)


def full_host(ranks: Sequence[Rank]) -> int | None:
    """Count the GPUs of a host, where the list shows one whole: another follows."""
    several = len({rank.host for rank in ranks}) > 1
    return devices_of(ranks) if several else None


def shared_device(ranks: Sequence[Rank]) -> str:
    """Say that two ranks list the same GPU; empty where none do.

    >>> one, other = (
    ...     read_rank(f"#  Rank {n} Group 0 Pid {n} on lab device 0 [0000:02:00] GPU") for n in "01"
    ... )
    >>> shared_device([one, other])
    'ranks 0 and 1 both list device 0 [0000:02:00] of lab: one GPU, or hosts of one name'
    """
    seen: dict[tuple[str, int, str], int] = {}
    for rank in ranks:
        first = seen.setdefault((rank.host, rank.device, rank.bus), rank.number)
        if first != rank.number and rank.host:
            return (
                f"ranks {first} and {rank.number} both list device {rank.device} [{rank.bus}] "
                f"of {rank.host[:40]}: one GPU, or hosts of one name"
            )
    return ""
