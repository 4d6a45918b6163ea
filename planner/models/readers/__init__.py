"""Readers of configurations: a file for each class of model, or for a family of them.

A reader has `read(fields) -> Model`, a pure function, and declares what it reads: in `CLASSES` the
values of ``_class_name``, as diffusers writes them, or in `MODEL_TYPES` those of ``model_type``,
each with the ``architectures`` that stand for it, as transformers does. A file in this folder is
all that a new class needs. Only the reader that a configuration names is imported: the others are
told apart by their source, which does not quote that name.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.machinery import SourceFileLoader
from itertools import chain
from pkgutil import iter_modules
from types import ModuleType
from typing import Final, Protocol, cast

from planner.models.architecture import Model
from planner.models.fields import Fields
from topology.base import InputError, unknown

_DECODER_KEYS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


class Reader(Protocol):
    """What a reader module offers."""

    def read(self, fields: Fields) -> Model: ...


def reader_of(fields: Fields) -> Reader:
    """Import the one reader that knows this configuration.

    Raises `InputError` if it names a class that no reader knows, or nothing that could be a model.
    """
    if fields.has("_class_name"):
        name = fields.text("_class_name")
        reader = _reader("_class_name", name)
        if reader is None:
            raise unknown(f"_class_name in {fields.where}", name, _all_names("_class_name"))
        return reader
    stated_type = fields.text("model_type", default="")
    classes = fields.texts("architectures", default=())
    for key, name in (("model_type", stated_type), *(("architecture", name) for name in classes)):
        reader = _reader(key, name)
        if reader is not None:
            return reader
    if classes:
        names = _all_names("architecture")
        raise unknown(f"architecture in {fields.where}", classes[0], names)
    if stated_type:
        raise unknown(f"model_type in {fields.where}", stated_type, _all_names("model_type"))
    if not fields.has(*_DECODER_KEYS):
        wanted = "the config.json of a transformer (_class_name, architectures or model_type)"
        raise InputError(f"{fields.where}: wanted {wanted}, got other keys")
    return cast(Reader, import_module(f"{__name__}.decoder"))


def model_type(fields: Fields, known: Mapping[str, tuple[str, ...]]) -> str:
    """Name the transformers model type among those of a reader, "" where nothing says it."""
    stated_type = fields.text("model_type", default="")
    if stated_type in known:
        return stated_type
    classes = fields.texts("architectures", default=())
    return next((kind for name in classes for kind in known if name in known[kind]), "")


def _reader(key: str, name: str) -> Reader | None:
    """Import the readers whose source quotes a name until one declares it."""
    for module_name, source in _sources():
        if f'"{name}"' in source:
            module = import_module(module_name)
            if name in _declared_names(module, key):
                return cast(Reader, module)
    return None


def _all_names(key: str) -> list[str]:
    """List the names that all readers declare; for a message, so every one is imported."""
    return [
        name for module, _ in _sources() for name in _declared_names(import_module(module), key)
    ]


def _declared_names(module: ModuleType, key: str) -> tuple[str, ...]:
    """List the values of a configuration's key that a module of this folder declares."""
    if key == "_class_name":
        return getattr(module, "CLASSES", ())
    types: Mapping[str, tuple[str, ...]] = getattr(module, "MODEL_TYPES", {})
    return tuple(types) if key == "model_type" else tuple(chain.from_iterable(types.values()))


def _sources() -> Iterator[tuple[str, str]]:
    """Yield the modules of this folder, by name, with their text."""
    for module in iter_modules(__path__, f"{__name__}."):
        spec = module.module_finder.find_spec(module.name, None)
        source = cast(SourceFileLoader, spec.loader).get_source(module.name) if spec else None
        yield module.name, source or ""
