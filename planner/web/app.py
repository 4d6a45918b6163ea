"""The pages as an ASGI application: what is asked, within bounds, and what is answered."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from planner.web.apart import EndedError
from planner.web.fields import LONGEST_TEXT, MOST_FIELDS, Groups, words_of
from planner.web.form import STYLE, Filled, form
from topology.base import InputError
from topology.base.page import MAIN, content_policy, fragment, page
from topology.base.page import STYLE as LOOK
from topology.base.table import Said
from topology.base.values import dataclass

MOST_BYTES: Final = 4 * LONGEST_TEXT
"""Of a question, each letter of which may take three."""
READ_S: Final = 10.0
WAITING: Final = 8
"""Questions that wait for one of those that are being answered."""
FORM: Final = "application/x-www-form-urlencoded"
_POLICY: Final = (
    f"{content_policy(STYLE)}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_STATUS: Final = {"input": 400, "model": 422}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a command answered: its text, or the line that says what was wrong with what.

    wrong : ``input``, ``model`` where the question is right and has no answer, or nothing.
    """

    text: str
    wrong: str = ""


Ask = Callable[[list[str]], Awaitable[Told]]
"""Words of the command line to an answer; raises `TimeoutError` or `EndedError`."""


class Refused(Exception):  # noqa: N818  # it is an answer
    """A question that gets no answer; holds the status and a line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """A page, one of all, that was asked for, and what is filled in."""

    pages: Mapping[str, Groups]
    name: str
    style: str = "html"
    filled: Filled


def app(ask: Ask, pages: Mapping[str, Groups], hosts: Sequence[str], at_once: int) -> Starlette:
    """Make the application.

    pages : commands that have one, each with its fields.
    hosts : names that it is reached by; a page of another name cannot ask through a reader.
    at_once : questions that are answered at the same time.
    """
    at_work = asyncio.Semaphore(at_once)
    open_questions: set[object] = set()

    async def answered(words: list[str]) -> Told:
        if len(open_questions) >= WAITING + at_once:
            raise Refused(503, "busy: too many questions at once, ask again in a moment")
        open_questions.add(question := object())
        try:
            async with at_work:
                return await ask(words)
        except TimeoutError:
            raise Refused(504, "the answer took too long: ask for fewer GPUs") from None
        except EndedError:
            raise Refused(500, "the process that answered died, as where memory is short") from None
        finally:
            open_questions.discard(question)

    async def answer(request: Request) -> Response:
        asked_page = _Page(pages=pages, name=request.url.path[1:], filled={})
        return await _answer(asked_page, request, answered)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        line = f"{request.method} {request.url.path[:60]}: {error.detail}"
        return _error_response(
            f"{line}; pages: {', '.join(pages)}", error.status_code, error.headers
        )

    routes = [Route("/", _redirect_to_first)]
    routes += [Route(f"/{name}", answer, methods=["GET", "POST"], name=name) for name in pages]
    host_check = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    return Starlette(
        routes=routes, middleware=[host_check], exception_handlers={HTTPException: refused}
    )


async def _redirect_to_first(_: Request) -> Response:
    return RedirectResponse("/recommend", headers=_HEADERS)


def _error_response(line: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    document = json.dumps({"error": line})
    return Response(document, status, {**_HEADERS, **(headers or {})}, "application/json")


async def _answer(asked_page: _Page, request: Request, ask: Ask) -> Response:
    """Answer a page: as JSON where ``format=json`` stands beside its fields, else as HTML."""
    pairs: list[tuple[str, str]] = []
    try:
        for read_part in (
            _address_query,
            _body,
        ):  # whoever asks for JSON in the address is refused in it
            pairs += _fields(await read_part(request))
            asked_page = replace(
                asked_page, style=_answer_style([text for key, text in pairs if key == "format"])
            )
        pairs = [pair for pair in pairs if pair[0] != "format"]
        filled_fields = {key: [text for name, text in pairs if name == key] for key, _ in pairs}
        asked_page = replace(asked_page, filled=filled_fields)
        words = words_of(asked_page.name, asked_page.pages[asked_page.name], pairs)
        if asked_page.style == "html" and len(words) == 1:
            return _form_alone(asked_page)
        command_answer = await ask([*words, f"--format={asked_page.style}"])
    except InputError as error:
        return _refusal_response(asked_page, Refused(400, str(error)))
    except Refused as refused:
        return _refusal_response(asked_page, refused)
    if command_answer.wrong:
        return _refusal_response(
            asked_page, Refused(_STATUS[command_answer.wrong], command_answer.text)
        )
    if asked_page.style == "json":
        return Response(command_answer.text + "\n", headers=_HEADERS, media_type="application/json")
    return _with_form(asked_page, command_answer.text, 200)


_TITLES: Final = {
    "recommend": "How to split a model over GPUs",
    "estimate": "What one plan takes",
    "capacity": "How many GPUs a demand needs",
}


def _answer_style(formats: Sequence[str]) -> str:
    if len(formats) > 1 or not set(formats) <= {"html", "json"}:
        raise InputError(f"format: got {', '.join(formats)[:60]!r}, wanted html or json")
    return formats[0] if formats else "html"


def _fields(text: str) -> list[tuple[str, str]]:
    """Read the fields of an address or a body."""
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError:
        raise InputError(f"fields: wanted at most {MOST_FIELDS}, in UTF-8") from None


async def _address_query(request: Request) -> str:
    return str(request.scope["query_string"].decode("latin-1"))


async def _body(request: Request) -> str:
    """Read the body that is posted, within its bounds."""
    if request.method != "POST":
        return ""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM:
        raise Refused(415, f"content-type: got {kind[:60]!r}, wanted {FORM}")
    data = bytearray()
    try:
        async with asyncio.timeout(READ_S):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MOST_BYTES:
                    raise Refused(413, f"body: got more than {MOST_BYTES:,} bytes")
    except TimeoutError:
        raise Refused(408, f"body: not there within {READ_S:g} s") from None
    except ClientDisconnect:
        raise Refused(400, "body: cut off") from None
    return data.decode("latin-1")


def _refusal_response(asked_page: _Page, refused: Refused) -> Response:
    if asked_page.style == "json":
        return _error_response(str(refused), refused.status)
    return _form_alone(asked_page, refused)


def _form_alone(asked_page: _Page, refused: Refused | None = None) -> Response:
    """Write the form alone, with what was wrong with it."""
    title = _TITLES[asked_page.name]
    body = [f"<h1>{title}</h1>"]
    if refused is not None:
        error_html = fragment(Said(lines=[str(refused)], warns=True))
        body.append(f'<div role="alert">{error_html}</div>')
    return _with_form(asked_page, page(title, body, {}), refused.status if refused else 200)


def _with_form(asked_page: _Page, text: str, status: int) -> Response:
    """Put the form above a page, and its look in the place of the page's own."""
    for old_text, new_text in (
        (LOOK, STYLE),
        (escape(content_policy()), escape(content_policy(STYLE))),
    ):
        text = text.replace(old_text, new_text, 1)
    form_html = form(asked_page.pages, asked_page.name, asked_page.filled)
    return Response(text.replace(MAIN, f"{form_html}{MAIN}", 1), status, _HEADERS, "text/html")
