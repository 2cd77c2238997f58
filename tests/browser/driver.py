"""A headless Chromium to open pages in: what a person would see of them, and whatever they try to do.

Tests take the fixture `browser` and are marked slow. To look at a page by hand:

    python -m tests.browser.driver URL PICTURE.png [--width 400] [--dark]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .npm import alone, installed, node, unavailable

_FOLDER = Path(__file__).resolve().parent

# Text of each element that has some of its own, with its contrast (WCAG 2.2) to the nearest background of a colour.
_CONTRASTS = """(() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map(v => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const found = numbers(getComputedStyle(element).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const owns = element => [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll('body *')]
    .filter(element => owns(element) && element.checkVisibility() && !element.closest('svg, .skip, option'))
    .map(element => {
      const [one, other] = [light(numbers(getComputedStyle(element).color)), light(behind(element))];
      return [element.textContent.trim().slice(0, 40), (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)];
    });
})()"""


class BrowserError(Exception):
    """Raised when the browser could not do what it was asked to."""


@dataclass(frozen=True)
class Response:
    """Response to the request of a page.

    Attributes:
        url: where the browser is after redirects.
        status: of HTTP, 200 for a file; None if nothing was asked for, as on the way to a part of the same page.
        headers: names in small letters.
    """

    url: str
    status: int | None
    headers: dict[str, str]


@dataclass(frozen=True)
class Seen:
    """Everything that a page did since it was opened, what it loaded included.

    Attributes:
        requests: every URL that was asked for.
        console: what was written there, violations of the content security policy among it.
        errors: of scripts.
        dialogs: alerts and questions, which were dismissed.
    """

    requests: list[str]
    console: list[str]
    errors: list[str]
    dialogs: list[str]


class Browser:
    """One browser process with one page at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.version = str(self._answer())

    def open(
        self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> Response:
        """Opens a page without cookies or anything else of an earlier one, in a window of this many pixels."""
        return Response(**self._ask("open", url=url, width=width, height=height, dark=dark, scripts=scripts))

    def go(self, url: str) -> Response:
        """Opens another page in the same window, with the same cookies."""
        return Response(**self._ask("go", url=url))

    def click(self, selector: str) -> Response:
        """Clicks the first element that a CSS selector finds, and waits for the page that it leads to."""
        return Response(**self._ask("click", selector=selector))

    def press(self, key: str) -> None:
        """Presses a key, for instance Tab."""
        self._ask("press", key=key)

    def enter(self, key: str = "Enter") -> Response:
        """Presses a key that leads to another page, and waits for it."""
        return Response(**self._ask("enter", key=key))

    def type(self, selector: str, text: str) -> None:
        """Types into the first field that a selector finds."""
        self._ask("type", selector=selector, text=text)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self._ask("evaluate", expression=expression)

    def contrasts(self) -> list[tuple[str, float]]:
        """Each text of the page with its contrast (WCAG 2.2) to the nearest background of a colour."""
        return [(text, contrast) for text, contrast in self.evaluate(_CONTRASTS)]

    def text(self) -> str:
        """Return what is read on the page, in one line."""
        return " ".join(str(self.evaluate("document.body.innerText")).split())

    def seen(self) -> Seen:
        """Return what the page did so far."""
        return Seen(**self._ask("seen"))

    def screenshot(self, path: Path, *, whole: bool = True, selector: str | None = None) -> Path:
        """A PNG of the page, of what the window shows (`whole=False`) or of one element."""
        self._ask("screenshot", path=str(path), whole=whole, selector=selector)
        return path

    def _ask(self, command: str, **given: Any) -> Any:
        if self._process.stdin is None or self._process.poll() is not None:
            raise BrowserError("the browser has ended")
        self._process.stdin.write(json.dumps({"command": command, **given}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise BrowserError(f"the browser has ended with status {self._process.wait(10)}")
        answer = json.loads(line)
        if "error" in answer:
            raise BrowserError(answer["error"])
        return answer["ok"]


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """A browser until the block ends; the first time its package is installed, which takes a minute."""
    program = node()
    installed(_FOLDER)
    command = [program, str(_FOLDER / "browser.mjs")]
    with contextlib.ExitStack() as stack:
        with alone(_FOLDER):  # the first one unpacks the browser, which others must not start half of
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
            )
            stack.callback(_end, process)
            try:
                made = Browser(process)
            except BrowserError as error:
                unavailable(f"no headless browser starts here: {error}")
        yield made


def _end(process: subprocess.Popen[str]) -> None:
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()


def main() -> None:
    """Takes a picture of a page."""
    parser = argparse.ArgumentParser(description="Takes a picture of a page.")
    parser.add_argument("url", help="or the path of a file")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--window", action="store_true", help="only what a window of this height shows")
    given = parser.parse_args()
    url = Path(given.url).resolve().as_uri() if Path(given.url).is_file() else given.url
    with started() as browser:
        browser.open(url, width=given.width, height=given.height, dark=given.dark)
        browser.screenshot(given.picture, whole=not given.window)


if __name__ == "__main__":
    main()
