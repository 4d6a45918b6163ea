"""Pages as HTTP has them, asked by schemathesis where it is installed (the extra `schema`)."""

import pytest
from hypothesis import settings

from planner.command import serve
from planner.web import app as web
from planner.web.fields import fields_of

schemathesis = pytest.importorskip("schemathesis")
PAGES = serve.pages()
UNKNOWN = schemathesis.checks.positive_data_acceptance
"""A schema says no more of a size than that it is a number, a command which numbers can be."""
NAMED = {
    "model": ["flux", "llama-3.1-8b", "no-such"],
    "hardware": ["h100-sxm", "l40s", "b200"],
    "plan": ["ulysses2", "tp2", "single", "nonsense"],
    "rate": ["6/min", "-1/s", "1"],
    "slo": ["20s", "1ms", "soon"],
    "topology": ["GPU0 X"],
}
KINDS = {"number": {"type": "integer"}, "flag": {"type": "string", "enum": ["yes", "no"]}}
ANSWER = {"type": "object", "minProperties": 1}
ERROR = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {"error": {"type": "string", "pattern": "^[^\n]+$"}},
}


async def here(words):
    """Answer in this process."""
    return serve.told(words)


def told(schema):
    return {"description": "-", "content": {"application/json": {"schema": schema}}}


def parameter(field):
    named = {"type": "string", "enum": NAMED.get(field.name, [])}
    kind = named if field.name in NAMED else KINDS.get(field.kind, {"type": "string"})
    return {"name": field.name, "in": "query", "schema": kind, "required": field.kind == "model"}


def operation(groups):
    fields = [
        field for field in fields_of(groups).values() if field.kind not in ("file", "unmodelled")
    ]
    return {
        "parameters": [*map(parameter, fields)],
        "responses": {
            "200": told(ANSWER),
            **dict.fromkeys(("400", "415", "422"), told(ERROR)),
        },
    }


SCHEMA = schemathesis.openapi.from_dict({
    "openapi": "3.1.0",
    "info": {"title": "planner serve", "version": "1"},
    "paths": {
        f"/{name}": dict.fromkeys(("get", "post"), operation(groups))
        for name, groups in PAGES.items()
    },
})  # fmt: skip
SCHEMA.app = web.app(here, PAGES, ["*"], 2)


@SCHEMA.parametrize()
@settings(max_examples=8, deadline=None)
def test_every_answer_is_data_or_one_line_that_says_what_was_wrong(case):
    case.query = {**(case.query or {}), "format": "json"}
    case.call_and_validate(excluded_checks=[UNKNOWN])
