"""What the form of each page asks for, and how what was filled in becomes words of its command."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from planner.models import names
from planner.models.catalogue import ALIASES
from planner.scenario.drafts import OWN_LAYERS
from planner.scenario.experts import LAW
from topology.base import InputError, number_in, shown, unknown
from topology.base.values import dataclass
from topology.catalogue import all_hardware

MOST_FIELDS: Final = 128
LONGEST: Final = 200
"""Characters of a field, but of a text."""
LONGEST_TEXT: Final = 2**20
_YES: Final = ("yes", "true", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """An option of a command as something to fill in.

    name : of the option, without its dashes. label : what stands beside it. kind : ``text``,
    ``number``, ``choice``, ``flag``, or ``paste`` for a text of many lines; of options that name a
    file too, what else they may be: ``model``, ``draft``, ``hardware`` or ``kinds`` of it, ``law``
    or ``price``, or ``file``, which is refused; ``unmodelled``, which the command refuses. hint :
    an example. choices : of a choice. repeats : may be given several times. says : what it does.
    """

    name: str
    label: str
    kind: str = "text"
    hint: str = ""
    choices: Sequence[str] = ()
    repeats: bool = False
    says: str = ""


Groups = tuple[tuple[str, tuple[Field, ...]], ...]
"""Fields under the titles that they stand below."""

_SIZE_FIELDS: Final = (
    Field(name="height", label="height, pixels", kind="number"),
    Field(name="width", label="width, pixels", kind="number"),
    Field(name="frames", label="frames", kind="number"),
    Field(name="steps", label="steps of denoising", kind="number"),
    Field(name="input-tokens", label="input tokens", kind="number"),
    Field(name="output-tokens", label="output tokens", kind="number"),
    Field(name="batch", label="results at once", kind="number"),
)
_PRECISION_FIELDS: Final = (
    Field(name="precision", label="precision", hint="bf16, fp8 ..."),
    Field(name="kv-precision", label="precision of the cache", hint="bf16, fp8"),
    Field(name="runtime", label="runtime", hint="tensorrt, torch-compile ..."),
    Field(name="engine", label="engine", hint="sglang, vllm, xdit ..."),
)
_SLO_FIELDS: Final = (
    Field(name="slo-ttft", label="time to the first token", hint="500ms"),
    Field(name="slo-tpot", label="time of each later token", hint="30ms"),
)
_DRAFT: Final = Field(name="draft", label="model that drafts tokens", kind="draft", hint="mtp")
_LOAD_FIELDS: Final = (
    Field(name="concurrency", label="requests at once", kind="number"),
    Field(name="rate", label="or requests that come", hint="5/s"),
    *_SLO_FIELDS,
    _DRAFT,
    Field(
        name="expert-distribution", label="how tokens choose experts", kind="law", hint="balanced"
    ),
)
_MODEL: Final = Field(name="model", label="model", kind="model", hint="cosmos3")
_MACHINE_FIELDS: Final = (
    Field(name="gpus", label="GPUs", kind="number", hint="8"),
    Field(name="nodes", label="hosts", kind="number"),
)
_TOPOLOGY: Final = Field(
    name="topology", label="topology, in place of a kind of node", kind="paste",
    hint="paste nvidia-smi topo -m, its XML, NCCL's XML or a cluster in TOML",
)  # fmt: skip
_ONE_KIND: Final = Field(name="hardware", label="hardware", kind="hardware", hint="h100-sxm")
_SEVERAL_KINDS: Final = Field(
    name="hardware", label="hardware, one or several", kind="kinds", hint="h100-sxm,b200"
)
_GOAL_FIELDS: Final = (
    Field(
        name="objective", label="objective", kind="choice",
        choices=("latency", "throughput", "memory", "cost"),
    ),
    Field(name="at-most-gpus", label="fewer GPUs may do", kind="flag"),
)  # fmt: skip
_PLAN: Final = Field(name="plan", label="plan", hint="cfg2.ulysses4")
_DEMAND_FIELDS: Final = (
    _MODEL,
    Field(name="rate", label="requests that come", hint="30/min"),
    Field(name="slo", label="time a request may take", hint="60s"),
    Field(name="percentile", label="of so many per cent", kind="number", hint="95"),
    _SEVERAL_KINDS,
    Field(name="price", label="cost of a GPU-hour", kind="price", hint="2.5"),
)
_REQUEST: Final = ("Request", (*_SIZE_FIELDS, *_PRECISION_FIELDS))
_PLAN_GROUPS: Final = (
    _REQUEST,
    ("Language models under load", _LOAD_FIELDS),
    ("Machine", (_TOPOLOGY,)),
)
_TARGET_FIELDS: Final = (_MODEL, _ONE_KIND, *_MACHINE_FIELDS)
FORMS: Final[Mapping[str, Groups]] = {
    "recommend": (("What on what", (*_TARGET_FIELDS, *_GOAL_FIELDS)), *_PLAN_GROUPS),
    "estimate": (("What on what", (*_TARGET_FIELDS, _PLAN)), *_PLAN_GROUPS),
    "capacity": (("Demand", _DEMAND_FIELDS), _REQUEST, ("Language models", (*_SLO_FIELDS, _DRAFT))),
}
"""Commands that have a page, each with the fields that have a label of their own."""


def fields_of(groups: Groups) -> dict[str, Field]:
    """List the fields of a page by name."""
    return {field.name: field for _, group in groups for field in group}


def words_of(page: str, groups: Groups, filled: Iterable[tuple[str, str]]) -> list[str]:
    """Write what was filled in as words of the command line; what is empty is left out.

    Raises `InputError` if there is no such field, one is there twice, or its text cannot be right.

    >>> filled = ("model", "flux"), ("gpus", "8"), ("height", " ")
    >>> words_of("recommend", FORMS["recommend"], filled)
    ['recommend', '--model=flux', '--gpus=8']
    """
    field_of, seen_names, words = fields_of(groups), set(), [page]
    for name, text in filled:
        if name not in field_of:
            raise unknown("field", name, field_of)
        if name in seen_names and not field_of[name].repeats:
            raise InputError(f"{name}: got it twice, wanted it once")
        if field_of[name].kind == "file":
            raise InputError(
                f"{name}: is for files and the machine at hand, which pages leave alone, wanted "
                f"none, or `planner {page}` itself"
            )
        seen_names.add(name)
        if text.strip():
            words.append(_option_word(field_of[name], text))
    return words


def _option_word(field: Field, text: str) -> str:
    """Write a field as an option, whose text can name no file."""
    option = f"--{field.name}"
    if field.kind == "paste":
        return f"{option}={_pasted_text(field, text)}"
    value = text.strip()
    if len(value) > LONGEST or not value.isprintable():
        expected = f"one line of at most {LONGEST} characters"
        raise InputError(f"{field.name}: got {len(value)} characters, wanted {expected}")
    if field.kind == "flag":
        _check_choice(field, value.lower(), _YES)
        return option
    _check_fileless(field, value)
    return f"{option}={value}"


def _check_fileless(field: Field, value: str) -> None:
    """Refuse what is not known by name, lest it is taken for a file, and no choice."""
    match field.kind:
        case "model":
            _check_choice(field, value.lower(), (*names(), *ALIASES))
        case "draft":
            _check_choice(field, value.lower(), (OWN_LAYERS, *names(), *ALIASES))
        case "hardware" | "kinds":
            for kind in value.split(",") if field.kind == "kinds" else [value]:
                _check_choice(field, kind.strip().lower(), all_hardware())
        case "law" if not LAW.fullmatch(value):
            raise unknown(field.name, value, ("balanced", "uniform", "power_law"))
        case "choice":
            _check_choice(field, value, field.choices)
        case "price":
            _check_price(field, value)


def _pasted_text(field: Field, text: str) -> str:
    """Take a text as such: with a line break it is no name of a file."""
    if len(text) > LONGEST_TEXT:
        complaint = f"{len(text):,} characters"
        raise InputError(f"{field.name}: got {complaint}, wanted at most {LONGEST_TEXT:,}")
    return text.replace("\r\n", "\n") + "\n"


def _check_choice(field: Field, value: str, choices: Iterable[str]) -> None:
    if value not in (all_choices := list(choices)):
        raise unknown(field.name, value, all_choices)


def _check_price(field: Field, value: str) -> None:
    try:
        number_in(value)
    except ValueError:
        raise InputError(f"{field.name}: got {shown(value)}, wanted a number") from None
