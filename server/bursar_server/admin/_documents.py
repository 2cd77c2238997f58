"""Documents about a dataset, from manifest and ledger: for the people in it, for its data protection, for a registry.

Every amount is computed by the functions of `bursar-audit`, so that an auditor finds the same numbers.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from bursar_amounts import exact_text, odds_factor, total_text
from bursar_ledger import Adjacency, DatasetState, Ledger
from bursar_ledger.audit._formats import InOrder
from bursar_ledger.audit._history import AccountHistory, history
from bursar_ledger.audit._open import opened as opened_for_audit
from bursar_ledger.audit._open import rows
from bursar_ledger.audit._spend import Spend, spend_lines
from bursar_ledger.audit._text import counted
from bursar_server.admin._acting import STATE, opened, say_json
from bursar_server.admin._totals import guesses
from bursar_server.state import State
from bursar_server.tables import Manifest
from bursar_server.tables.catalogue import Registered

_UNPROTECTED = (
    "what is true of people like them whether or not they are in the table: a model that says how many smokers fall "
    "ill says something about every smoker",
    "what the owner declares public: that the table exists, its name, description, columns, bounds and categories",
    "the rows themselves on the owner's machine, which the owner and the server's operators can read",
    "groups: several units together are protected less than one, m of them as by m times m the rho",
    "the machine's side channels, and time in full",
)


@dataclass(frozen=True)
class _Facts:
    """Facts of a dataset that the documents state."""

    state: DatasetState
    manifest: Manifest
    account: AccountHistory
    spend: Spend

    @classmethod
    def of(cls, state: State, ledger: Ledger, name: str) -> _Facts:
        dataset = ledger.dataset(name)
        with opened_for_audit(state.ledger) as file:
            account = history(rows(file)).accounts[dataset.account]
        (spend,) = spend_lines(account, by_analyst=False, pld=False)
        return cls(dataset, Registered.of(dataset.manifest).manifest, account, spend)

    @property
    def columns(self) -> str:
        return ", ".join(column.name for column in self.manifest.columns)

    @property
    def unit(self) -> str:
        unit = self.manifest.unit
        return "one row" if unit.column is None else f"all rows with one {unit.column}, {unit.max_rows} at most"

    @property
    def protects_presence(self) -> bool:
        return self.manifest.adjacency is Adjacency.ADD_REMOVE_ONE

    @property
    def neighbours(self) -> str:
        if self.protects_presence:
            return "tables that differ in the presence of one unit (add_remove_one: unbounded DP)"
        # How many rows one unit has is part of its content.
        known = "rows" if self.manifest.unit.column is None else "units"
        return (
            f"tables that differ in the content of one unit (replace_one: bounded DP, the number of {known} is public)"
        )

    @property
    def total(self) -> str:
        return f"(epsilon, delta) = {total_text(self.spend.epsilon, self.spend.delta)}"

    @property
    def spent(self) -> str:
        return str(self.state.spent)

    @property
    def factor(self) -> str:
        return f"{odds_factor(self.spend.epsilon):.3g}"


@click.group(cls=InOrder)
def document() -> None:
    """Write documents about a dataset: for its people, for data protection, for a registry."""


def _command(function: Callable[[_Facts], None]) -> None:
    @document.command(function.__name__.strip("_"), help=function.__doc__)
    @click.argument("name")
    @STATE
    def command(name: str, directory: Path) -> None:
        with opened(directory) as (state, ledger):
            facts = _Facts.of(state, ledger, name)
        function(facts)


@_command
def _statement(facts: _Facts) -> None:
    """Write the statement for the people in the table, in plain words: what is kept, promised, and not protected.

    Markdown, with a TODO for what only the owner knows. Read it before you hand it out.
    """
    _say(_statement_lines(facts))


@_command
def _dpia(facts: _Facts) -> None:
    """Write a draft of the section of a data protection impact assessment: processing, risks, measures, numbers.

    Markdown, with a TODO for each judgement that is the controller's.
    """
    _say(_dpia_lines(facts))


@_command
def _registry(facts: _Facts) -> None:
    """Write an entry for a registry of deployments of differential privacy, tier 3: all parameters, in JSON.

    Unit, domain, composition, budget, mechanisms, and what is not protected. Fill in the fields that are null.
    """
    manifest, spend = facts.manifest, facts.spend
    say_json(
        {
            "tier": 3,
            "product": {"name": manifest.name, "description": manifest.description, "owner": None, "contact": None},
            "setting": {
                "model": "central",
                "access": "interactive model fits",
                "analysts": len(facts.account.spenders),
            },
            "privacy_unit": {"unit": facts.unit, "max_rows": manifest.unit.max_rows, "neighbours": facts.neighbours},
            "domain": [
                {key: value for key, value in column.model_dump(mode="json").items() if value not in (None, "", [], {})}
                for column in manifest.columns
            ],
            "public_rows": manifest.public_rows,
            "budget": {
                "variant": "(epsilon, delta), enforced by a filter at one Renyi order",
                "epsilon": spend.epsilon,
                "delta": spend.delta,
                "order": spend.order,
                "period": "the dataset's whole life, all analysts together, without renewal",
                "datasets": list(facts.account.datasets),
                "totals": [
                    {"entry": one.entry, "time": one.time, "epsilon": one.epsilon, "delta": one.delta}
                    for one in facts.account.promises
                ],
            },
            "spent": {
                "fits": spend.fits,
                "rho": spend.rho,
                "share": spend.share,
                "left_rho": spend.left_rho,
                "cost_units": spend.cost_units,
                "nominal_epsilon": spend.nominal_epsilon,
            },
            "composition": "fully adaptive, concurrent (Feldman and Zrnic 2021; Lecuyer 2021; Haney et al. 2023)",
            "conversion": "Canonne, Kamath and Steinke 2020, proposition 12",
            "mechanisms": ["discrete Gaussian", "discrete Laplace", "exponential mechanism"],
            "not_protected": list(_UNPROTECTED),
            "implementation": {"name": "bursar", "version": importlib.metadata.version("bursar"), "reviewed": None},
            "state": "retired" if facts.state.retired else "in use",
        }
    )


def _statement_lines(facts: _Facts) -> Iterator[str]:
    manifest = facts.manifest
    right, _ = guesses(facts.state.budget)
    secret = (
        "whether you are in this table, and what it says about you"
        if facts.protects_presence
        else "what the table says about you"
    )
    unit = manifest.unit
    yield f"# Your data in the table {manifest.name}\n"
    yield f"{manifest.description or 'TODO: what the table is, and why it is kept.'}\n"
    yield "## What is kept\n"
    yield f"The table has {len(manifest.columns)} columns: {facts.columns}."
    if unit.column is not None:
        yield f"The column {unit.column} says whose row it is. It is used when the table is read, and is not kept."
        yield f"At most {unit.max_rows} of your rows {'is' if unit.max_rows == 1 else 'are'} used."
    yield "TODO: how long it is kept, on what legal basis, and who to ask.\n"
    yield "## What others get\n"
    yield "Nobody outside gets a row. Analysts ask for statistical models. A computer adds random noise to what it"
    yield "counts in the table before anything is given out, and keeps a record of it that can only be added to.\n"
    yield "## What is promised\n"
    yield f"The noise hides {secret}. Suppose that somebody sees everything that is ever given out, knows the data of"
    yield "everybody else, and thinks it as likely as not that a claim about you is true. Then they guess right"
    yield f"{right} times of 100 at most; the odds change by a factor of {facts.factor} at most. This may fail with a"
    yield f"probability of about {exact_text(facts.spend.delta)}. In technical words: {facts.total}; protected is"
    yield f"{facts.unit}.\n"
    yield "The promise holds for everything together, for as long as the table exists. So far it was used for"
    yield f"{counted(facts.spend.fits, 'model')}: {facts.spent} of the total. When all of it is spent, no more are"
    yield "computed.\n"
    if changes := len(facts.account.promises) - 1:
        yield f"The total was changed {counted(changes, 'time')}: TODO say when, and why.\n"
    yield "## What is not protected\n"
    yield from _points(_UNPROTECTED)
    if not facts.protects_presence:
        yield "* that you are in the table: this was not promised."


def _dpia_lines(facts: _Facts) -> Iterator[str]:
    manifest, spend = facts.manifest, facts.spend
    right, gaussian = guesses(facts.state.budget)
    yield f"# Impact assessment: draft for the dataset {manifest.name}\n"
    yield "Written from the manifest and the ledger. TODO marks what the controller has to judge.\n"
    yield "## Description of the processing\n"
    yield f"* Purpose: {manifest.description or 'TODO'} TODO: legal basis, controller, processors."
    yield f"* Data: {facts.columns}. Columns that are not listed are not imported."
    yield f"* Size: {f'about {manifest.public_rows:,} rows' if manifest.public_rows else 'TODO'}."
    yield "* Recipients: analysts with a token, who receive models with noise and never rows."
    yield f"* Erasure: bursar-admin retire {manifest.name} --delete-rows --destroy-key, with an entry. TODO: when.\n"
    yield "## Necessity and proportionality\n"
    yield "* TODO: why models are needed, and why these columns, bounds and categories.\n"
    yield "## Risks to the people, and measures\n"
    yield "| risk | measure | what is left |"
    yield "|---|---|---|"
    yield (
        f"| what is given out tells of a person{' or that they are there' if facts.protects_presence else ''} "
        f"| differential privacy: {facts.total} for {facts.unit} | a guess from fifty-fifty is right {right} times of "
        f"100 at most, {gaussian} if all is Gaussian noise; failure with probability about {exact_text(spend.delta)} |"
    )
    yield "| analysts combine answers, or collude | one budget for all, enforced before a row is read | nothing more |"
    yield "| rows are read on the machine | access to the state directory, encrypted disk | TODO: who has access |"
    yield "| an old ledger is put back | signed checkpoints elsewhere | TODO: where they are kept |\n"
    yield "## Numbers\n"
    yield f"* neighbouring tables: {facts.neighbours}"
    yield f"* privacy unit: {facts.unit}"
    yield f"* total: {facts.total}; share of the account {spend.account}, with {spend.datasets}"
    analysts = counted(len(facts.account.spenders), "analyst")
    yield f"* spent: {facts.spent}, by {counted(spend.fits, 'fit')} of {analysts}"
    yield f"* left: {facts.state.left}"
    if changes := len(facts.account.promises) - 1:
        yield f"* the total was changed {counted(changes, 'time')}: bursar-admin budget show {manifest.name} lists them"
    yield "\n## Not protected\n"
    yield from _points(_UNPROTECTED)
    yield "\nTODO: opinion of the data protection officer and, where it is due, of the people."


def _points(texts: tuple[str, ...]) -> Iterator[str]:
    yield from (f"* {text}" for text in texts)


def _say(lines: Iterator[str]) -> None:
    for line in lines:
        click.echo(line)
