"""Recorded calls made again on TensorRT's own network: what a builder in another language does."""

import json
import re
from ctypes import addressof, create_string_buffer

from planner.tensorrt.runner.library import TYPES

WORDS = re.compile(r'"(?:[^"\\]|\\.)*"|\S+')


class Replay:
    """A network whose calls are made again. numbers : of its constants."""

    def __init__(self, library, builder, numbers, capability):
        self.library, self.added = library, []
        self.memory = create_string_buffer(numbers, len(numbers) or 1)
        self.network, self.config = builder.create_network(0), builder.create_builder_config()
        self.config.num_compute_capabilities = 1
        self.config.set_compute_capability(getattr(library.ComputeCapability, capability), 0)

    def make(self, line):
        """Make the call of a line."""
        name, method, *words = WORDS.findall(line)
        given = [self.value(word) for word in words]
        if method.startswith("add_"):
            self.added.append(getattr(self.network, method)(*given))
            return
        parts = {"network": self.network, "config": self.config}
        one = parts[name] if name in parts else self.one(name)
        if method == "expect":
            assert (list(one.shape), one.dtype) == tuple(given), line
        elif method.endswith("="):
            setattr(one, method[:-1], given[0])
        else:
            getattr(one, method)(*given)

    def one(self, name):
        """Find a layer, or an output of it."""
        number, point, place = name.partition(".")
        layer = self.added[int(number)]
        outputs = point and hasattr(layer, "get_output")  # an input has none: it is a tensor
        return layer.get_output(int(place)) if outputs else layer

    def value(self, word):
        """Read what a call is given."""
        readers = {
            r"\[.*": lambda: [self.value(part) for part in word[1:-1].split(",") if part],
            '".*': lambda: json.loads(word),
            r"-?\d+": lambda: int(word),
            r"\d+\.\d+": lambda: self.one(word),
            r"Weights\(.*": lambda: self.weights(word[len("Weights(") : -1]),
            "|".join(TYPES.values()): lambda: getattr(self.library, word),
            r"\w+\.\w+": lambda: getattr(
                getattr(self.library, word.split(".")[0]), word.split(".")[1]
            ),
        }
        return next(read for form, read in readers.items() if re.fullmatch(form, word))()

    def weights(self, inside):
        """Read where a constant's numbers lie."""
        if not inside:
            return self.library.Weights()
        dtype, count, place = inside.split(",")
        address = addressof(self.memory) + int(place.removeprefix("@"))
        return self.library.Weights(getattr(self.library, dtype), address, int(count))


def replay(library, builder, text, numbers, capability):
    """Build what calls say, for a GPU; return the serialised engine."""
    *lines, last = text.splitlines()
    assert last == "build"
    made = Replay(library, builder, numbers, capability)
    for line in lines:
        made.make(line)
    return bytes(builder.build_serialized_network(made.network, made.config))
