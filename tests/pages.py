"""The pages of the documentation: where they are, how their front matter looks, and whose code is run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


PAGES = tuple(
    path.relative_to(ROOT).as_posix()
    for pattern in (
        "*.md",
        "docs/*.md",
        "docs/*/*.md",
        "client/**/*.md",
        "ledger/**/*.md",
        "models/**/*.md",
        "server/**/*.md",
        "tests/attacks/*.md",
    )
    for path in sorted(ROOT.glob(pattern))
)


FRONT_MATTER = re.compile(r"\A\+\+\+\n.*?^\+\+\+\n", re.DOTALL | re.MULTILINE)
"""The fingerprints of a proof."""

WITH_CODE = (
    "README.md",
    "docs/tutorial.md",
    "docs/guide-analyst.md",
    "docs/guide-owner.md",
    "docs/guide-auditor.md",
    "docs/epsilon.md",
    "docs/choosing-bounds.md",
    "docs/choosing-budget.md",
    "docs/fit-dpem.md",
    "docs/howto-transforms.md",
    "docs/fit-sketch-kmeans.md",
    "docs/fit-mrf.md",
    "docs/fit-gradient-em.md",
    "docs/fit-separated-gmm.md",
    "docs/local-mean.md",
    "docs/testing.md",
    "docs/useless.md",
    "docs/forecasts.md",
    "docs/gallery/segments.md",
    "docs/gallery/free-care.md",
    "docs/gallery/teaching-table.md",
    "docs/gallery/several-sites.md",
    "docs/gallery/outliers.md",
    "docs/gallery/how-much.md",
)
"""Pages whose code `tests/test_demo.py` runs against the demo's server."""
