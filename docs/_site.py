"""Settings of MkDocs beside `mkdocs.yml`: the site's files are the repository's, so that links mean the same in both.

MkDocs alone knows one folder of pages. Here the README, the proofs beside the code and the tables of benchmarks are
files of the site, too, each under its path in the repository; so a relative link leads to the same place on the site
and where the repository is browsed, and the strict build checks every one of them.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "*.md",
    "docs/**/*.md",
    "client/**/*.md",
    "ledger/**/*.md",
    "models/**/*.md",
    "server/**/*.md",
    "tests/attacks/*.md",
)
"""Everything that is read as a page."""

TESTS = tuple(f"tests/{folder}/**/test_*.py" for folder in ("attacks", "audit", "e2e", "fuzz", "ledger", "server"))
"""Tests that the page of attacks links to."""

LINKED = (
    *("docs/**/*.png", "docs/**/*.svg"),
    *(
        "docs/node/*",
        "docs/json/*",
        "docs/reference/*.json",
        "bench/*.json",
        "demo/*.toml",
        "docs/*.ipynb",
        "deploy/**/*",
        "LICENSE",
    ),
    *TESTS,
)
"""Files that pages show or link to as they are."""

# Packages that a Node.js client was run with.
_LEFT_OUT = "node_modules"
_FRONT_MATTER = re.compile(r"\A\+\+\+\n.*?^\+\+\+\n", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the repository's pages and pictures in the place of those that MkDocs found."""
    site = Files([file for file in files if file.src_dir != config.docs_dir])  # what the theme brings
    for path in sorted({path for pattern in (*PAGES, *LINKED) for path in ROOT.glob(pattern) if path.is_file()}):
        name = path.relative_to(ROOT).as_posix()
        if _LEFT_OUT not in path.parts:
            site.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=_address(name)))
    return site


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A proof without its fingerprints, which are for a test."""
    return _FRONT_MATTER.sub("", markdown)


def _address(name: str) -> str:
    """Return where a file lies on the site: pages of `docs/` at its top, everything else under its path."""
    path = Path(name.removeprefix("docs/"))
    if path.suffix != ".md":
        return path.as_posix()
    if path.stem == "README":
        return (path.parent / "index.html").as_posix()
    return (path.with_suffix("") / "index.html").as_posix()
