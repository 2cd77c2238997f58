"""A page and pictures from a record of `run.py`, and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

Json = dict[str, Any]

HEAD = """# Benchmarks

`make bench` runs every comparison of `bench/` with its peers beside it, writes [one record](../bench/record.json) and
this page, and compares with the record before: a ratio, or an accuracy of a fit, that became worse beyond the noise of
both runs (Welch's test over rounds or seeds, one false alarm in a hundred runs of a script) ends the run with 1. Sizes
are quick ones but with `FULL=1`. Ratios are medians of runs in turns on the same machine, below 1 where bursar takes
less time; times of other machines differ. A changed tree is refused; `--changed-tree` measures it, with a + at the
commit. How accurate fits are on real tables has [a page of its own](real-tables.md).

"""

FITS = ("FitDPEM", "FitGradientEM", "FitSketchKMeans", "FitMRF", "FitSeparatedGMM")
COLOURS = dict(zip(FITS, ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple"), strict=True))
OTHERS = {"scikit-learn GaussianMixture": "black", "diffprivlib KMeans": "gray"}

LEAST_ERROR = 1e-4
"""An error below it, or a loss that came out negative, is drawn here."""


def write_page(record: Json, page: Path) -> None:
    """Write the page, and its pictures beside it; pictures of an earlier page are removed."""
    sections = [HEAD, _provenance(record), _verdict_table(record)]
    for old in page.parent.glob("benchmarks-*.png"):
        old.unlink()
    for picture in PICTURES:
        file = page.with_name(f"benchmarks-{picture.name}.png")
        figure = picture.draw(record)
        if figure is None:
            continue
        figure.savefig(file, dpi=110, metadata={"Software": None})
        plt.close(figure)
        sections.append(f"## {picture.title}\n\n{picture.text}\n\n![{picture.alt}]({file.name})\n\n")
    sections += [_peers_table(record), _numbers(record)]
    page.write_text("".join(sections).rstrip() + "\n", encoding="utf-8")


def _provenance(record: Json) -> str:
    machine, versions = record.get("machine", {}), record.get("versions", {})
    lines = [
        f"Of {machine.get('processor', 'an unknown processor')}, {machine.get('processors', '?')} processors; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ".\n",
        "| comparison | commit | sizes | seconds | |",
        "|---|---|---|---|---|",
    ]
    for name, one in record.get("scripts", {}).items():
        sizes = "full" if one["full"] else "quick"
        lines.append(
            f"| `bench/{name}.py` | {one['commit']} | {sizes} | {one['seconds']:.0f} | {one['problem'] or ''} |"
        )
    return "\n".join(lines) + "\n\nA commit with a + had changes that were not committed.\n\n"


def _found(record: Json, script: str, *path: str) -> Any:
    """Return what a script found, or None."""
    found: Any = record.get("scripts", {}).get(script, {}).get("found", {})
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


# --- bars ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """A number that there is a bar for.

    Attributes:
        script: that measured it.
        what: it is.
        value: measured.
        bar: that it is to stay at or below.
        least: of the rounds that the value is the median of; None: unknown.
        most: likewise.
    """

    script: str
    what: str
    value: float
    bar: float
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool:
        """Return whether the value is at or below the bar; no number is not."""
        return self.value <= self.bar


BARRED = {
    "ratio": "bar",
    "share": "bar",
    "added_median": "bar",
    "one": "bar",
    "bend": "bend_bar",
    "processor_bend": "processor_bend_bar",
    "peak_mib": "bar_mib",
}
"""Keys of numbers that have bars, and of their bars in the same place."""

WORDS = {
    "share": "share of its time",
    "added_median": "seconds that the server adds",
    "one": "seconds of a decoding",
    "bend": "slope of log time against log rows, from 1",
    "processor_bend": "slope of log processor time against log rows, from 1",
    "peak_mib": "memory, MiB",
}


def verdicts(record: Json) -> list[Verdict]:
    """All numbers of a record that have bars."""
    return [
        one
        for script, result in record.get("scripts", {}).items()
        for one in _verdicts_in(script, result.get("found", {}), ())
    ]


def _verdicts_in(script: str, found: Any, path: tuple[str, ...]) -> Iterator[Verdict]:
    if isinstance(found, list):
        for one in found:
            yield from _verdicts_in(script, one, path)
    if not isinstance(found, Mapping):
        return
    for key, bar in BARRED.items():
        if _is_number(found.get(key)) and _is_number(found.get(bar)):
            yield _verdict(script, found, key, found[bar], path)
    everywhere = found.get("all")
    if isinstance(everywhere, Mapping) and _is_number(everywhere.get("ratio")) and _is_number(found.get("bar")):
        named = {**found, "case": f"{label_of(found, path)}, {everywhere.get('processors', 'all')} processors"}
        yield _verdict(script, {**named, **everywhere}, "ratio", found["bar"], path)
    for key, value in found.items():
        if isinstance(value, Mapping | list) and key != "all":
            yield from _verdicts_in(script, value, (*path, str(key)))


def _verdict(script: str, found: Mapping[str, Any], key: str, bar: float, path: tuple[str, ...]) -> Verdict:
    what = label_of(found, path)
    least, most = found.get("ratio_range", (None, None)) if key == "ratio" else (None, None)
    return Verdict(script, f"{what}: {WORDS[key]}" if key in WORDS else what, found[key], bar, least, most)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def label_of(found: Mapping[str, Any], path: Sequence[str]) -> str:
    """Return what a row is about."""
    if "case" in found:
        return str(found["case"])
    if "covariances" in found:
        facts = ", ".join(f"{key} = {found[key]:,}" for key in ("n", "d", "k") if key in found)
        return f"{'noise of a fit' if 'noise' in path else 'EM step'}, {found['covariances']}, {facts}"
    return ", ".join(part for part in path if part not in ("rows", "whole", "compared"))


def _verdict_table(record: Json) -> str:
    some = verdicts(record)
    if not some:
        return ""
    met = sum(one.met for one in some)
    lines = [
        f"## What is wanted, and what came out\n\n{met} of {len(some)} met. Every bar is the most that is allowed.\n",
        "| comparison | what | measured | rounds | bar | |",
        "|---|---|---|---|---|---|",
    ]
    for one in some:
        spread = "" if one.least is None or one.most is None else f"{one.least:.3g} to {one.most:.3g}"
        verdict = "met" if one.met else "**missed**"
        lines.append(
            f"| {one.script} | {_cell(one.what)} | {_short(one.value)} | {spread} | {_short(one.bar)} | {verdict} |"
        )
    return "\n".join(lines) + "\n\n"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")


# --- pictures -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """A ratio in a picture.

    Attributes:
        name: of it.
        ratio: median.
        spread: least and most.
        bar: that is wanted; None: none is.
    """

    name: str
    ratio: float
    spread: tuple[float, float]
    bar: float | None


def _bar_of(name: str, row: Mapping[str, Any], bar: float | None) -> Bar:
    low, high = row.get("ratio_range", (row["ratio"], row["ratio"]))
    return Bar(name, row["ratio"], (low, high), bar)


def _bars(groups: Mapping[str, Sequence[Bar]], label: str) -> Any:
    """Dots with the range of the rounds, a red mark at each bar; groups below each other."""
    groups = {name: bars for name, bars in groups.items() if bars}
    if not groups:
        return None
    count = sum(map(len, groups.values()))
    heights = [len(bars) + 0.9 for bars in groups.values()]
    size = (8.0, 0.9 + 0.24 * (count + len(groups)))
    figure, panels = plt.subplots(
        len(groups), 1, figsize=size, layout="constrained", height_ratios=heights, sharex=True, squeeze=False
    )
    for panel, (name, bars) in zip(panels[:, 0], groups.items(), strict=True):
        places = range(len(bars))
        low = [one.ratio - min(one.spread[0], one.ratio) for one in bars]
        high = [max(one.spread[1], one.ratio) - one.ratio for one in bars]
        panel.errorbar(
            [one.ratio for one in bars], places, xerr=[low, high], fmt="o", markersize=4, elinewidth=1.2, zorder=3
        )
        wanted = [(one.bar, place) for one, place in zip(bars, places, strict=True) if one.bar is not None]
        panel.plot(
            [bar for bar, _ in wanted], [place for _, place in wanted], "|", color="tab:red", markersize=11, mew=2
        )
        panel.axvline(1.0, color="black", linewidth=0.8)
        panel.set(xscale="log", ylim=(len(bars) - 0.4, -0.6))
        panel.set_yticks(list(places), [one.name for one in bars], fontsize=7)
        panel.set_title(name, fontsize=8, loc="left")
        panel.grid(axis="x", alpha=0.3)
    ticks = panels[-1, 0]
    ticks.tick_params(axis="x", labelsize=7)
    edges = [end for bars in groups.values() for one in bars for end in (*one.spread, one.bar or one.ratio)]
    if max(edges) < 100.0 * min(edges):
        ticks.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        ticks.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    ticks.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    ticks.set_xlabel(label, fontsize=8)
    return figure


def _numpy_ratios(record: Json) -> Any:
    statistics = [
        _bar_of(one["case"], one, one.get("bar")) for one in _found(record, "kernels", "statistics", "rows") or []
    ]
    steps = [
        _bar_of(f"{one['covariances']}, n = {one['n']:,}, d = {one['d']}, k = {one['k']}", one["all"], one.get("bar"))
        for one in _found(record, "kernels", "steps", "rows") or []
    ]
    groups = {
        "statistics: over plain numpy of the same arithmetic without privacy, one processor": statistics,
        "EM steps: over scikit-learn's GaussianMixture, all processors": steps,
    }
    return _bars(groups, "time over the other's; lines: all rounds; red: at most")


def _peers(record: Json) -> list[Json]:
    """All rows of peers.py."""
    parts = _found(record, "peers") or {}
    return [row for part in parts.values() if isinstance(part, dict) for row in part.get("rows", [])]


def _peer_ratios(record: Json) -> Any:
    rows = [row for row in _peers(record) if "ratio" in row]
    bars = [_bar_of(f"{row['case']}  over  {row['peer']}", row, None) for row in rows]
    return _bars({"": bars}, "time over the peer's; lines: all rounds")


AXES = {"rows": ("n", "rows"), "columns": ("d", "columns"), "clusters": ("k", "clusters (FitMRF: states)")}


def _shapes(record: Json) -> Any:
    found = {part: _found(record, "growth", part, "rows") or [] for part in AXES}
    if not any(found.values()):
        return None
    figure, panels = plt.subplots(1, 3, figsize=(9.0, 3.9), layout="constrained", sharey=True)
    names: list[str] = []
    for panel, (part, rows) in zip(panels, found.items(), strict=True):
        axis, label = AXES[part]
        for name in rows[0]["seconds"] if rows else ():
            ours = name in COLOURS
            style = {"marker": "o", "color": COLOURS[name]} if ours else {"marker": "x", "linestyle": "--"}
            style |= {"color": OTHERS.get(name, "gray")} if not ours else {}
            panel.loglog([row[axis] for row in rows], [row["seconds"][name] for row in rows], markersize=4, **style)
            names += [name] if name not in names else []
        if rows:
            others = [f"{key} = {rows[0][key]:,}" for key in ("n", "d", "k") if key != axis]
            panel.set_title(", ".join(others), fontsize=8)
            if part != "rows":
                panel.set_xticks([row[axis] for row in rows], [str(row[axis]) for row in rows])
                panel.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        panel.set_xlabel(label, fontsize=8)
        panel.grid(alpha=0.3)
        panel.tick_params(labelsize=7)
    panels[0].set_ylabel("seconds of one processor, a whole fit", fontsize=8)
    figure.legend(
        panels[0].lines,
        names,
        loc="outside lower center",
        ncols=4,
        fontsize=7,
    )
    return figure


def _steps(record: Json) -> Any:
    rows = _found(record, "kernels", "steps", "rows") or []
    if not rows:
        return None
    figure, axes = plt.subplots(figsize=(6.0, 3.4), layout="constrained")
    names = sorted({row["covariances"] for row in rows})
    for name, colour in zip(names, ("tab:blue", "tab:orange", "tab:green"), strict=False):
        some = [row for row in rows if row["covariances"] == name]
        for whose, style in (("ours", "-o"), ("theirs", "--x")):
            label = f"{name}, {'bursar' if whose == 'ours' else 'scikit-learn'}"
            values = [1e9 * row[whose] / row["n"] for row in some]
            axes.loglog([row["d"] for row in some], values, style, color=colour, label=label)
    columns = sorted({row["d"] for row in rows})
    axes.set_xticks(columns, [str(d) for d in columns])
    axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    axes.set_xlabel(f"columns; k = {rows[0]['k']}, n = {rows[0]['n']:,}", fontsize=8)
    axes.set_ylabel("nanoseconds of a row, one processor", fontsize=8)
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=7)
    figure.legend(loc="outside right upper", fontsize=7)
    return figure


def _scale(record: Json) -> Any:
    sizes = {key: one for key, one in (_found(record, "scale") or {}).items() if isinstance(one, dict)}
    grown = [one["growth of a step"] for one in sizes.values() if "growth of a step" in one]
    spread = [(n, one["threads and processes"]) for n, one in sizes.items() if "threads and processes" in one]
    if not grown and not spread:
        return None
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.2), layout="constrained")
    for one in grown:
        times = {int(n): seconds for n, seconds in one["seconds_by_n"].items()}
        left.loglog(times.keys(), times.values(), "-o", markersize=4, label=f"by the clock, slope {one['slope']:.2f}")
        if "processor_seconds_by_n" in one:
            label = f"of the processor, slope {one['processor_slope']:.2f}"
            left.loglog(times.keys(), one["processor_seconds_by_n"].values(), "--x", markersize=4, label=label)
        last = max(times)
        line = [times[last] * n / last for n in times]
        left.loglog(times.keys(), line, ":", color="black", label="in proportion to the rows")
    left.set_xlabel("rows", fontsize=8)
    left.set_ylabel("seconds of a step, one thread", fontsize=8)
    left.grid(alpha=0.3)
    for n, one in spread[-1:]:
        ways = one["seconds_by_way"]
        drawn = right.bar([name.replace(" ", "\n") for name in ways], list(ways.values()), color="tab:blue", width=0.6)
        right.bar_label(drawn, fmt="%.2f", fontsize=7)
        right.margins(y=0.12)
        right.set_title(f"{int(n):,} rows", fontsize=8)
    right.set_ylabel("seconds of a step", fontsize=8)
    for panel in (left, right):
        panel.tick_params(labelsize=7)
    if grown:
        left.legend(fontsize=7)
    return figure


PANELS = {
    "k-means": ("FitDPEM, k-means", "FitSketchKMeans"),
    "mixture": ("FitDPEM, a mixture",),
    "gradient EM, mixture": ("FitGradientEM, mixture",),
    "gradient EM, regressions": ("FitGradientEM, regressions",),
    "gradient EM, missing features": ("FitGradientEM, missing features",),
    "random field": ("FitMRF, the estimate",),
    "separated Gaussians": ("FitSeparatedGMM",),
}
"""Titles of panels, and the cases of peers.py in each."""


def peer_of(row: Json) -> str:
    """A peer's name and version."""
    return f"{row['peer']} [{row['version']}]" if row.get("version") else str(row["peer"])


def our_points(row: Json) -> list[Json]:
    """Return what the fit itself had, which is apart where the peer's numbers are of an earlier day."""
    points: list[Json] = row["our_points"] if "our_points" in row else row["points"]
    return points


def _accuracy(record: Json) -> Any:
    rows = [row for row in _peers(record) if row.get("points") or row.get("our_points")]
    panels_of = {title: [row for row in rows if row["case"] in cases] for title, cases in PANELS.items()}
    panels_of = {title: some for title, some in panels_of.items() if some}
    if not panels_of:
        return None
    high = -(-len(panels_of) // 2)
    figure, panels = plt.subplots(high, 2, figsize=(9.0, 2.9 * high), layout="constrained", squeeze=False)
    for panel, (title, some) in zip(panels.flat, panels_of.items(), strict=False):
        _accuracy_panel(panel, title, some)
    for panel in panels.flat[len(panels_of) :]:
        panel.set_visible(False)
    return figure


PEER_STYLES = (("black", "--x"), ("gray", "--s"), ("tab:brown", ":x"))


def _accuracy_panel(panel: Any, title: str, rows: Sequence[Json]) -> None:
    """Each fit, and each peer once."""
    lines: dict[str, tuple[Json, str, str, str]] = {}
    for row in rows:
        fit = row["case"].split(",")[0]
        lines.setdefault(fit, ({"points": our_points(row)}, "error", COLOURS.get(fit, "tab:blue"), "-o"))
    for row in rows:
        name = peer_of(row)
        if row.get("recorded"):
            name += f" (earlier, {row['where'].split(', ')[0]})"
        if name not in lines and row["points"]:
            colour, style = PEER_STYLES[(len(lines) - len({one["case"] for one in rows})) % len(PEER_STYLES)]
            lines[name] = (row, "peer_error", colour, style)
    values = []
    for name, (row, key, colour, style) in lines.items():
        some = [point for point in row["points"] if key in point]
        errors = [max(point[key], LEAST_ERROR) for point in some]
        panel.loglog([point["spend"] for point in some], errors, style, color=colour, markersize=4, label=name)
        values += errors
    if "plain" in rows[0]:
        panel.axhline(rows[0]["plain"], color="black", linestyle="-.", linewidth=1, label="labels known, not private")
    if values:
        panel.set_ylim(min(values) / 2.0, max(values) * 2.0)  # nothing is as steep as a small range would make it
    panel.set_title(title, fontsize=9, loc="left")
    panel.set_xlabel(f"{rows[0]['unit']} spent; n = {rows[0]['n']:,}", fontsize=8)
    panel.set_ylabel(rows[0]["measure"], fontsize=7)
    panel.tick_params(labelsize=7, which="both")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(mpl.ticker.LogLocator(numticks=6))
        axis.set_minor_formatter(mpl.ticker.NullFormatter())
    panel.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    if max(values, default=1.0) < 10.0 * min(values, default=1.0):
        panel.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    panel.grid(alpha=0.3)
    panel.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _server(record: Json) -> Any:
    whole = {key: one for key, one in (_found(record, "serving", "whole") or {}).items() if isinstance(one, dict)}
    if not whole:
        return None
    key = max(whole, key=lambda key: (whole[key]["rows"], -whole[key]["quantum"]))
    fits = {name: one for name, one in whole[key].items() if isinstance(one, dict)}
    figure, axes = plt.subplots(figsize=(7.0, 2.6), layout="constrained")
    names, values = list(fits), [1e3 * one["added_median"] for one in fits.values()]
    drawn = axes.barh(names, values, color=[COLOURS.get(name.split(",")[0], "gray") for name in names], height=0.6)
    axes.bar_label(drawn, fmt="%.0f", padding=3, fontsize=7)
    axes.axvline(100.0, color="tab:red", linewidth=1.2, label="at most")
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.set_xlabel(f"milliseconds beyond the engine's own, {whole[key]['rows']:,} rows", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=7)
    return figure


@dataclass(frozen=True)
class Picture:
    """Picture of the page.

    Attributes:
        name: of its file.
        draw: from the record to a figure, None if there is nothing to draw.
        title: of its section.
        text: below it.
        alt: for those who do not see it.
    """

    name: str
    draw: Callable[[Json], Any]
    title: str
    text: str
    alt: str


PICTURES = (
    Picture(
        "numpy",
        _numpy_ratios,
        "Ratio to numpy and to scikit-learn",
        "What privacy costs in time: statistics with truncation and exact sums, over the fastest plain numpy that we "
        "could\nwrite for the same arithmetic without them; and steps of EM over scikit-learn's.",
        "Ratios of statistics and EM steps on a logarithmic axis, with their bars",
    ),
    Picture(
        "peers",
        _peer_ratios,
        "Ratio to each peer",
        "Whole fits beside their nearest peers on the same rows. What they find differs: see accuracy below. Those "
        "that are not\nprivate are named so.",
        "Ratios of whole fits to peers on a logarithmic axis",
    ),
    Picture(
        "shapes",
        _shapes,
        "Time against rows, columns and clusters",
        "Whole fits by default settings, one of the three varied.",
        "Seconds of whole fits against rows, columns and clusters, all logarithmic",
    ),
    Picture(
        "columns",
        _steps,
        "A step of EM against columns",
        "One iteration, all sums included.",
        "Nanoseconds of a row in an EM step against columns, beside scikit-learn's",
    ),
    Picture(
        "scale",
        _scale,
        "Many rows, two processes",
        "A step of FitDPEM with full covariances over a snapshot of ten columns that is made on the spot.",
        "Seconds of a step against rows, and by threads and processes",
    ),
    Picture(
        "accuracy",
        _accuracy,
        "Accuracy against spend",
        "Medians, the less the better; on the same rows as the peers, but for those that were measured earlier.",
        "Errors against what was spent, a panel for each kind of fit, with peers",
    ),
    Picture(
        "server",
        _server,
        "What the server adds",
        "From request to model over TLS, minus the same fit in one process without a server.",
        "Milliseconds that the server adds to each fit, beside the bar of 100",
    ),
)


# --- tables -------------------------------------------------------------------------------------------------


def _peers_table(record: Json) -> str:
    rows = _peers(record)
    if not rows:
        return ""
    lines = [
        "## Peers\n\nErrors are ours / theirs, by what was spent. Peers that no package index has are told with what "
        "was measured of them\nearlier on two such processors.\n",
        "| fit | peer | ours, s | theirs, s | ratio | errors | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours = f"{row['ours']:.3g}" if "ours" in row else ""
        if row.get("recorded"):
            seconds = sorted(set(row["theirs_range"] or ()))
            theirs, ratio, note = " to ".join(f"{one:.3g}" for one in seconds), "", f"earlier: {row['where']}"
        else:
            theirs, ratio, note = f"{row['theirs']:.3g}", f"{row['ratio']:.3g}", f"{row['rounds']} pairs"
        lines.append(
            f"| {row['case']} | {_cell(peer_of(row))} | {ours} | {theirs} | {ratio} | {_errors(row)} | {note} |"
        )
    return "\n".join(lines) + "\n\n"


def _errors(row: Json) -> str:
    own = {point["spend"]: point["error"] for point in our_points(row) if "error" in point}
    texts = []
    for point in row["points"]:
        mine = f"{own[point['spend']]:.2g}" if point["spend"] in own else "-"
        texts.append(f"{row['unit']} {point['spend']:g}: {mine} / {point['peer_error']:.2g}")
    return "; ".join(texts)


def _numbers(record: Json) -> str:
    lines = [
        "## All numbers that are compared between runs\n",
        "| comparison | what | mean | standard deviation | runs |",
        "|---|---|---|---|---|",
    ]
    for script, one in record.get("scripts", {}).items():
        for name, value in one["numbers"].items():
            numbers = f"{_short(value['mean'])} | {_short(value['std'])} | {value['runs']}"
            lines.append(f"| {script} | {_cell(name)} | {numbers} |")
    return "\n".join(lines) + "\n" if lines[3:] else ""
