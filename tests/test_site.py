"""The site that `make docs` builds: strictly, from the pages as they are, and with nothing from elsewhere."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import markdown
import pytest
from markdown_it import MarkdownIt

import bursar
import bursar.local
import bursar.testing
import bursar_models
from tests.browser.driver import Browser
from tests.pages import FRONT_MATTER, PAGES, ROOT

pytestmark = pytest.mark.slow

ALIKE = ("h1", "h2", "h3", "h4", "li", "ol", "ul", "pre", "tr", "img", "p", "em", "strong")
"""Parts of a page that Markdown makes, which two of its dialects may see differently."""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and writes nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Nothing."""


def _build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=quiet, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    folder = tmp_path_factory.mktemp("site")
    result = _build(ROOT, folder)
    assert result.returncode == 0, result.stderr
    return folder


def _file(site: Path, page: str) -> Path:
    """Return where a page of the repository is on the site."""
    path = site / Path(page.removeprefix("docs/")).with_suffix("")
    return (path.parent if path.name == "README" else path) / "index.html"


def _article(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text[text.index("<article") : text.index("</article>")]


def _counts(html: str) -> Counter[str]:
    return Counter({tag: len(re.findall(rf"<{tag}[ >]", html)) for tag in ALIKE})


class _Loaded(HTMLParser):
    """Resources that a browser fetches by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Sources of everything, and targets of links in the head."""
        found = dict(attrs)
        names = ("src", "srcset", "data", "poster") + (("href",) if tag in ("link", "use", "image") else ())
        loaded = tag != "link" or found.get("rel") not in ("canonical", "next", "prev")
        self.addresses += [found[name] or "" for name in names if loaded and name in found]


def _loaded(html: str) -> list[str]:
    parser = _Loaded()
    parser.feed(html)
    return parser.addresses


def _elsewhere(html: str) -> list[str]:
    return [address for address in _loaded(html) if re.match(r"(https?:)?//", address)]


def test_every_page_is_on_the_site(site: Path) -> None:
    """The pages, the proofs and the reference, each where its path says."""
    assert [page for page in PAGES if not _file(site, page).is_file()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if "/reference/" not in page])
def test_a_page_is_the_same_on_the_site_as_in_the_repository(site: Path, page: str) -> None:
    """Headings, list items, blocks and rows of tables are as many: the two read Markdown alike, page by page."""
    text = FRONT_MATTER.sub("", (ROOT / page).read_text(encoding="utf-8"))
    expected = MarkdownIt("commonmark").enable("table").render(text)
    assert _counts(_article(_file(site, page))) == _counts(expected)


def test_a_page_that_the_two_read_differently_is_found() -> None:
    """A list in a list that is indented by two blanks is none on the site."""
    text = "* a\n  * b\n"
    assert _counts(markdown.markdown(text)) != _counts(MarkdownIt("commonmark").render(text))


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """No font, script, style or picture of any page, and no style sheet, names another host."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for path in pages:
        assert _elsewhere(path.read_text(encoding="utf-8")) == [], path
    for path in site.rglob("*.css"):
        assert not re.search(r"""(url\(|@import)\s*["']?(https?:)?//""", path.read_text(encoding="utf-8")), path


def test_everything_that_a_page_loads_is_there(site: Path) -> None:
    """Styles, scripts and pictures are files of the site."""
    for path in site.rglob("*.html"):
        for address in _loaded(path.read_text(encoding="utf-8")):
            name = address.partition("#")[0].partition("?")[0]
            if name and not name.startswith("data:"):
                found = site / name[1:] if name.startswith("/") else path.parent / name
                assert found.exists(), f"{path}: {address}"
    assert list(site.glob("assets/stylesheets/*.css"))


def test_what_comes_from_elsewhere_is_found() -> None:
    """A script, a font's style sheet and a picture are; a link to be clicked is not."""
    html = '<link rel="stylesheet" href="https://a/b.css"><script src="//c/d.js"></script><a href="https://e">f</a>'
    assert _elsewhere(html + '<img src="https://g/h.png">') == ["https://a/b.css", "//c/d.js", "https://g/h.png"]


def test_search_has_the_pages(site: Path) -> None:
    """The index is a file of the site, and has words of a page, of a proof and of the reference."""
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    for words in ("BURSAR_ADDRESS", "The release of an integer vector", "BudgetExhaustedError"):
        assert words in index


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site over HTTP, on a free port of this machine."""
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_browser_shows_it_and_finds_things(address: str, browser: Browser) -> None:
    """Styled, without errors, and with a search that asks nobody else; a click on what was found leads to a page."""
    assert browser.open(f"{address}/fit-dpem/").status == 200
    assert "FitDPEM" in browser.text()
    header = browser.evaluate("getComputedStyle(document.querySelector('.md-header')).position")
    assert header == "sticky", "the theme's styles are not there"
    assert browser.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    browser.type("input.md-search__input", "BudgetExhaustedError")
    found = "document.querySelectorAll('.md-search-result__link').length"
    for _ in range(600):
        if browser.evaluate(found):
            break
        time.sleep(0.1)
    assert browser.evaluate(found)
    seen = browser.seen()
    assert [url for url in seen.requests if not url.startswith((address, "data:", "blob:"))] == []
    assert seen.errors == []


@pytest.mark.parametrize("module", [bursar, bursar_models, bursar.testing, bursar.local], ids=lambda m: m.__name__)
def test_the_reference_has_every_public_name(site: Path, module: ModuleType) -> None:
    """The name is that of the namespace that it is used from; models are on their own page."""
    text = "".join(path.read_text(encoding="utf-8") for path in site.glob("reference/*/index.html"))
    models = set(bursar_models.__all__) if module is bursar else set()
    assert [
        name for name in module.__all__ if name not in models and f'id="{module.__name__}.{name}"' not in text
    ] == []


def test_the_build_fails_at_a_broken_link(tmp_path: Path) -> None:
    """A link to no page, one to no heading, and a page that nobody can find: each is named, and there is no site."""
    for name in ("docs", "client", "models", "server", "ledger", "tests", "bench", "demo"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.kept", "__pycache__", "node_modules")
        )
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml", ROOT / "LICENSE"):
        shutil.copy(path, tmp_path)
    with (tmp_path / "docs" / "limits.md").open("a", encoding="utf-8") as page:
        page.write("\n[a](nowhere.md) and [b](guarantee.md#nowhere)\n")
    (tmp_path / "docs" / "unlisted.md").write_text("# Unlisted\n")
    result = _build(tmp_path, tmp_path / "site")
    assert result.returncode != 0
    for words in ("'nowhere.md'", "'guarantee.md#nowhere'", "docs/unlisted.md"):
        assert words in result.stderr.partition("WARNING")[2]
