"""Acts of an analyst and an auditor in the demo, through the SDK only."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import click
import numpy as np

import bursar
from demo._home import Home, command
from demo._picture import draw, draw_graph

DATASET = "rand-hie"
TOTAL = (3.0, 1e-6)
ALLOWANCE = "10%"
"""Share of the total for the second analyst."""
SPEND = bursar.epsilon_delta(1.0, 1e-6)
"""Spend of each fit. Added up by hand, three would be all; the ledger composes them and has room for seven."""

SKETCH_SPEND = bursar.rho(0.005)
"""Spend of a sketch, which answers more questions than a model."""

FIELD_SPEND = bursar.rho(0.005)
"""Spend of tables of columns, their pairs chosen by the server."""

PLANS = ("coinsurance", "visits", "diseases")
PEOPLE = ("visits", "diseases")

GROUPS = bursar.DPEM(n_components=4, columns=PLANS, background="off")
"""Means of groups are those of all their rows, so the tail of visits must not go to a background."""

_UNITS = {"coinsurance": "% paid by the family", "visits": "visits a year", "diseases": "index of diseases"}


@dataclass(frozen=True)
class Tour:
    """One analyst's way through a dataset.

    Attributes:
        data: the dataset, as far as it is public.
        home: where the picture goes.
    """

    data: bursar.Dataset
    home: Home

    def look(self) -> None:
        """Show the public schema and the budget."""
        click.echo(_indented(repr(self.data)))
        click.echo(f"  left: {self.data.remaining()}")

    def preview(self) -> None:
        """Show the price and the expected accuracy of the first fit; free."""
        click.echo(_indented(repr(self.data.preview(GROUPS, spend=SPEND))))

    def fit_plans(self) -> bursar.GaussianMixture:
        """Four components over three columns; one release under one debit."""
        model = self.data.fit(GROUPS, spend=SPEND, request_id="demo-plans")
        _show(model, by="coinsurance")
        click.echo("  Families drew their plan by lot, so all four have about the same index of diseases; the visits")
        click.echo("  fall from free care to almost the full price. That is what the experiment became known for.")
        return model

    def fit_people(self) -> bursar.GaussianMixture:
        """A second question to the same budget."""
        model = self.data.fit(bursar.DPEM(n_components=4, columns=PEOPLE), spend=SPEND, request_id="demo-people")
        _show(model, by="diseases")
        return model

    def repeat(self, model: bursar.GaussianMixture) -> None:
        """The same request again. Raises click.ClickException if it costs anything or gives anything else."""
        before = self.data.remaining()
        again = self.data.fit(bursar.DPEM(n_components=4, columns=PEOPLE), spend=SPEND, request_id="demo-people")
        fields = ("weights_", "means_", "covariances_", "receipt")
        same = all(np.array_equal(getattr(again, name), getattr(model, name)) for name in fields)
        if not same or self.data.remaining() != before:
            raise click.ClickException("a repeated request must get the stored release and cost nothing")
        click.echo("  the stored release came again: same weights, means, covariances and receipt. Debited: nothing")

    def ask_too_much(self) -> None:
        """A request above what is left. Raises click.ClickException if it is not refused, or changes anything."""
        before = self.data.remaining()
        try:
            self.data.fit(GROUPS, spend=bursar.epsilon_delta(*TOTAL))
        except bursar.BudgetExhaustedError as refusal:
            click.echo(_indented(textwrap.fill(f"{type(refusal).__name__}: {refusal}", 110)))
        else:
            raise click.ClickException("the server granted more than was left")
        if self.data.remaining() != before:
            raise click.ClickException("a refusal changed the budget")
        click.echo(f"  left, unchanged: {before}")

    def sketch(self) -> bursar.Sketch:
        """One release, and k-means for several k from it. Raises click.ClickException if decoding costs anything."""
        sketch = self.data.fit(
            bursar.SketchKMeans(decoding="none", n_clusters=4, columns=PEOPLE),
            spend=SKETCH_SPEND,
            request_id="demo-sketch",
        )
        left = self.data.remaining()
        for k in (2, 3, 4):
            model = sketch.kmeans(k)
            order = np.argsort(model.cluster_centers_[:, PEOPLE.index("diseases")])
            centres = ", ".join("({:.1f}, {:.1f})".format(*model.cluster_centers_[i]) for i in order)
            click.echo(f"  k = {k}: (visits, diseases) = {centres}")
        there = self.data.fit(bursar.SketchKMeans(n_clusters=3, sketch=sketch, decoded_by="server"))
        if there.receipt is None or not there.receipt.free or self.data.remaining() != left:
            raise click.ClickException("decoding a sketch that is paid for must cost nothing")
        click.echo(
            f"  the server decodes it, too: {there.n_clusters} clusters from entry {there.receipt.entry},"
            " debited nothing"
        )
        _show_receipt(sketch.receipt)
        return sketch

    def field(self) -> bursar.MarkovRandomField:
        """Return which columns depend on which, and synthetic rows with the same dependences."""
        model = self.data.fit(bursar.MRF(cliques="tree"), spend=FIELD_SPEND, request_id="demo-field")
        pairs = (f"{a} - {b} {nats:.3f}" for (a, b), nats in model.mutual_information().items())
        click.echo(f"  the tree, with mutual information in nats: {', '.join(pairs)}")
        by_health = {
            answer: model.conditional("diseases", {"health": answer})[2:].sum()
            for answer in ("excellent", "good", "fair", "poor")
        }
        shares = ", ".join(f"{answer} {share:.1%}" for answer, share in by_health.items())
        click.echo(f"  an index of diseases of 20 or more, by self-rated health: {shares}")
        click.echo("  five synthetic rows, drawn from the model:")
        click.echo(_indented(model.sample(5, random_state=0, bins="labels").to_string(index=False)))
        draw_graph(model, self.home.graph)
        click.echo(f"  the tree drawn: {os.path.relpath(self.home.graph)}")
        _show_receipt(model.receipt)
        return model

    def draw(self, plans: bursar.GaussianMixture, people: bursar.GaussianMixture) -> None:
        """A picture of both released models."""
        draw(plans, people, self.home.picture)


def spend_the_rest(analyst: bursar.Client) -> bursar.GaussianMixture:
    """Spend as much as the analyst may, decided in the transaction that debits it."""
    data = analyst.dataset(DATASET)
    click.echo(f"  left to him: {data.available()}")
    model = data.fit(GROUPS, spend=bursar.what_is_left(), request_id="demo-rest")
    _show(model, by="coinsurance")
    click.echo(f"  left to him: {data.available()}")
    return model


def audit(home: Home, auditor: bursar.Client, receipts: Sequence[bursar.Receipt]) -> None:
    """Verify the ledger without the server, then look the analyst's receipts up in it."""
    command("bursar-audit", "verify", home.ledger, "--checkpoints", home.checkpoints)
    for receipt in receipts:
        entry = auditor.audit.entries(first=receipt.entry, limit=1)[0]
        if entry.hash != receipt.ledger_head:
            raise click.ClickException(f"entry {receipt.entry} is not the one that its receipt was written for")
    numbers = ", ".join(str(receipt.entry) for receipt in receipts)
    click.echo(
        f"  the analyst's receipts (entries {numbers}) have the hashes that the ledger has: it was not rolled back"
    )
    command("bursar-audit", "report", home.ledger, "--checkpoints", home.checkpoints, "--out", home.report)


def _show(model: bursar.GaussianMixture, *, by: str) -> None:
    """Weights and means, in the data's own units, beside what they cost."""
    receipt, order = model.receipt, np.argsort(model.means_[:, model.columns.index(by)])
    click.echo("  " + "".join(f"{title:>22}" for title in ("share", *(_UNITS[name] for name in model.columns))))
    for weight, mean in zip(model.weights_[order], model.means_[order], strict=True):
        # Adding 0.0 turns a rounded "-0.0" into "0.0".
        click.echo(f"  {weight:>22.1%}" + "".join(f"{round(float(value), 1) + 0.0:>22.1f}" for value in mean))
    _show_receipt(receipt)


def _show_receipt(receipt: bursar.Receipt | None) -> None:
    if receipt is not None:
        click.echo(f"  receipt: entry {receipt.entry}, debited {receipt.price}, left {receipt.remaining}")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
