"""`bursar-audit report`: one page that needs nothing else, whatever the ledger holds."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bursar_ledger import Adjacency, Budget, GaussianEvent, Ledger, Registration, verify
from bursar_ledger.audit._charts import COLOURS, OTHERS, burn_down_figure, burn_down_svg, colours_of
from bursar_ledger.audit._history import BurnDown
from bursar_ledger.audit._open import Row

Run = Callable[..., Result]
Ask = Callable[..., Any]

_VOID = {"meta", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """A page taken apart; AssertionError unless every element is ended where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opens an element."""
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Ends the element that was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text."""
        self.words.append(data)

    @property
    def text(self) -> str:
        """Return what is read, in one line."""
        return " ".join(" ".join(self.words).split())


def _page(run: Run, path: Path, tmp_path: Path, status: int = 0, *options: Any) -> Page:
    out = tmp_path / "report.html"
    result = run("report", path, "--out", out, *options)
    assert result.exit_code == status, result.output
    return Page(out.read_text("utf-8"))


def test_the_page_says_everything(run: Run, study: Path, tmp_path: Path) -> None:
    """Promises with their reasons, spending by analyst, acts, verification with head, the guarantee and its limits."""
    page, found = _page(run, study, tmp_path), verify(study)
    for part in (
        "verified",
        found.head.hex(),
        found.ledger_id,
        "(epsilon, delta) = (4, 1e-06)",
        "people (protects the values of each person), people-2 (protects the values of each person, retired)",
        "second year",
        "raised",
        "most for one request epsilon 2.19 (33.3%) of the lifetime budget",
        "owner limited each request about people to 33.3% of the lifetime budget. Reason given: test",
        "by a factor of at most 54.6",
        "ann",
        "bob",
        "(1 without a stored release)",
        "failure probability",
        "owner gave ann access as analyst",
        "owner retired people-2: it answers no more new requests",
        "dp-accounting",
        "checkpoints: none were given",
        "What this page cannot show",
        "the deltas of all budgets add up",
    ):
        assert part in page.text
    titles = [word.strip() for word in page.words]
    assert titles.count("Who spent it") == 1  # nobody spent of homes
    assert titles.count("What was promised, and when") == 2


@pytest.mark.slow
def test_the_page_needs_nothing_else(run: Run, study: Path, tmp_path: Path) -> None:
    """No scripts, nothing loaded; every reference is to the page itself, every id is there once."""
    page = _page(run, study, tmp_path)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert not {"script", "link", "img", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    assert "@import" not in text
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in {"href", "xlink:href", "src"}:
                assert value is not None
                assert value.removeprefix("#") in ids, (tag, value)
            for reference in re.findall(r"url\(([^)]*)\)", value or ""):
                assert reference.removeprefix("#") in ids
    assert set(re.findall(r"https?://[^\"' ]*", text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_names_and_reasons_are_escaped(run: Run, ledger: Ledger, ask: Ask, path: Path, tmp_path: Path) -> None:
    """Text that looks like HTML, like mathematics or like a hidden legend stays text."""
    evil = "<script>alert(1)</script>"
    for name in (evil, "$x_{", "_hidden", "\"'&amp;"):
        ledger.register_dataset(
            Registration(name, Adjacency.REPLACE_ONE, Budget(1, 1e-6), name.encode(), {}), actor=name, reason=evil
        )
        ledger.debit(ask("a", dataset=name, principal=name, scale=40))
    page = _page(run, path, tmp_path)
    assert "script" not in {tag for tag, _ in page.tags}
    for part in (evil, "$x_{", "_hidden", "\"'&amp;"):
        assert part in page.text


def test_a_forged_ledger_gets_its_page(run: Run, study: Path, ledger: Ledger, forge: Any, tmp_path: Path) -> None:
    """It says in red what is not right, and holds neither markup nor control characters of the forger's."""
    ledger.close()
    forge(study, 9, lambda fields: fields.update(actor="<img src=x onerror=alert(1)>\x1b\u202e", time="<b>never</b>"))
    forge(study, 10, lambda fields: fields.update(time="9999-12-31T23:59:59+00:00"))
    page = _page(run, study, tmp_path, 1)
    assert "not right" in page.text
    assert "All figures shown count these entries and no others." in page.text
    assert "entry 9: " in page.text or "entry 10: " in page.text
    assert not {"img", "b"} & {tag for tag, _ in page.tags}
    text = (tmp_path / "report.html").read_text("utf-8")
    assert all(character.isprintable() or character in "\n\t" for character in text)


def test_without_matplotlib_the_command_says_what_to_do(
    run: Run, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other commands do not need it."""
    monkeypatch.delitem(sys.modules, "bursar_ledger.audit._charts", raising=False)
    monkeypatch.delitem(sys.modules, "bursar_ledger.audit._report", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("report", study, "--out", tmp_path / "page.html")
    assert result.exit_code == 2
    assert "matplotlib" in result.stderr
    assert run("verify", study).exit_code == 0


def _burn(points: int, analysts: int = 2) -> BurnDown:
    burn = BurnDown()
    for i in range(points):
        fields = {"time": f"2026-01-{1 + i % 28:02}T00:00:00+00:00", "details": {}}
        row = Row(i + 1, "", b"", True, fields)
        burn.add(row, 1 - i / points, None if i % 50 == 0 else f"analyst {i % analysts}")
    return burn


def test_the_chart_shows_what_was_left(tmp_path: Path) -> None:
    """The line goes through every point, each debit has its analyst's colour, each new total its mark."""
    burn = _burn(120)
    colours = colours_of(list(burn.analysts))
    figure = burn_down_figure(burn, colours)
    above = figure.axes[0]
    line = above.lines[0]
    assert list(line.get_xdata()) == list(burn.entries)  # type: ignore[arg-type]
    assert list(line.get_ydata()) == pytest.approx(list(burn.left))  # type: ignore[arg-type]
    dots = {line.get_color(): len(line.get_xdata()) for line in above.lines if line.get_marker() == "o"}  # type: ignore[arg-type]
    assert sum(dots.values()) == 117
    assert set(dots) == set(colours.values())
    assert sum(line.get_marker() == "D" for line in above.lines) == 2  # the first total is where it begins
    assert len(figure.axes) == 2


@pytest.mark.slow
def test_a_long_history_is_drawn_with_some_of_its_points() -> None:
    """A million debits make no page of a hundred megabytes; new totals and the last point are always there."""
    burn = _burn(20_000)
    figure = burn_down_figure(burn, colours_of(list(burn.analysts)))
    line = figure.axes[0].lines[0]
    xs = list(line.get_xdata())  # type: ignore[arg-type]
    assert len(xs) < 2500
    assert xs[-1] == 20_000
    assert set(range(1, 20_001, 50)) <= set(xs)


def test_charts_of_one_page_share_no_ids() -> None:
    """And each is well-formed by itself, without a size of its own."""
    burn = _burn(3)
    colours = colours_of(list(burn.analysts))
    seen: list[str] = []
    for prefix in ("a", "b"):
        root = ET.fromstring(burn_down_svg(burn, colours, prefix))  # noqa: S314
        assert "width" not in root.attrib
        seen += [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(seen) == len(set(seen)) > 0


def test_colours_run_out_into_grey() -> None:
    """The first analysts have a colour each, all others share one."""
    names = [f"analyst {i}" for i in range(len(COLOURS) + 3)]
    colours = colours_of(names)
    assert [colours[name] for name in names[: len(COLOURS)]] == list(COLOURS)
    assert {colours[name] for name in names[len(COLOURS) :]} == {OTHERS}
    assert list(colours_of(["one"])) == ["one"]


@pytest.mark.parametrize("time", ["", "never", "0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+14:00"])
def test_times_that_no_calendar_has_are_left_out(time: str) -> None:
    """The chart by entry number has the point all the same."""
    burn = BurnDown()
    burn.add(Row(1, "", b"", False, {"time": time, "details": {}}), 1.0, None)
    burn.add(Row(2, "", b"", False, {"time": time, "details": {}}), 0.5, "ann")
    figure = burn_down_figure(burn, {"ann": OTHERS})
    assert [len(axes.lines[0].get_xdata()) for axes in figure.axes] == [2, 0]  # type: ignore[arg-type]
    assert "<svg" in burn_down_svg(burn, {"ann": OTHERS}, "c")


@pytest.mark.slow
def test_many_acts_are_shortened(run: Run, ledger: Ledger, path: Path, tmp_path: Path, ask: Ask) -> None:
    """The newest thousand stay, and the page says where the others are."""
    for i in range(1100):
        ledger.set_allowance("people", "ann", Fraction(1, i + 1), actor="owner", reason="test")
    ledger.debit(ask("a", events=(GaussianEvent(1, Fraction(10**6)),)))
    page = _page(run, path, tmp_path)
    assert "The newest 1,000 of 1,102" in page.text
