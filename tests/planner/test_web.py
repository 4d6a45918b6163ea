"""Pages and JSON over HTTP: what a command answers, within bounds, and nothing of this machine."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlencode

import pytest
from commands import ROOT, assert_refused, run
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.command import cli, serve
from planner.web import app as web
from planner.web.apart import EndedError, apart
from planner.web.fields import FORMS, fields_of, words_of
from topology.base import InputError

pytestmark = pytest.mark.usefixtures("asked_once")

ASKED = {"model": "flux", "gpus": "2"}
PAGES = serve.pages()
MATRIX = "     GPU0 GPU1\nGPU0  X   NV4\nGPU1 NV4   X"


async def here(words):
    """Answer in this process."""
    return serve.told(words)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict
    text: str

    def json(self):
        return json.loads(self.text)


def call(method, path, body=b"", headers=(), ask=here):
    """Ask the application as a server does."""
    application = web.app(ask, PAGES, ["127.0.0.1", "localhost"], 2)
    path, _, query = path.partition("?")
    named = {"host": "127.0.0.1", "content-type": web.FORM, **dict(headers)}
    scope = {
        "type": "http", "method": method, "path": path, "query_string": query.encode(),
        "headers": [(key.encode(), value.encode()) for key, value in named.items()],
        "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 9),
    }  # fmt: skip
    sent = []

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(message):
        sent.append(message)

    asyncio.run(application(scope, receive, send))
    head = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    text = b"".join(message["body"] for message in sent[1:]).decode()
    return Answer(sent[0]["status"], head, text)


def post(path, fields, ask=here):
    return call("POST", path, urlencode(fields, errors="surrogatepass").encode(), ask=ask)


def get(path, fields=(), ask=here):
    return call("GET", f"{path}?{urlencode(fields)}", ask=ask)


def test_json_is_what_the_command_prints():
    words = ("recommend", "--model", "flux", "--gpus", "2", "--format", "json")
    answer = get("/recommend", {**ASKED, "format": "json"})

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.text == run(*words)[1]
    assert answer.json() == planner.recommend("flux", gpus=2).to_dict()


@pytest.mark.parametrize(
    ("page", "fields", "said"),
    [
        ("recommend", {**ASKED, "at-most-gpus": "yes"}, "Latency over GPUs"),
        ("estimate", {**ASKED, "plan": "ulysses2"}, "Memory at its peak"),
        (
            "capacity",
            {"model": "flux", "rate": "6/min", "slo": "20s", "price": "2"},
            "asked: 6/min",
        ),
        ("recommend", {"model": "flux", "hardware": "h100-sxm", "topology": MATRIX}, "2 x h100"),
    ],
)
def test_a_page_answers_with_charts_below_what_was_filled_in(page, fields, said):
    answer = post(f"/{page}", {**fields, "height": ""})
    text = answer.text

    assert answer.status == 200
    assert said in text
    assert text.index("<form") < text.index("<main>") < text.index("<figure")
    assert 'name="model" value="flux"' in text
    assert fields.get("topology", "") in text
    assert ("--topology=FILE" in text) == ("topology" in fields)
    assert ("checked=''" in text.split("<main>")[0]) == ("at-most-gpus" in fields)


def test_fields_are_the_options_of_the_command_in_its_spelling():
    """Also those that may be repeated, and all that a form has are options."""
    link = ("GPU0-NVSwitch=0.5", "pcie=0.5")
    fields = [("model", "llama-3.1-8b"), ("gpus", "1"), ("prefix-hit", "95%"),
              ("no-kv-repeat", "yes"), *(("link", one) for one in link)]  # fmt: skip
    words = [f"--{name}" if text == "yes" else f"--{name}={text}" for name, text in fields]
    answer = get("/estimate", [*fields, ("format", "json")])
    shown = get("/estimate", [*fields, ("height", "x")]).text

    assert answer.text == run("estimate", *words, "--format", "json")[1]
    assert all(f'name="link" value="{one}"' in shown for one in (*link, ""))
    for page, groups in FORMS.items():
        cli.parsed([page, *(f"--{name}=1" for name, one in fields_of(groups).items()
                            if one.kind != "flag")])  # fmt: skip


def test_no_field_opens_a_file_by_its_name(tmp_path):
    path, opened = tmp_path / "some.csv", []
    path.write_text("0.1,100,10\n" * 32, encoding="utf-8")
    name = str(path)

    def watch(event, given):
        if event == "open" and given[0] == name:
            opened.append(given)

    sys.addaudithook(watch)
    asked = {"model": "gpt-oss-20b", "rate": "1/s", "slo": "60s", "speculative": "2"}
    for page, groups in PAGES.items():
        known = fields_of(groups)
        for field in known:
            filled = {key: text for key, text in asked.items() if key in known} | {field: name}
            with suppress(InputError):
                assert serve.told(words_of(page, groups, filled.items())).wrong, (page, field)

    assert path.exists()
    assert opened == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_without_a_question_is_its_form(page):
    answer = get(f"/{page}")
    policy = answer.headers["content-security-policy"]

    assert answer.status == 200
    assert re.search(r'<button type="submit">\w+</button>', answer.text)
    assert "script" not in policy
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "<script" not in answer.text
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"model": "fluxx"}, 400, "unknown model 'fluxx': did you mean flux"),
        ({**ASKED, "hight": "8"}, 400, "unknown field 'hight': did you mean height"),
        ({**ASKED, "gpus": "two"}, 400, "gpus: got 'two', wanted a whole number"),
        ({**ASKED, "gpus": "2.5"}, 400, "got '2.5', wanted a whole number"),
        ({"model": str(ROOT)}, 400, "unknown model"),
        ({**ASKED, "hardware": "examples/my_gpu.toml"}, 400, "unknown hardware"),
        ({**ASKED, "hardware": "rtx-4090", "topology": "/etc/hostname"}, 400, "no topology in a"),
        ({**ASKED, "precision": "x" * 201}, 400, "precision: got 201 characters"),
        ({**ASKED, "profile": "none"}, 400, "profile: is for files and the machine at hand"),
        ({**ASKED, "detect": "yes"}, 400, "detect: is for files and the machine at hand"),
        ({**ASKED, "at-most-gpus": "no"}, 400, "unknown at-most-gpus 'no': expected one of yes"),
        ({**ASKED, "expert-distribution": "a"}, 400, "'a': expected one of balanced, uniform, po"),
        ({**ASKED, "lora": "yes"}, 400, "argument --lora: adapters (LoRA) are not modelled"),
        ({**ASKED, "gpus": "12", "hardware": "gb300", "nodes": "5"}, 400, "nodes"),
        ({**ASKED, "format": "table"}, 400, "format: got 'table', wanted html or json"),
    ],
)
def test_bad_input_is_a_line(fields, status, said):
    shown = post("/recommend", fields)

    assert shown.status == status
    assert said in shown.text.replace("&#x27;", "'")
    assert '<div role="alert"><ul><li class="w">' in shown.text
    if "format" not in fields:
        data = post("/recommend", {**fields, "format": "json"})
        assert (data.status, list(data.json())) == (status, ["error"])
        assert said in data.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/none", b"", {}, 404),
        ("DELETE", "/recommend", b"", {}, 405),
        ("POST", "/recommend", b"model=flux", {"content-type": "text/plain"}, 415),
        ("POST", "/recommend", b"x" * (web.MOST_BYTES + 1), {}, 413),
        ("POST", "/recommend", b"model=%ff", {}, 400),
        ("POST", "/recommend", b"a=1&" * 129, {}, 400),
        ("POST", "/recommend?model=flux", b"model=flux", {}, 400),
        ("GET", "/recommend", b"", {"host": "example.org"}, 400),
    ],
)
def test_questions_have_bounds(method, path, body, headers, status):
    answer = call(method, path, body, headers.items())

    assert answer.status == status
    assert "Traceback" not in answer.text


@given(
    st.sampled_from(list(PAGES)),
    st.dictionaries(
        st.one_of(st.sampled_from(sorted(fields_of(PAGES["recommend"]))), st.text(max_size=9)),
        st.one_of(
            st.text(max_size=40), st.sampled_from(["flux", "2", "-", "../a", "h100-sxm,b200"])
        ),
        max_size=6,
    ),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_filled_in_is_read_or_refused(page, fields):
    """And no word can be taken for another option, or for the name of a file."""
    asked = []

    async def ask(words):
        asked.append(words)
        return web.Told(text="{}")

    answer = post(f"/{page}", {**fields, "format": "json"}, ask)

    assert answer.status in (200, 400)
    assert list(answer.json()) == (["error"] if answer.status == 400 else [])
    for words in asked:
        command, *options = words
        assert command == page
        assert all(re.match(r"--[a-z-]+(=|$)", word) for word in options)
        assert all("\n" in word for word in options if word.startswith("--topology"))
        with suppress(InputError):
            assert cli.parsed(words).command == page


def test_json_that_the_address_asks_for_is_given_whatever_the_body_is():
    answer = call("POST", "/recommend?format=json", b"{}", [("content-type", "text/plain")])

    assert answer.status == 415
    assert "content-type: got 'text/plain', wanted" in answer.json()["error"]


def test_the_first_page_is_that_of_recommend():
    answer = get("/")

    assert (answer.status, answer.headers["location"]) == (307, "/recommend")


def test_an_empty_form_asks_nothing():
    assert words_of("capacity", PAGES["capacity"], [("rate", ""), ("slo", " ")]) == ["capacity"]


def late(_):
    time.sleep(600)


def dies(_):
    os._exit(9)


def test_a_process_that_answers_late_or_dies_is_ended():
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(apart(late, [], 0.5))
    with pytest.raises(EndedError):
        asyncio.run(apart(dies, [], 300))

    assert time.monotonic() - begun < 300


@pytest.mark.parametrize(("error", "status"), [(TimeoutError, 504), (EndedError, 500)])
def test_what_has_no_answer_is_said(error, status):
    async def ask(_):
        raise error

    assert get("/recommend", ASKED, ask).status == status


def test_only_so_many_questions_wait():
    """One that is answered, those that wait for it, and one too many."""
    begun, most = [], 1 + web.WAITING

    async def ask(words):
        begun.append(words)
        await asyncio.sleep(3600)

    application = web.app(ask, PAGES, ["*"], 1)
    statuses = []

    async def one():
        scope = {
            "type": "http", "method": "GET", "path": "/recommend", "headers": [],
            "query_string": b"model=flux", "scheme": "http", "server": ("127.0.0.1", 80),
        }  # fmt: skip

        async def send(message):
            statuses.extend([message["status"]] if "status" in message else [])

        await application(scope, None, send)

    async def all_of_them():
        tasks = [asyncio.create_task(one()) for _ in range(most + 2)]
        answered = asyncio.as_completed(tasks, timeout=300)
        for _ in range(2):
            await next(answered)
        for task in tasks:
            task.cancel()

    asyncio.run(all_of_them())
    assert statuses == [503, 503]
    assert len(begun) == 1


@pytest.mark.parametrize("package", ["uvicorn", "starlette.applications"])
def test_without_its_packages_serve_says_what_to_install(package, monkeypatch):
    monkeypatch.delitem(sys.modules, "planner.web.app")
    monkeypatch.setitem(sys.modules, package, None)

    assert_refused(*run("serve"), "is not installed: pip install 'multi-gpu-planner[serve]'")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--port", "99999"), "port: got 99999, wanted a whole number from 0 to 65535"),
        (("--host", "no such host", "--port", "0"), "serve: no such host port 0: "),
    ],
)
def test_a_port_that_cannot_be_had_is_bad_input(words, said):
    assert_refused(*run("serve", *words), said)


def test_a_server_answers_and_stops_without_a_word():
    command = [sys.executable, "-m", "planner", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as server:  # fmt: skip
        line = server.stderr.readline()
        address = re.match(r"serve: (http://127.0.0.1:\d+/) \(Ctrl-C stops it\)$", line)[1]
        taken = address.split(":")[-1].strip("/")
        with urllib.request.urlopen(f"{address}estimate?model=flux&format=json") as answer:
            found = json.load(answer)
        refused = run("serve", "--port", taken)
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=300)

    assert found == planner.estimate("flux").to_dict()
    assert_refused(*refused, f"port {taken}: Address already in use")
    assert (server.returncode, out, err) == (130, "", "")
