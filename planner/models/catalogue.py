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
from topology.base import InputError, nearest_names, read_up_to, shipped_table, shown, unknown

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
_LARGEST_CONFIG: Final = 10 * 2**20  # bytes
_TEXT_ENCODERS: Final = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4")
_TWO_TRANSFORMERS: Final = {"wan2.1-14b": "wan2.2-a14b"}  # what two transformers make of an entry
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
    if "/" not in text or _path_kind(text):
        return ""
    repository = _repositories().get(text.lower())
    return repository.model if repository else ""


@cache
def repositories() -> dict[str, str]:
    """Read catalogue names by the repositories of their weights, in lower case."""
    return {key: repository.model for key, repository in _repositories().items()}


@cache
def _repositories() -> dict[str, Repository]:
    """Read repositories by their names in lower case; the usual one of a model comes first."""
    all_repositories = load_repositories(_packaged("repositories"), _packaged("quantised"))
    return {repository.name.lower(): repository for repository in all_repositories}


@cache
def catalogued(name: str, repository: str = "") -> Model:
    """Read a catalogue entry: its configuration through its reader, and its usual request.

    repository : of the weights, which may be quantised ones; the usual one where it names none.
    """
    entry = _entry(name)
    default_weights = (weights for weights in _repositories().values() if weights.model == name)
    weights = _repositories().get(repository.lower()) or next(default_weights, None)
    quantization = (
        {"quantization_config": weights.quantization} if weights and weights.quantization else {}
    )
    fields = Fields(where=name, values={**entry.config, **quantization})
    model = replace(
        reader_of(fields).read(fields),
        name=name,
        source=entry.source,
        repository=weights.name if weights else "",
    )
    return _completed(model, entry)


def _completed(model: Model, entry: CatalogueEntry) -> Model:
    if model.kind != "diffusion":
        return model
    return complete(model, entry, _vaes(), _encoders() if entry.encoders else {})


def _from_path(text: str) -> Model:
    path, path_kind = Path(text), _path_kind(text)
    if path_kind == "folder":
        return _from_folder(path)
    if path_kind == "file" and path.suffix == ".onnx":
        return _from_graph(path)
    if path_kind == "file":
        name = _folder_name(path.parent) if path.name == "config.json" else _path_text(path.stem)
        return _configured(_config_fields(path), name=name)
    if os.sep in text and nearest_names(text, repositories()):
        raise unknown("model", text, repositories())
    if path.suffix in (".json", ".onnx") or os.sep in text:
        raise InputError(f"no such file or folder: {_path_text(text)}")
    raise unknown("model", text, [*names(), *ALIASES])


def _from_graph(path: Path) -> Model:
    """Read an ONNX file: what is recognised in its graph, completed as a lone config.json is."""
    from planner.models.onnx.reading import read_onnx  # noqa: PLC0415  # few have such a file

    where = _path_text(path)
    configuration = read_onnx(path, where)
    model = _configured(
        Fields(where=where, values=configuration.config), name=_path_text(path.stem)
    )
    return replace(model, assumed=(*model.assumed, *configuration.assumed))


def _path_kind(text: str) -> str:
    """Say what a path leads to, "" for nothing or for text that cannot be a path."""
    try:
        if not text or Path(text).is_dir():
            return "folder" if text else ""
        return "file" if Path(text).exists() else ""
    except (OSError, ValueError):  # too long, or with a null character
        return ""


def _from_folder(folder: Path) -> Model:
    if _path_kind(str(folder / "model_index.json")) == "file":
        return _from_pipeline(folder)
    path = folder / "config.json"
    if _path_kind(str(path)) != "file":
        raise InputError(f"{_path_text(folder)}: no config.json and no model_index.json in it")
    return _configured(_config_fields(path), name=_folder_name(folder))


def _config_fields(path: Path) -> Fields:
    """Read a config.json; modelopt writes how weights are stored into a file beside it."""
    fields, quant_path = _read_fields(path), path.with_name("hf_quant_config.json")
    has_quantisation = fields.has("quantization_config", "compression_config")
    if path.name != "config.json" or has_quantisation or _path_kind(str(quant_path)) != "file":
        return fields
    quantisation = _read_fields(quant_path).table("quantization")
    values = {"quantization_config": quantisation.values} if quantisation else {}
    return replace(fields, values={**fields.values, **values})


def _folder_name(folder: Path) -> str:
    return _path_text(folder.resolve().name or "model")


def _configured(fields: Fields, *, name: str, transformers: int = 1) -> Model:
    """Read a lone config.json; request, autoencoder and encoders are those of the usual entry."""
    model = replace(reader_of(fields).read(fields), name=name)
    usual_name = model.usual
    if not usual_name:
        return model
    if transformers == 2:
        usual_name = _TWO_TRANSFORMERS.get(usual_name, usual_name)
    entry = replace(_entry(usual_name), transformers=transformers)
    assumption = f"size, steps and passes of a request, autoencoder and encoders as of {usual_name}"
    return replace(_completed(model, entry), assumed=(*model.assumed, assumption))


def _from_pipeline(folder: Path) -> Model:
    index = _read_fields(folder / "model_index.json")
    if not _has_component(index, "transformer"):
        wanted = "a pipeline with a transformer"
        raise InputError(f"{index.where}: transformer: got nothing, wanted {wanted}")
    has_second = _has_component(index, "transformer_2") and (folder / "transformer_2").is_dir()
    config = _read_fields(folder / "transformer" / "config.json")
    model = _configured(config, name=_folder_name(folder), transformers=2 if has_second else 1)
    model = replace(model, source=_path_text(folder))
    return _with_encoders(_with_vae(model, index, folder), index, folder)


def _with_vae(model: Model, index: Fields, folder: Path) -> Model:
    if not _has_component(index, "vae") or not (folder / "vae").is_dir() or model.latent is None:
        return model
    config = _read_fields(folder / "vae" / "config.json")
    name, model_latent = recognised(config, _vaes()), model.latent
    spatial, temporal = strides(config)
    latent = replace(
        model_latent,
        spatial=spatial or model_latent.spatial,
        temporal=temporal or model_latent.temporal,
    )
    if not name:
        assumption = (
            f"{config.where}: an autoencoder nobody has measured; costs as of the usual one"
        )
        return replace(model, latent=latent, assumed=(*model.assumed, assumption))
    return replace(model, latent=latent, vae=_vaes()[name].vae)


def _with_encoders(model: Model, index: Fields, folder: Path) -> Model:
    """Take text encoders from the folder; each reads as many tokens as its usual counterpart."""
    components = [
        component
        for component in _TEXT_ENCODERS
        if _has_component(index, component) and (folder / component).is_dir()
    ]
    if not components:
        return model
    usual_tokens = [encoder.tokens for encoder in model.encoders] or [_USUAL_PROMPT]
    tokens = [*usual_tokens, *usual_tokens[-1:] * len(components)]
    try:
        encoders = tuple(
            _encoder_of(_read_fields(folder / component / "config.json"), component, count)
            for component, count in zip(components, tokens, strict=False)
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


def _has_component(index: Fields, component: str) -> bool:
    """Whether a pipeline has a component; [null, null] stands for none."""
    entry = index.values.get(component)
    return isinstance(entry, list) and any(entry)


def _read_fields(path: Path) -> Fields:
    return parse(_read_text(path), _path_text(path))


def _path_text(path: str | Path) -> str:
    """Write a path for a message: on one line, and not for ever."""
    return repr(str(path)[-200:])[1:-1]


def _read_text(path: Path) -> str:
    """Read a file that should be small text."""
    path_text = _path_text(path)
    try:
        if not path.is_file():
            raise InputError(f"{path_text}: not a file")
        if path.stat().st_size > _LARGEST_CONFIG:
            raise InputError(f"{path_text}: larger than 10 MiB, wanted a config.json")
        return read_up_to(path, _LARGEST_CONFIG).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path_text}: not UTF-8 text, wanted a config.json") from None
    except OSError as error:
        raise InputError(f"{path_text}: cannot be read: {error.strerror}") from None


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
