"""Stand-ins for engines of the exported runner in C++: lines of what each says of itself."""

import json

BYTES = 1000
"""What the first engine of a folder works in; each further one a byte more."""


def write_engines(folder, **tensors):
    """Write a stand-in for each engine of a folder, for several devices only by its layers.

    tensors : more that an engine has, by its network's name.
    """
    (folder / "engines").mkdir(exist_ok=True)
    plan = json.loads((folder / "plan.json").read_text())
    for number, engine in enumerate(plan["engines"]):
        document = json.loads((folder / "networks" / f"{engine['name']}.json").read_text())
        sides = [document[side] for side in ("inputs", "tables", "outputs")]
        own = [one["name"] for side in sides for one in side] + tensors.get(engine["name"], [])
        for file in engine["files"]:
            about = [file.split("/")[1], str(ranks_of(document)), str(BYTES + number)]
            (folder / file).write_text("\n".join([*about, *own]))


def ranks_of(document):
    """Count the ranks of the layer that has most, as TensorRT does when it loads an engine."""
    return max((layer.get("ranks", 1) for layer in document["layers"]), default=1)
