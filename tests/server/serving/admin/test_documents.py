"""Documents about a dataset: their numbers are those of `bursar-audit`, their words those of the manifest."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import click.testing
import pytest

from bursar_amounts import percent_text
from bursar_ledger.audit.cli import main as audit

if TYPE_CHECKING:
    from tests.server.serving.admin.conftest import Admin

UNIT = {"[[columns]]": '[unit]\ncolumn = "who"\nmax_rows = 3\n[[columns]]', "replace_one": "add_remove_one"}
ROWS = "height,who\n1.5,a\n1.7,b\n2,b\n"


@pytest.fixture
def spent(admin: Admin) -> Admin:
    """A dataset of people with several rows, fits of two analysts, and a total that was changed once."""
    admin.ok("import", *admin.table("heights", ROWS, **UNIT), "--epsilon", 2, "--delta", 1e-6, "--yes")
    admin.spend("a")
    admin.spend("b", analyst="bob", scale=17)
    admin.ok("budget", "set", "heights", "--epsilon", 2.5, "--delta", 1e-7, "--reason", "less", "--yes")
    return admin


def _audited(admin: Admin) -> dict[str, Any]:
    words = ["spend", str(admin.state.ledger), "--format", "json"]
    result = click.testing.CliRunner().invoke(audit, words)
    assert result.exit_code == 0, result.output
    (line,) = map(json.loads, result.stdout.splitlines())
    return dict(line)


def test_every_number_of_the_registry_is_the_audits(spent: Admin) -> None:
    """Total, order, fits, what was spent and what is left: equal, not about equal."""
    entry = json.loads(spent.ok("document", "registry", "heights"))
    line = _audited(spent)
    assert {key: entry["budget"][key] for key in ("epsilon", "delta", "order")} == {
        key: line[key] for key in ("epsilon", "delta", "order")
    }
    assert entry["spent"] == {key: line[key] for key in entry["spent"]}
    assert (entry["spent"]["fits"], entry["setting"]["analysts"]) == (2, 2)
    assert [one["epsilon"] for one in entry["budget"]["totals"]] == [2, 2.5]
    assert entry["privacy_unit"]["max_rows"] == 3
    assert [column["name"] for column in entry["domain"]] == ["height"]


@pytest.mark.parametrize("kind", ["statement", "dpia"])
def test_the_numbers_in_words_are_the_audits(spent: Admin, kind: str) -> None:
    """The total, the share that is spent, its rho, and what the total means for a person."""
    text, line = spent.ok("document", kind, "heights"), _audited(spent)
    assert f"({line['epsilon']:g}, {line['delta']:g})" in text
    assert f"({percent_text(line['share'])})" in text
    assert f"{math.ceil(10_000 / (1 + math.exp(-line['epsilon']))) / 100} times" in text.replace("\n", " ").replace(
        " of 100", ""
    )
    assert "TODO" in text
    assert re.search(r"the total was changed 1 time\b", text.lower())
    if kind == "statement":
        assert f"factor of {math.exp(line['epsilon']):.3g}" in text
    else:
        assert f"({percent_text(1 - line['share'], is_left=True)})" in text


def test_where_a_unit_has_several_rows_their_number_is_not_said_to_be_public(admin: Admin) -> None:
    """Another content of a unit may have more rows under replace_one; how many units there are stays the same."""
    unit = {**UNIT, "replace_one": 'replace_one"\npublic_rows = 9\n#"'}
    admin.ok("import", *admin.table("heights", ROWS, **unit), "--epsilon", 2, "--delta", 1e-6, "--yes")
    assert "bounded DP, the number of units is public" in admin.ok("document", "dpia", "heights")


@pytest.mark.parametrize("kind", ["statement", "dpia", "registry"])
def test_they_say_what_is_protected(spent: Admin, kind: str) -> None:
    """The declared unit, and presence only where the manifest makes it a secret; no cell of a row."""
    assert "all rows with one who, 3 at most" in spent.ok("document", kind, "heights")
    spent.add("fixed", rows="height\n1.25\n1.75\n")
    text = spent.ok("document", kind, "fixed")
    assert "one row" in text
    assert "1.25" not in text
    fixed, secret = {
        "statement": ("that you are in the table: this was not promised", "whether you are in this table"),
        "dpia": ("bounded DP, the number of rows is public", "or that they are there"),
        "registry": ("replace_one: bounded DP", "unbounded DP"),
    }[kind]
    assert fixed in text
    assert secret not in text
    assert secret in spent.ok("document", kind, "heights")
