"""Which reader knows a class of transformer; only that one is imported.

A reader has `read(fields) -> Model`, a pure function, and `usual(fields) -> str`: the catalogue
entry whose request, autoencoder and encoders are assumed where a configuration has none.
"""

from importlib import import_module
from typing import Final, Protocol, cast

from planner.models.architecture import Model
from planner.models.fields import Fields
from planner.models.readers.classes import ARCHITECTURES, DECODERS, DIFFUSION, ENCODERS
from topology.base import InputError, unknown

_DECODER_KEYS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


class Reader(Protocol):
    """What a reader module offers."""

    def read(self, fields: Fields) -> Model: ...

    def usual(self, fields: Fields) -> str: ...


def reader_of(fields: Fields) -> Reader:
    """Import the one reader that knows this configuration.

    Raises
    ------
    InputError
        If it names a class that no reader knows, or nothing that could be a model.
    """
    if fields.has("_class_name"):
        name = fields.text("_class_name")
        if name not in DIFFUSION:
            raise unknown(f"_class_name in {fields.where}", name, DIFFUSION)
        return _module(DIFFUSION[name])
    return _module("encoder" if model_type(fields) in ENCODERS else "decoder")


def model_type(fields: Fields) -> str:
    """Name the transformers model type, "" where nothing says but the keys are a decoder's."""
    stated = fields.text("model_type", default="")
    classes = fields.texts("architectures", default=())
    known = [ARCHITECTURES[name] for name in classes if name in ARCHITECTURES]
    if stated in ENCODERS or stated in DECODERS:
        return stated
    if known:
        return known[0]
    if classes:
        raise unknown(f"architecture in {fields.where}", classes[0], ARCHITECTURES)
    if stated:
        raise unknown(f"model_type in {fields.where}", stated, [*DECODERS, *ENCODERS])
    if not fields.has(*_DECODER_KEYS):
        wanted = "the config.json of a transformer (_class_name, architectures or model_type)"
        raise InputError(f"{fields.where}: wanted {wanted}, got other keys")
    return ""


def _module(name: str) -> Reader:
    return cast(Reader, import_module(f"planner.models.readers.{name}"))
