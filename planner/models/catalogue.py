"""The models that ship with the project, and those in a user's files. Only here are files read."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from planner.models.architecture import Encoder, Model
from planner.models.entries import (
    CatalogueEntry,
    Repository,
    VaeEntry,
    complete,
    load_encoders,
    load_entry,
    load_repositories,
    load_vaes,
    recognised,
    strides,
)
from planner.models.fields import Fields, parse
from planner.models.readers import reader_of
from topology.base import InputError, near, read_up_to, shipped_table, shown, unknown

ALIASES: Final = {
    "cosmos3": "cosmos3-nano",
    "flux": "flux.1-dev",
    "z-image-turbo": "z-image",
    "wan2.2-t2v-a14b": "wan2.2-a14b",
    "wan2.2-ti2v-5b": "wan2.2-5b",
    "wan2.1-t2v-14b": "wan2.1-14b",
    "wan2.1-t2v-1.3b": "wan2.1-1.3b",
    "deepseek-v3-0324": "deepseek-v3",
    "deepseek-r1-0528": "deepseek-r1",
    "deepseek-v3.1-terminus": "deepseek-v3.1",
    "kimi-k2-instruct": "kimi-k2",
    "llama-4-scout-17b-16e": "llama-4-scout",
    "llama-4-maverick-17b-128e": "llama-4-maverick",
    "mistral-small-24b": "mistral-small",
    "nemotron-3-nano-30b-a3b": "nemotron-3-nano",
    "nemotron-3-super-120b-a12b": "nemotron-3-super",
    "qwen3-next": "qwen3-next-80b-a3b",
}
_DATA: Final = Path(__file__).parent / "data"
_TABLES: Final = ("vaes", "encoders", "repositories", "quantised")
_LARGEST: Final = 10 * 2**20  # bytes
_PROMPTS: Final = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4")
_WITH_A_SECOND: Final = {"wan2.1-14b": "wan2.2-a14b"}  # what two transformers make of an entry
_USUAL_PROMPT: Final = 512  # tokens, where the usual entry has no encoder


@cache
def names() -> tuple[str, ...]:
    """List the catalogue's names, without aliases."""
    files = (path.name.removesuffix(".toml") for path in _DATA.glob("*.toml"))
    return tuple(sorted(set(files) - set(_TABLES)))


def read_model(path_or_name: str | os.PathLike[str] | Model) -> Model:
    """Read a model by its catalogue name, from a file or folder, or from JSON text.

    path_or_name : a catalogue name, or the repository of its weights, in any case; the path of a
        config.json, of a folder with one, of a diffusers pipeline folder with a model_index.json,
        or of an ONNX file; text that starts with ``{``; or a model, which is returned as it is.

    Raises `InputError` if there is no such model, or what is there cannot be a model.

    >>> model = read_model("FLUX")
    >>> model.name, model.layers, model.main.hidden
    ('flux.1-dev', 57, 3072)
    """
    if isinstance(path_or_name, Model):
        return path_or_name
    if not isinstance(path_or_name, str | os.PathLike):
        raise InputError(f"model: got {shown(path_or_name)}, wanted a name or a path")
    text = os.fsdecode(path_or_name)
    if text.lstrip().startswith("{"):
        return _configured(parse(text, "config.json"), name="config.json")
    name = known_as(text)
    return catalogued(name, text) if name else _from_path(text)


def known_as(text: str) -> str:
    """Look up a catalogue name by that name, an alias or its repository, in any case; "" for none.

    What lies at a path goes before a repository of the same name.

    >>> known_as("flux"), known_as("black-forest-labs/flux.1-dev"), known_as("flux-2000")
    ('flux.1-dev', 'flux.1-dev', '')
    """
    name = ALIASES.get(text.lower(), text.lower())
    if name in names():
        return name
    if "/" not in text or _what_is_at(text):
        return ""
    found = _repositories().get(text.lower())
    return found.model if found else ""


@cache
def repositories() -> dict[str, str]:
    """Read catalogue names by the repositories of their weights, in lower case."""
    return {key: found.model for key, found in _repositories().items()}


@cache
def _repositories() -> dict[str, Repository]:
    """Read repositories by their names in lower case; the usual one of a model comes first."""
    every = load_repositories(_packaged("repositories"), _packaged("quantised"))
    return {found.name.lower(): found for found in every}


@cache
def catalogued(name: str, repository: str = "") -> Model:
    """Read a catalogue entry: its configuration through its reader, and its usual request.

    repository : of the weights, which may be quantised ones; the usual one where it names none.
    """
    entry = _entry(name)
    usual = (found for found in _repositories().values() if found.model == name)
    found = _repositories().get(repository.lower()) or next(usual, None)
    stored = {"quantization_config": found.quantization} if found and found.quantization else {}
    fields = Fields(where=name, values={**entry.config, **stored})
    model = replace(
        reader_of(fields).read(fields),
        name=name,
        source=entry.source,
        repository=found.name if found else "",
    )
    return _completed(model, entry)


def _completed(model: Model, entry: CatalogueEntry) -> Model:
    if model.kind != "diffusion":
        return model
    return complete(model, entry, _vaes(), _encoders() if entry.encoders else {})


def _from_path(text: str) -> Model:
    path, what = Path(text), _what_is_at(text)
    if what == "folder":
        return _from_folder(path)
    if what == "file" and path.suffix == ".onnx":
        return _from_graph(path)
    if what == "file":
        name = _folder_name(path.parent) if path.name == "config.json" else _shown(path.stem)
        return _configured(_config(path), name=name)
    if os.sep in text and near(text, repositories()):
        raise unknown("model", text, repositories())
    if path.suffix in (".json", ".onnx") or os.sep in text:
        raise InputError(f"no such file or folder: {_shown(text)}")
    raise unknown("model", text, [*names(), *ALIASES])


def _from_graph(path: Path) -> Model:
    """Read an ONNX file: what is recognised in its graph, completed as a lone config.json is."""
    from planner.models.onnx.reading import read_onnx  # noqa: PLC0415  # few have such a file

    where = _shown(path)
    read = read_onnx(path, where)
    model = _configured(Fields(where=where, values=read.config), name=_shown(path.stem))
    return replace(model, assumed=(*model.assumed, *read.assumed))


def _what_is_at(text: str) -> str:
    """Say what a path leads to, "" for nothing or for text that cannot be a path."""
    try:
        if not text or Path(text).is_dir():
            return "folder" if text else ""
        return "file" if Path(text).exists() else ""
    except (OSError, ValueError):  # too long, or with a null character
        return ""


def _from_folder(folder: Path) -> Model:
    if _what_is_at(str(folder / "model_index.json")) == "file":
        return _from_pipeline(folder)
    path = folder / "config.json"
    if _what_is_at(str(path)) != "file":
        raise InputError(f"{_shown(folder)}: no config.json and no model_index.json in it")
    return _configured(_config(path), name=_folder_name(folder))


def _config(path: Path) -> Fields:
    """Read a config.json; modelopt writes how weights are stored into a file beside it."""
    fields, beside = _file(path), path.with_name("hf_quant_config.json")
    stated = fields.has("quantization_config", "compression_config")
    if path.name != "config.json" or stated or _what_is_at(str(beside)) != "file":
        return fields
    stored = _file(beside).table("quantization")
    values = {"quantization_config": stored.values} if stored else {}
    return replace(fields, values={**fields.values, **values})


def _folder_name(folder: Path) -> str:
    return _shown(folder.resolve().name or "model")


def _configured(fields: Fields, *, name: str, transformers: int = 1) -> Model:
    """Read a lone config.json; request, autoencoder and encoders are those of the usual entry."""
    model = replace(reader_of(fields).read(fields), name=name)
    usual = model.usual
    if not usual:
        return model
    if transformers == 2:
        usual = _WITH_A_SECOND.get(usual, usual)
    entry = replace(_entry(usual), transformers=transformers)
    assumed = f"size, steps and passes of a request, autoencoder and encoders as of {usual}"
    return replace(_completed(model, entry), assumed=(*model.assumed, assumed))


def _from_pipeline(folder: Path) -> Model:
    index = _file(folder / "model_index.json")
    if not _listed(index, "transformer"):
        wanted = "a pipeline with a transformer"
        raise InputError(f"{index.where}: transformer: got nothing, wanted {wanted}")
    second = _listed(index, "transformer_2") and (folder / "transformer_2").is_dir()
    first = _file(folder / "transformer" / "config.json")
    model = _configured(first, name=_folder_name(folder), transformers=2 if second else 1)
    model = replace(model, source=_shown(folder))
    return _with_encoders(_with_vae(model, index, folder), index, folder)


def _with_vae(model: Model, index: Fields, folder: Path) -> Model:
    if not _listed(index, "vae") or not (folder / "vae").is_dir() or model.latent is None:
        return model
    config = _file(folder / "vae" / "config.json")
    name, usual = recognised(config, _vaes()), model.latent
    spatial, temporal = strides(config)
    latent = replace(usual, spatial=spatial or usual.spatial, temporal=temporal or usual.temporal)
    if not name:
        strange = f"{config.where}: an autoencoder nobody has measured; costs as of the usual one"
        return replace(model, latent=latent, assumed=(*model.assumed, strange))
    return replace(model, latent=latent, vae=_vaes()[name].vae)


def _with_encoders(model: Model, index: Fields, folder: Path) -> Model:
    """Take text encoders from the folder; each reads as many tokens as its usual counterpart."""
    parts = [part for part in _PROMPTS if _listed(index, part) and (folder / part).is_dir()]
    if not parts:
        return model
    usual = [encoder.tokens for encoder in model.encoders] or [_USUAL_PROMPT]
    tokens = [*usual, *usual[-1:] * len(parts)]
    try:
        encoders = tuple(
            _encoder_of(_file(folder / part / "config.json"), part, count)
            for part, count in zip(parts, tokens, strict=False)
        )
    except InputError as error:
        return replace(model, assumed=(*model.assumed, f"usual encoders, since {error}"))
    return replace(model, encoders=encoders)


def _encoder_of(fields: Fields, name: str, tokens: int) -> Encoder:
    model = reader_of(fields).read(fields)
    ffn = model.main.ffn if model.family in ("t5", "umt5") else None
    return Encoder(
        name=name,
        parameters=model.parameters,
        layers=model.layers,
        hidden=model.main.hidden,
        tokens=tokens,
        kept=0 if ffn is None else model.layers * ffn.width * model.main.hidden,
    )


def _listed(index: Fields, part: str) -> bool:
    """Whether a pipeline has a component; [null, null] stands for none."""
    entry = index.values.get(part)
    return isinstance(entry, list) and any(entry)


def _file(path: Path) -> Fields:
    return parse(_text(path), _shown(path))


def _shown(path: str | Path) -> str:
    """Write a path for a message: on one line, and not for ever."""
    return repr(str(path)[-200:])[1:-1]


def _text(path: Path) -> str:
    """Read a file that should be small text."""
    shown = _shown(path)
    try:
        if not path.is_file():
            raise InputError(f"{shown}: not a file")
        if path.stat().st_size > _LARGEST:
            raise InputError(f"{shown}: larger than 10 MiB, wanted a config.json")
        return read_up_to(path, _LARGEST).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{shown}: not UTF-8 text, wanted a config.json") from None
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror}") from None


@cache
def _entry(name: str) -> CatalogueEntry:
    return load_entry(name, _packaged(name))


@cache
def _vaes() -> dict[str, VaeEntry]:
    return load_vaes(_packaged("vaes"))


@cache
def _encoders() -> dict[str, Encoder]:
    return load_encoders(_packaged("encoders"))


def _packaged(name: str) -> dict[str, Any]:
    return shipped_table(_DATA / f"{name}.toml")
