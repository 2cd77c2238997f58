"""Burn-down charts as SVG for a page. They hold no text of the ledger's: names and legends are the page's."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ._history import BurnDown
from ._language import language, say

if TYPE_CHECKING:
    # It is imported where charts are drawn: that takes as long as everything else before the first page.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito 2008: eight colours that people with any colour vision tell apart; black is the line's.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B8A800")
OTHERS = "#8A8A8A"
"""Colour of all analysts beyond the first ones."""

_LINE = "#3C4650"
_TOTAL = "#9B1C31"
_POINTS = 1500
"""Largest number of points in a chart, so that the page of a long history stays small."""
# Dates in numbers: matplotlib has the names of months in English only.
_TICKS = ["%Y", "%Y-%m", "%m-%d", "%H:%M", "%H:%M", "%S.%f"]
_WHOLE = ["", "%Y", "%Y-%m", "%Y-%m-%d", "%Y-%m-%d", "%Y-%m-%d %H:%M"]
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "bursar",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _LINE,
    "xtick.color": _LINE,
    "ytick.color": _LINE,
    "axes.labelcolor": _LINE,
    "path.simplify": True,
}


def colours_of(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each name, the first ones their own."""
    return dict(itertools.zip_longest(names, COLOURS[: len(names)], fillvalue=OTHERS))


def burn_down_svg(burn: BurnDown, colours: dict[str, str], prefix: str) -> str:
    """Draw what was left after each entry, by entry number and by time.

    There is at least one point. The ids within the SVG begin with `prefix`, unlike those of other charts on the page.
    """
    import matplotlib as mpl

    buffer = io.StringIO()
    figure = burn_down_figure(burn, colours)
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue(), prefix)


def burn_down_figure(burn: BurnDown, colours: dict[str, str]) -> Figure:
    """Return the figure of `burn_down_svg`."""
    import matplotlib as mpl
    from matplotlib import dates
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    dates_: Any = dates  # its functions have no types
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.6, 4.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharey=True)
        chosen = _thinned(burn)
        _draw(above, [float(burn.entries[i]) for i in chosen], burn, chosen, colours)
        above.set_xlabel(say("entry of the ledger"))
        above.xaxis.set_major_locator(MaxNLocator(integer=True))
        timed = [i for i in chosen if _drawable(burn.times[i])]
        days = [float(dates_.date2num(datetime.fromtimestamp(burn.times[i], UTC))) for i in timed]
        _draw(below, days, burn, timed, colours)
        below.set_xlabel(say("time, by the server's clock (UTC)"))
        locator = dates_.AutoDateLocator(minticks=3, maxticks=7)
        below.xaxis.set_major_locator(locator)
        below.xaxis.set_major_formatter(dates_.ConciseDateFormatter(locator, formats=_TICKS, offset_formats=_WHOLE))
        return figure


def _draw(axes: Axes, xs: Sequence[float], burn: BurnDown, chosen: Sequence[int], colours: dict[str, str]) -> None:
    from matplotlib.ticker import PercentFormatter

    names = list(burn.analysts)
    left = [burn.left[i] for i in chosen]
    axes.plot(xs, left, color=_LINE, linewidth=1.1, drawstyle="steps-post", zorder=2)
    for colour in dict.fromkeys(colours.values()):
        own = [k for k, i in enumerate(chosen) if burn.who[i] >= 0 and colours[names[burn.who[i]]] == colour]
        axes.plot([xs[k] for k in own], [left[k] for k in own], "o", color=colour, markersize=4.5, zorder=3)
    for k, i in enumerate(chosen):
        if burn.who[i] < 0 and i > 0:
            axes.axvline(xs[k], color=_TOTAL, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
            axes.plot([xs[k]], [left[k]], "D", markersize=5, color=_TOTAL, markerfacecolor="white", zorder=4)
    axes.set_ylim(-0.02, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol="%" if language() == "en" else " %"))
    axes.set_ylabel(say("left of the budget"))
    axes.grid(axis="y", color="#E3E6E9", linewidth=0.8, zorder=0)
    if len(set(xs)) == 1:  # one instant: matplotlib would make up years around it
        axes.set_xlim(xs[0] - 0.5, xs[0] + 0.5)


def _thinned(burn: BurnDown) -> list[int]:
    """Return the indices of the points to draw: all of a short history, some of a long one, and every new total."""
    count = len(burn.entries)
    step = math.ceil(count / _POINTS)
    return [i for i in range(count) if i % step == 0 or i == count - 1 or burn.who[i] < 0]


def _drawable(time: float) -> bool:
    """Return whether a time (seconds since 1970) is one that calendars have; a forged ledger may hold any number."""
    return -2e9 < time < 2e11


def _inline(svg: str, prefix: str) -> str:
    """Return the element alone, scaled by the page, its ids unlike those of the page's other charts."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', element)
    element = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", element)
    element = re.sub(r'(xlink:href|href)="#([^"]+)"', rf'\1="#{prefix}-\2"', element)
    # The element's own size in points would override the page's; the viewBox keeps its shape.
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", element, count=1), count=1
    )
