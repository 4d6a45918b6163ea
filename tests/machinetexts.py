"""Small machines as ``nvidia-smi topo -m`` would print them, from a rule for every two GPUs."""


def matrix(count, label):
    """A matrix of `count` GPUs; `label` names the way between two of them, lower number first."""
    lines = ["\t" + "\t".join(f"GPU{i}" for i in range(count))]
    for a in range(count):
        cells = ["X" if a == b else label(min(a, b), max(a, b)) for b in range(count)]
        lines.append("\t".join([f"GPU{a}", *cells]))
    return "\n".join(lines) + "\n"


def crossed_pairs(links="NV4"):
    """Four GPUs in which NVLink joins 0 to 2 and 1 to 3."""
    return matrix(4, lambda a, b: links if b == a + 2 else "PHB")


def two_sockets(pair="PIX", inside="NODE", count=8):
    """Pairs under switches, half of them on each of two sockets."""

    def label(a, b):
        if a // 2 == b // 2:
            return pair
        return inside if a // (count // 2) == b // (count // 2) else "SYS"

    return matrix(count, label)


def far_apart(count=8):
    """GPUs of which every two meet only across sockets."""
    return matrix(count, lambda a, b: "SYS")


LISTED = """GPU 0: NVIDIA GeForce RTX 5090 (UUID: GPU-1)
GPU 1: NVIDIA GeForce RTX 4090 (UUID: GPU-2)
GPU 2: NVIDIA GeForce RTX 5090 (UUID: GPU-3)
GPU 3: NVIDIA GeForce RTX 4090 (UUID: GPU-4)
"""
MIXED = LISTED + "\n" + matrix(4, lambda a, b: "PHB")
