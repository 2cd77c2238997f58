"""A slider over previews: what it shows, that it pays for nothing, and that it moves in a browser."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import bursar
from tests.browser.driver import Browser

REQUEST = bursar.DPEM(n_components=2)
PAGE = """<!DOCTYPE html><html lang="en"><head><title>slider</title></head><body><div id="here"></div>
<script type="module">
{module}
const state = {state};
window.saved = null;
const model = {{ get: (name) => state[name], set: (name, value) => {{ state[name] = value; }},
  save_changes: () => {{ window.saved = state.chosen; }} }};
render({{ model, el: document.getElementById("here") }});
</script></body></html>"""


def test_it_shows_previews_and_pays_nothing(lone: bursar.Dataset) -> None:
    """Each place has the price and the expected errors of that spend; errors fall; the whole budget is left."""
    before = lone.remaining()
    slider = lone.spend_slider(REQUEST, percents=[1, 10, 50])
    assert lone.remaining() == before
    assert [one["percent"] for one in slider.points] == [1, 10, 50]
    errors = [one["error"] for one in slider.points]
    assert errors == sorted(errors, reverse=True)
    found = lone.preview(REQUEST, spend=bursar.percent(10))
    assert str(found.price) in slider.points[1]["title"]
    assert slider.points[1]["lines"][0].startswith("mean_error: ")
    assert slider.spend == bursar.percent(10)
    slider.chosen = 2
    assert slider.spend == bursar.percent(50)


@pytest.mark.parametrize("percents", [[], [2, 1], [1, 1]])
def test_spends_that_do_not_ascend_are_refused(lone: bursar.Dataset, percents: list[float]) -> None:
    """The message has what was given."""
    with pytest.raises(bursar.InvalidRequestError, match="ascending"):
        lone.spend_slider(REQUEST, percents=percents)


def test_without_anywidget_it_says_what_to_install(lone: bursar.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before any preview is asked for."""
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ImportError, match=r"bursar\[notebook\]"):
        lone.spend_slider(REQUEST)


@pytest.mark.slow
def test_it_moves_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    """A key moves it; text, mark and the notebook's value follow; texts are texts."""
    points = [
        {"percent": 1.0, "title": "<b>one</b>", "lines": ["mean_error: 4"], "error": 4.0},
        {"percent": 4.0, "title": "two", "lines": ["mean_error: 2", "a warning"], "error": 2.0},
    ]
    module = files("bursar").joinpath("_slider.mjs").read_text("utf-8").replace("export default { render };", "")
    page = tmp_path / "page.html"
    page.write_text(PAGE.format(module=module, state=json.dumps({"points": points, "chosen": 0})), "utf-8")
    browser.open(page.as_uri())
    assert "<b>one</b> mean_error: 4" in browser.text()
    assert browser.evaluate("document.querySelector('circle').getAttribute('cx')") == "10"
    browser.press("Tab")
    browser.press("ArrowRight")
    assert "two mean_error: 2 a warning" in browser.text()
    assert browser.evaluate("window.saved") == 1
    assert browser.evaluate("document.querySelector('circle').getAttribute('cx')") == "310"
    assert browser.seen().errors == []
    browser.screenshot(tmp_path / "slider.png")
