"""How the shipped tables are written: TOML text to values, and what fills a model in.

A model's file has the keys of its config.json under `config`, which go through the same reader
as a user's file, and beside them what a config.json does not say::

    kind = "datasheet"
    source = "black-forest-labs/FLUX.1-dev transformer/config.json"
    vae = "flux"
    [config]
    _class_name = "FluxTransformer2DModel"
    [encoders]  # tokens each reads
    t5-xxl = 512
    [defaults]
    kind = "datasheet"
    source = "diffusers pipeline defaults"
    height = 1024
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Final, cast, get_args

from planner.models.architecture import Defaults, Encoder, Masters, Model, Own, Vae
from planner.models.fields import CHANNELS, Fields
from topology.base import CatalogueError, Kind, check_keys, read_choice, read_sourced
from topology.base.values import dataclass

_SOURCE_KEYS: Final = ("kind", "source")
_OPTIONAL_KEYS: Final = ("vae", "transformers", "attention", "own", "encoders", "defaults")
_DECODER_UNITS: Final = (
    ("may_tile", "1"), ("overlap", "1"), ("eager", "FLOP"), ("eager_work", "1"),
    ("eager_bytes_per_pixel", "B"),
)  # fmt: skip
"""What is known of some decoders, each in its unit."""
_REQUEST_KEYS: Final = tuple(field.name for field in fields(Defaults))


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One model's file: a configuration, and the usual request, autoencoder and encoders.

    encoders : names and the tokens each reads.
    """

    name: str
    source: str
    config: Mapping[str, object]
    defaults: Defaults = Defaults()
    vae: str = ""
    encoders: tuple[tuple[str, int], ...] = ()
    transformers: int = 1
    attention: str = ""
    own: Own = Own()


@dataclass(frozen=True, slots=True, kw_only=True)
class VaeEntry:
    """A decoder, and how its own config.json names it: its class and latent channels."""

    vae: Vae
    class_name: str
    channels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Where weights of a catalogue model are; `quantization` is what its config.json says so."""

    name: str
    model: str
    quantization: Mapping[str, object] | None = None


def load_entry(name: str, table: Mapping[str, object]) -> CatalogueEntry:
    """Read the catalogue file of one model.

    Raises `CatalogueError` if a key is unknown, a table is missing or something has no source.
    """
    row = check_keys(name, table, (*_SOURCE_KEYS, "config"), _OPTIONAL_KEYS)
    _check_sourced(name, row)
    keys = Fields(where=name, values=row)
    config, encoders = keys.table("config"), keys.table("encoders")
    assert config is not None
    return CatalogueEntry(
        name=name,
        source=keys.text("source"),
        config=config.values,
        defaults=_defaults(keys.table("defaults")),
        vae=keys.text("vae", default=""),
        encoders=tuple((key, encoders.integer(key)) for key in encoders.values) if encoders else (),
        transformers=keys.integer("transformers", high=8, default=1),
        attention=keys.text("attention", default=""),
        own=_own(keys.table("own")),
    )


def load_repositories(
    listed: Mapping[str, object], quantised: Mapping[str, object]
) -> Iterator[Repository]:
    """Read repositories: those that a model's own configuration is of, and quantised ones.

    listed : a model's repositories, the usual one first. quantised : a table a repository.
    """
    keys = Fields(where="repositories", values=listed)
    for model in keys.values:
        for name in keys.texts(model):
            yield Repository(name=name, model=model)
    for row in _rows(quantised):
        check_keys(row.where, row.values, (*_SOURCE_KEYS, "model", "quantization_config"), ())
        _check_sourced(row.where, row.values)
        quantization = row.table("quantization_config")
        assert quantization is not None
        yield Repository(name=row.where, model=row.text("model"), quantization=quantization.values)


def load_vaes(tables: Mapping[str, object]) -> dict[str, VaeEntry]:
    """Read the table of decoders."""
    return {row.where: _vae(row) for row in _rows(tables)}


def load_encoders(tables: Mapping[str, object]) -> dict[str, Encoder]:
    """Read the table of encoders; the tokens each reads are a model's business, and 0 here."""
    return {row.where: _encoder(row) for row in _rows(tables)}


def complete(
    model: Model,
    entry: CatalogueEntry,
    vaes: Mapping[str, VaeEntry],
    encoders: Mapping[str, Encoder],
) -> Model:
    """Give a model the usual request, autoencoder and encoders of an entry."""
    missing = [name for name, _ in entry.encoders if name not in encoders]
    if missing or (entry.vae and entry.vae not in vaes):
        raise CatalogueError(f"{entry.name}: unknown {missing[0] if missing else entry.vae}")
    return replace(
        model,
        defaults=entry.defaults,
        vae=vaes[entry.vae].vae if entry.vae else None,
        encoders=tuple(replace(encoders[name], tokens=count) for name, count in entry.encoders),
        transformers=entry.transformers,
        attention=entry.attention,
        own=entry.own,
    )


def _rows(tables: Mapping[str, object]) -> Iterator[Fields]:
    for key, row in tables.items():
        if not isinstance(row, Mapping):
            raise CatalogueError(f"{key}: got {row!r}, wanted a table")
        yield Fields(where=key, values=row)


def _check_sourced(name: str, row: Mapping[str, object]) -> None:
    """Refuse a table without a kind and a source of its numbers."""
    read_choice(f"{name}: kind", row["kind"], get_args(Kind))
    if not str(row["source"]).strip():
        raise CatalogueError(f"{name}: no source")


def _defaults(table: Fields | None) -> Defaults:
    if table is None:
        return Defaults()
    _check_sourced(table.where, check_keys(table.where, table.values, _SOURCE_KEYS, _REQUEST_KEYS))
    return Defaults(**{key: table.integer(key) for key in _REQUEST_KEYS if table.has(key)})


def _own(table: Fields | None) -> Own:
    if table is None:
        return Own()
    check_keys(table.where, table.values, _SOURCE_KEYS, ("masters", "token_modulation", "traffic"))
    traffic = table.table("traffic") or Fields(where="", values={})
    masters = table.text("masters", default="")
    read_choice(f"{table.where}: masters", masters, get_args(Masters))
    return Own(
        traffic=tuple((name, _quantity(table, traffic, name, "1")) for name in traffic.values),
        token_modulation=table.boolean("token_modulation", default=False),
        masters=cast(Masters, masters),
    )


def _quantity(sourced: Fields, table: Fields, key: str, unit: str) -> float:
    """Read a number of a table whose kind and source stand in `sourced`."""
    where = f"{sourced.where}: {key}"
    return read_sourced(where, table.values.get(key), unit, sourced.values).value


def _vae(table: Fields) -> VaeEntry:
    vae = Vae(
        name=table.where,
        parameters=int(_quantity(table, table, "parameters", "1")),
        flop_per_pixel=_quantity(table, table, "flop_per_pixel", "FLOP"),
        peak_bytes_per_pixel=_quantity(table, table, "peak_bytes_per_pixel", "B"),
        frames_at_once=table.integer("frames_at_once", low=0),
        tile=table.integer("tile", low=0, default=0),
        parallel=table.boolean("parallel", default=False),
        **{
            name: _quantity(table, table, name, unit)
            for name, unit in _DECODER_UNITS
            if table.has(name)
        },
    )
    channels = table.integer("channels", high=CHANNELS)
    return VaeEntry(vae=vae, class_name=table.text("class"), channels=channels)


def _encoder(table: Fields) -> Encoder:
    return Encoder(
        name=table.where,
        parameters=int(_quantity(table, table, "parameters", "1")),
        layers=table.integer("layers"),
        hidden=table.integer("hidden"),
        tokens=0,
        kept=int(_quantity(table, table, "kept", "1")) if table.has("kept") else 0,
    )


def recognised(config: Fields, vaes: Mapping[str, VaeEntry]) -> str:
    """Name the decoder that a vae/config.json describes, "" where none has its class and channels.

    >>> known = {"flux": VaeEntry(class_name="AutoencoderKL", channels=16, vae=Vae(
    ...     name="flux", parameters=1, flop_per_pixel=1.0, peak_bytes_per_pixel=1.0))}
    >>> recognised(Fields(where="vae", values={"_class_name": "AutoencoderKL",
    ...                                        "latent_channels": 16}), known)
    'flux'
    """
    name = config.text("_class_name", default="")
    class_channels = {key: vae.channels for key, vae in vaes.items() if vae.class_name == name}
    default_channels = next(iter(class_channels.values()), 1)
    channels = config.integer("latent_channels", "z_dim", high=CHANNELS, default=default_channels)
    return next((key for key, count in class_channels.items() if count == channels), "")


def strides(config: Fields) -> tuple[int, int]:
    """Read the pixels and the frames that one latent covers, 0 where the file does not say."""
    blocks = config.values.get("block_out_channels")
    spatial = config.integer(
        "spatial_compression_ratio", "scale_factor_spatial", high=256, default=0
    )
    if not spatial and config.text("_class_name", default="") == "AutoencoderKL":
        spatial = 2 ** (len(blocks) - 1) if isinstance(blocks, list) and 0 < len(blocks) < 9 else 8
    names = ("temporal_compression_ratio", "scale_factor_temporal")
    return spatial, config.integer(*names, high=256, default=0)
