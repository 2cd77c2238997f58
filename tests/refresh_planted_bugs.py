"""Write the page of the audit's planted bugs, from the lists that the tests plant: `docs/planted-bugs.md`.

A test compares the page with the lists. After a change of a planted bug:

    python -m tests.refresh_planted_bugs
"""

from __future__ import annotations

from pathlib import Path

from tests.audit.fits import FITS
from tests.audit.mrf_mutants import CHOICE_RUNS, SINGLE_CHOICES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "planted-bugs.md"

HEAD = """\
<!-- Written by tests/refresh_planted_bugs.py -->
# Planted bugs of the audit

Each bug is planted in the real fit, and each named test must condemn it by itself, with n runs on each of two
neighboring tables. n is so large that such a test misses the bug less than once in 1e6. The
[page of the audit](audit.md) explains the tests and lists the bugs that the conformance catalogue plants in every
fit. The last column says which command plants it.
"""

TABLE = """\
| bug | tests that must see it | n | command |
|---|---|---|---|
"""


def page() -> str:
    """Return the page's text: a table for each fit."""
    parts = [HEAD]
    for fit, covered in FITS.items():
        mutants = list(covered.mutants())
        rows = (
            f"| {one.bug.replace('|', chr(92) + '|')} | {', '.join(sorted(one.seen_by))} | {one.n} "
            f"| `make {'slow' if one.slow else 'test'}` |\n"
            for one in mutants
        )
        parts.append(f"## {fit}: {len(mutants)} bugs\n\n{TABLE}{''.join(rows)}")
    rows = (f"| {bug} | T8 odds | {CHOICE_RUNS} | `make test` |\n" for bug in SINGLE_CHOICES)
    parts.append(f"## Choices of FitMRF: {len(SINGLE_CHOICES)} bugs\n\n{TABLE}{''.join(rows)}")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
