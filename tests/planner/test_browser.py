"""Pages as a browser shows them, where there is Chromium and playwright."""

import re
import shutil
import subprocess
import sys

import pytest
from commands import COMMANDS, ROOT, run

sync = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
WIDTHS = (360, 768, 1440)
CUT = """() => {
  const wide = document.documentElement.clientWidth;
  return [...document.querySelectorAll("body *")]
    .filter(one => !one.closest(".wide *"))
    .map(one => one.getBoundingClientRect())
    .filter(box => box.width && (box.right > wide + 1 || box.left < -1)).length
}"""
TIPS = """() => [...document.querySelectorAll(".dot, .span")].map(one => {
  one.focus();
  return one.querySelector(".tip").getBoundingClientRect().right
})"""


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    with sync.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def opened(browser, address, width):
    """A page, and what it asked for and complained about."""
    page = browser.new_page(viewport={"width": width, "height": 800})
    told = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: told.append(request.url))
    page.goto(address)
    return page, told


@pytest.mark.parametrize(
    "name", ["recommend", "decoder", "simulate", "capacity", "collectives", "topology show"]
)
def test_nothing_is_cut_at_any_width_and_points_say_what_they_are(browser, tmp_path, name):
    path = tmp_path / "page.html"
    assert run(*COMMANDS[name], "--format", "html", "--output", str(path))[0] == 0
    for width in WIDTHS:
        page, told = opened(browser, path.as_uri(), width)

        assert told == [path.as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT) == 0
        assert all(0 < right <= width for right in page.evaluate(TIPS))
        if name == "recommend":
            point = page.locator(".dot").first
            point.hover(force=True)
            assert page.locator(".tip:visible").first.text_content()
            shown = page.locator("svg .s0:visible").count()
            page.locator(".key.s0 input").first.uncheck()
            assert page.locator("svg .s0:visible").count() < shown


def test_a_form_is_filled_in_with_the_keyboard_and_answered(browser):
    command = [sys.executable, "-m", "planner", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r"http\S+", server.stderr.readline())[0]
            page, told = opened(browser, address, 360)
            page.get_by_label("model", exact=True).fill("flux")
            page.get_by_label("GPUs", exact=True).fill("2")
            page.keyboard.press("Enter")
            page.wait_for_selector("figure")

            assert page.evaluate(CUT) == 0
            assert told == [address, *[f"{address}recommend"] * 2]
        finally:
            server.kill()
