"""The page about fits on real tables, from the results of `real_tables.py`."""

from __future__ import annotations

from collections.abc import Sequence

from _common import Json
from _real import INSTALL

HEAD = """# Real tables

How accurate fits are on real tables, for a user who gives columns, a number of clusters or components, and a spend, and
leaves everything else to the server. The tables come from packages, with public bounds that were written by hand and
never read off the rows; `bench/_real.py` has all of them. The guarantee is (epsilon, 1e-6), adding or removing a row;
methods that are called pure have (epsilon, 0). Every method has the same rows, each column scaled by its bounds to the
interval from -1 to 1. Tables that are held out have no part in the choice of any default.

```sh
.venv/bin/python bench/real_tables.py
.venv/bin/python bench/real_tables.py --page
```

measures everything, in a day, and writes this page. What is not in a table below was not measured. The words `kmeans`,
`mixtures` and `categories` measure that part anew and leave the others; `--tables`, `--methods`, `--epsilons` and
`--seeds` measure less; `--tuning` leaves out the tables that are held out. Packages that have the tables, and how to
install them (a table that is missing is named, and left out):

{install}

Two peers are on no index. For Google's LSH clustering put the folder `learning` of the repository
google/differential-privacy on `PYTHONPATH`; for PE-means (arXiv 2606.00342) also the repository t3humphries/PE-means,
and `pip install faiss-cpu`.

A cell has the median over seeds and, in brackets, the worst seed. Smaller is better everywhere.

"""

PARTS = {
    "kmeans": (
        "k-means",
        "Sum of squared distances to the nearest centre, divided by that of the best of ten starts of Lloyd's "
        "algorithm, which is not private. One centre is the mean of all rows, not private either; "
        "the method of that name is FitDPEM with one cluster.",
        (("k", "k"), ("one centre", "one_centre")),
        ("sse",),
    ),
    "mixtures": (
        "Mixtures of Gaussians",
        "Mean log-likelihood below that of scikit-learn's mixture with full covariances (one start, not private), in "
        "nats a row. The column of one Gaussian has the mean and the covariance of all rows, not private; the method "
        "of that name is FitDPEM with one component.",
        (("K", "k"), ("one Gaussian", "one_gaussian")),
        ("nats",),
    ),
    "categories": (
        "Tables of categories",
        "Total variation between the model's and the table's distribution of two columns, mean over all pairs of "
        "columns; and mean log-likelihood below that of the best tree (Chow and Liu 1968, not private), in nats a row. "
        "The independent model in the columns is not private.",
        (("independent: variation", "independent_variation"), ("nats", "independent_nats")),
        ("variation", "nats"),
    ),
}
"""Title, explanation, facts by the heads of their columns, and errors of each part."""


def page_of(results: Json, earlier: str = "") -> str:
    """Return the page of what `real_tables.py` saved; parts that were not measured stay as in the earlier page."""
    install = "\n".join(f"- `{line}`" for line in INSTALL.values())
    known = dict(section.split("\n", 1) for section in earlier.split("\n## ")[1:])
    sections = [HEAD.format(install=install).rstrip()]
    for part, (title, _, _, _) in PARTS.items():
        if part in results:
            sections.append(f"## {title}\n\n{section_of(part, results[part])}")
        elif title in known:
            sections.append(f"## {title}\n{known[title].rstrip()}")
    return "\n\n".join(sections) + "\n"


def section_of(part: str, found: Json) -> str:
    """Return what is under a part's title."""
    seeds = " to ".join(map(str, sorted({row["seeds"] for row in found["rows"]})))
    blocks = [f"{PARTS[part][1]} Seeds: {seeds}; commit {found['commit']}."]
    for held_out in (False, True):
        if rows := [row for row in found["rows"] if row["held_out"] == held_out]:
            blocks += ["Held out:"] * held_out + [table_of(part, rows)]
    return "\n\n".join(blocks)


def table_of(part: str, rows: Sequence[Json]) -> str:
    """Return the Markdown table of a part's rows, a line for each table, method and error."""
    _, _, facts, errors = PARTS[part]
    epsilons = sorted({row["epsilon"] for row in rows})
    heads = ["table", "n", "d", *(head for head, _ in facts), "method", *(f"eps {epsilon:g}" for epsilon in epsilons)]
    lines = [heads, ["---"] * len(heads)]
    for table, method in dict.fromkeys((row["table"], row["method"]) for row in rows):
        some = {row["epsilon"]: row for row in rows if (row["table"], row["method"]) == (table, method)}
        first = next(iter(some.values()))
        known = [table, f"{first['n']:,}", str(first["d"]), *(f"{first[name]:.4g}" for _, name in facts)]
        for error in errors:
            cells = [cell_of(some[epsilon][error]) if epsilon in some else "" for epsilon in epsilons]
            lines.append([*known, method if len(errors) == 1 else f"{method}: {error}", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell_of(error: Json) -> str:
    """Return the median and, in brackets, the worst seed."""
    return f"{error['median']:.4g} [{error['worst']:.4g}]"
