"""A handle on one dataset: what is public about it, what is left of its budget, and the fits."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bursar import _convert
from bursar._connection import Connection
from bursar._dry_run import SyntheticRows
from bursar._errors import ServerError
from bursar._fit import columns_of, dry_run, fit, get_dataset, paid_once, preview
from bursar._fits import Asked, kind_of, refuse_dry_runs
from bursar._forecast import forecast, most_rows, rows_of
from bursar._listing import Listing
from bursar._plan import Plan, divided, plan, spends_of, units_of
from bursar._preview import Preview, with_forecast
from bursar._progress import progress_bar
from bursar._releases import (
    Releases,
    ReleaseSummary,
    Sketches,
    get_release,
    list_releases,
    list_sketches,
    list_unfetched,
)
from bursar._slider import PERCENTS, spend_slider
from bursar._suggest import FIRST_RHO, Suggestion, Target, instead_of, suggest, suggest_foretold
from bursar_amounts import exact_text, total_text
from bursar_models import Model, Sketch
from bursar_models.arrays import FloatArray
from bursar_models.budget import (
    EpsilonDelta,
    Limits,
    NeighbouringRelation,
    Percent,
    PrivacyUnit,
    Receipt,
    Remaining,
    Rho,
    Spend,
    WhatIsLeft,
)
from bursar_models.errors import InvalidRequestError
from bursar_models.expected_rows import Like, rows_like
from bursar_models.requests import Fits, Request, Study
from bursar_models.schema import CategoricalColumn, Column, NumericColumn
from bursar_models.text import harmless, html_table, text_table
from bursar_models.transforms import log1p
from bursar_proto.v1 import catalog_pb2

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, repr=False)
class Dataset:
    """A protected table, as far as it is public. No method gives a row.

    Attributes:
        name: what requests call it.
        description: the owner's words.
        columns: the public schema.
        adjacency: what one privacy unit may do to the table.
        privacy_unit: whose presence is protected.
        public_rows: number of slots under REPLACE_ONE, or what the owner declared; None if that is not public.
        total: the owner's whole budget, as (epsilon, delta).
        retired: nothing new is fitted to it; what was released is still given.
    """

    name: str
    description: str
    columns: tuple[Column, ...]
    adjacency: NeighbouringRelation
    privacy_unit: PrivacyUnit
    public_rows: int | None
    total: EpsilonDelta
    retired: bool
    _connection: Connection = field(compare=False)

    def remaining(self) -> Remaining:
        """Ask the server for the remaining budget, which all analysts share.

        Raises:
            Error: the call failed.
        """
        return self.limits().dataset

    def available(self) -> Remaining:
        """Ask the server for the most that one request of yours may cost now: the smallest of `limits()`.

        `available().rho` is the largest rho that a fit may ask for now, and asking for exactly that is granted, if
        nobody comes between; `bursar.what_is_left()` asks for it so that nobody can.

        Raises:
            Error: the call failed.
        """
        return self.limits().available

    def limits(self) -> Limits:
        """Ask the server for all limits of a request of yours.

        Raises:
            Error: the call failed.
        """
        return _convert.limits_from(get_dataset(self._connection, self.name))

    def releases(self) -> Releases:
        """Ask for the caller's own debits on this dataset, oldest first.

        Raises:
            Error: the call failed.
        """
        return list_releases(self._connection, self.name)

    def recover(self) -> Releases:
        """List the fits on this dataset that were paid and not fetched, see `Client.recover`.

        Raises:
            Error: the call failed.
        """
        return list_unfetched(self._connection, self.name)

    def model(self, entry: ReleaseSummary | Receipt | int) -> Model | Sketch:
        """Fetch what one of the caller's own debits released, from any program, for free.

        A fit that still runs is not waited for, nor is one that was cut off run again: ask for the fit itself with the
        same arguments and `request_id`, which does both under the same debit.

        Args:
            entry: of the ledger, or the receipt, or what `releases()` lists.

        Returns:
            The model of the type that the fit returned, learnt again
            from the stored tables if it is a Markov random field; of a `SketchKMeans`, the sketch.

        Raises:
            NotFoundError: this token's holder has no such debit on this dataset, or it has no release yet.
            TransportError: no answer came.
            ReleaseLostError: the fit was cut off, and this server never runs such a fit again.
            ServerError: the fit ended without a model, or the server failed.
            HistoryError: the server's ledger is not the one that was seen before.

        Example:
            >>> model = data.fit(bursar.DPEM(n_components=2), spend=bursar.rho(0.1))
            >>> again = data.model(model.receipt)
            >>> again.receipt.replayed, (again.means_ == model.means_).all().item()
            (True, True)
        """
        return get_release(self._connection, self.name, entry)

    def sketches(self) -> Sketches:
        """Ask for the caller's own sketches of this dataset, oldest first.

        Each can be fetched and decoded again for free: `model(entry)`, `fit(bursar.SketchKMeans(sketch=entry, ...))`.

        Raises:
            Error: the call failed.
        """
        return list_sketches(self._connection, self.name)

    def fit(
        self,
        request: Fits[ResultT],
        *,
        spend: Spend | None = None,
        request_id: str | None = None,
        anyway: bool = False,
        like: Like | None = None,
        progress: bool | None = None,
    ) -> ResultT:
        """Run a fit on the protected rows; debits `spend`.

        A stream that breaks is asked for again with the same request_id, which is free. After an interrupt or an
        error that leaves open whether it was paid, the message says so; the same fit once more takes the same
        request_id, so it is paid at most once. A fit that is repeated within a day after its model came back is
        another debit, and a `RepeatedFitWarning` says so before it is sent.

        Args:
            request: a `bursar.DPEM`, `SeparatedGMM`, `GradientEM`, `SketchKMeans` or `MRF`.
            spend: `bursar.rho(...)`, `bursar.epsilon_delta(...)`, `bursar.pure(...)`, `bursar.percent(...)` of the
                whole budget, or `bursar.what_is_left()`. None
                for a request that uses earlier releases alone: a sketch that is decoded, or tables that are reused.
            request_id: idempotency key, 1 to 64 characters of [A-Za-z0-9_.:-]; None makes one for what is paid, from
                a hash of the request and a running number. The same key with the same request and spend gets the same
                release without a second debit. What is free is computed anew each time, to the same result, and needs
                none.
            anyway: pay also if the preview says that the answer is useless; otherwise such a fit is refused for free.
            like: as for `preview`: its forecast decides what is useless, in the place of the server's rule of thumb.
            progress: show a bar; None shows it in terminals and notebooks.

        Returns:
            The model that the request's class says, with its receipt.

        Raises:
            RefusedError: nothing was debited; `InvalidRequestError`, `BudgetExhaustedError` and others say why.
            TransportError: the stream broke too often; `error.request_id` resumes it.
            ServerError: the server failed, perhaps after the debit.
            HistoryError: the server's ledger is not the one that was seen before; the fit was not sent.

        Example:
            >>> model = data.fit(bursar.DPEM(n_components=2, columns=["height", "weight"]), spend=bursar.rho(0.1))
            >>> model
            GaussianMixture: 2 components, full covariances, background ..., entry ... of 'toy'
              weight  height  weight
              ...
            >>> round(model.receipt.price.rho, 3)
            0.1
        """
        kind_of(request)
        value: Any = request
        refuse_dry_runs(value)
        if like is not None and not anyway:
            foretold = self.preview(value, spend=spend, like=like, progress=progress)
            if foretold.useless:
                text = f"{foretold.warnings[0]}; spend more, ask for less, or insist with anyway=True (--anyway)"
                raise InvalidRequestError.of("spend", text)
        judged = anyway or like is not None
        with paid_once(self._connection, value, self._asked(spend, request_id or "")) as asked:
            title = f"{type(request).__name__} on {self.name}" + (f", {asked.request_id}" if asked.request_id else "")
            with progress_bar(progress, title) as report:
                model: ResultT = fit(self._connection, value, replace(asked, refuse_useless=not judged), report)
                return model

    def preview(
        self,
        request: Request,
        *,
        spend: Spend | None = None,
        like: Like | None = None,
        progress: bool | None = None,
    ) -> Preview:
        """Return what a fit would cost and how accurate it would be. Reads no rows, debits nothing.

        Without `like` the accuracy is a rule of thumb from the public schema, which knows nothing of the rows. With it,
        the fit is tried a dozen times on made-up rows that are like those of the model or the guess, see `dry_run`.

        Args:
            request: as for `fit`.
            spend: as for `fit`.
            like: what the rows are expected to look like: an earlier model of any fit, released or made by hand, or a
                `bursar.Guess`.
            progress: with `like`, show a bar; None shows it in terminals and notebooks.

        Raises:
            RefusedError: the fit would be refused for its arguments; a price above the remaining budget is no error.
            TransportError: no answer came.

        Example:
            >>> data.preview(bursar.DPEM(n_components=2), spend=bursar.rho(0.1))
            Preview: debits epsilon ... (...%) of epsilon ... (...%) left; affordable, ... like it are left
              13 steps; standard deviations of the noise:
              release  times  numbers  counts  sums  moments
                split      1        4    25.2  25.2     25.2
                split      1        6    19.2  19.2     11.5
               repair      2       12    18.4  18.4     14.7
                   em      1       12    32.7  21.7     15.4
                   em      8       13    32.7  21.7     15.4
              epsilon ... (...%) would be left
              ...
              expected error of a component's mean: height 2, weight 2
              a guess from the public schema alone; like=... (--like) foretells errors and their range
        """
        found = preview(self._connection, request, self._asked(spend, _draft_id(spend)))
        return found if like is None else self._foretold(request, spend, found, like, progress)

    def _foretold(
        self, request: Any, spend: Spend | None, found: Preview, like: Like, progress: bool | None
    ) -> Preview:
        """Return a preview with a forecast.

        Raises:
            InvalidRequestError: the fit is free, or the forecast does not go with the model.
            Error: a dry run failed.
        """
        if spend is None:
            raise InvalidRequestError.of("like", "is for what is paid; leave it out")
        columns = self._columns_like(request, like)

        def run(amount: Spend, values: Mapping[str, FloatArray]) -> Any:
            asked = replace(self._asked(amount, _draft_id(amount)), dry=True)
            rows = SyntheticRows(values=values)
            return dry_run(self._connection, request, asked, rows, lambda step, steps: None)

        n = rows_of(like, self.public_rows)
        with progress_bar(progress, f"forecast of {type(request).__name__} on {self.name}") as report:
            made = forecast(run, like, columns, n, price=found.price, spend=spend, report=report)
        target = getattr(request, "target", None)
        return with_forecast(found, made, self._widths(request), target if isinstance(target, str) else None)

    def _widths(self, request: Any) -> dict[str, float]:
        """Return the width of each numeric column's public range, in the space of the fit."""
        numeric = [column for column in self.columns if isinstance(column, NumericColumn)]
        bounds = {column.name: np.array([column.lower, column.upper]) for column in numeric}
        asked = Asked(dataset=self.name, columns=self.columns)
        transforms = asked.transforms(list(bounds), request.transform) if hasattr(request, "transform") else ()
        ends = {name: log1p(bounds[name]) for name, one in zip(bounds, transforms, strict=False) if one == "log1p"}
        return {name: float(high - low) for name, (low, high) in {**bounds, **ends}.items()}

    def _columns_like(self, request: Any, like: Like) -> list[Column]:
        """Return the columns of a fit whose values are drawn from a model.

        A field without names may have any column: those that the model lacks are made up.
        """
        asked = Asked(dataset=self.name, columns=self.columns, spend=Rho(1.0), dry=True)
        names = set(columns_of(request, asked)) or set(getattr(like, "columns", [one.name for one in self.columns]))
        return [column for column in self.columns if column.name in names]

    def dry_run(
        self,
        request: Fits[ResultT],
        *,
        spend: Spend | None = None,
        rows: int | None = None,
        seed: int = 0,
        like: Like | None = None,
        progress: bool | None = None,
    ) -> ResultT:
        """Run the server's code of a fit on synthetic rows, for free. Nothing is debited or stored.

        Synthetic rows are drawn from the public schema, columns independent of each other: numbers even over a column's
        bounds, or over its bins; categories equally likely; a tenth of the values null where a column may be null.
        With `like` they are drawn from a model or a guess instead.

        Args:
            request: as for `fit`.
            spend: as for `fit`; the noise is that of this spend.
            rows: number of synthetic rows, 1 to 2^20; None for the public or declared number, as far as the server
                allows, and 10,000 if there is none.
            seed: seed of the rows, 0 to 2^64 - 1. The noise is drawn afresh each time, as it is for the fit itself.
            like: as for `preview`; then there are 20,000 rows at most, and 200,000 numbers.
            progress: show a bar; None shows it in terminals and notebooks.

        Returns:
            The model that the request's class says, without a receipt, marked with `dummy_`.

        Raises:
            RefusedError: the fit would be refused for its arguments.
            TransportError: no answer came.
            ServerError: the server failed.

        Example:
            >>> data.dry_run(bursar.DPEM(n_components=2), spend=bursar.rho(0.1), rows=100).dummy_
            True
        """
        kind_of(request)
        synthetic = SyntheticRows(rows, seed)
        if like is not None:
            columns = self._columns_like(request, like)
            n = most_rows(len(columns), rows or rows_of(like, self.public_rows))
            synthetic = replace(synthetic, rows=n, values=rows_like(like, columns, n, seed))
        amount = Rho(self._available_rho()) if isinstance(spend, WhatIsLeft) else spend
        value: Any = request
        with progress_bar(progress, f"dry run of {type(request).__name__} on {self.name}") as report:
            asked = replace(self._asked(amount, _draft_id(amount)), dry=True)
            model: ResultT = dry_run(self._connection, value, asked, synthetic, report)
            return model

    def spend_slider(self, request: Request, *, percents: Sequence[float] = PERCENTS) -> Any:
        """Return a slider from spend to expected error, for a notebook. Asks for previews only; debits nothing.

        Needs `pip install './bursar[notebook]'`. `slider.spend` is the spend that it shows.

        Args:
            request: as for `fit`.
            percents: spends to preview, in percent of the whole budget, in ascending order.

        Raises:
            MissingDependencyError: anywidget is not installed.
            RefusedError: the fit would be refused for its arguments.
            TransportError: no answer came.
        """
        return spend_slider(lambda spend: self.preview(request, spend=spend), percents)

    def suggest_spend(
        self,
        request: Request,
        *,
        target: Target,
        spend: Spend | None = None,
        like: Like | None = None,
        progress: bool | None = None,
    ) -> Suggestion:
        """Find the least spend with which a preview promises an accuracy. Debits nothing.

        It asks for some twenty previews and ends within two per cent of the least amount. What previews promise are
        rules of thumb from public numbers. With `like` they are forecasts, of which it makes eight at most, and the
        suggestion says its range.

        Args:
            request: as for `fit`.
            target: what the preview shall promise.
            spend: kind of the amount, and where to begin: `bursar.rho(...)`, `bursar.epsilon_delta(...)`, which keeps
                its delta, or `bursar.pure(...)`. None is rho.
            like: as for `preview`.
            progress: as for `preview`.

        Returns:
            A suggestion with the spend and its preview. It says if it is more than is left, which is no error.

        Raises:
            InvalidRequestError: no spend reaches the target, the preview does not tell it, or the fit would be refused
                for its arguments.
            Error: a preview failed.

        Example:
            >>> data.suggest_spend(bursar.DPEM(n_components=2), target=bursar.Target(mean_error=0.3))
            Suggestion: bursar.rho(4.45), which is epsilon ... (...%) of epsilon ... (...%) left; ...
                            target  expected
              mean_error of height     0.299
              mean_error of weight     0.299
        """
        if not isinstance(target, Target):
            raise InvalidRequestError.of("target", f"must be a bursar.Target, got {type(target).__name__}")
        find = suggest if like is None else suggest_foretold
        found = find(
            lambda amount: self.preview(request, spend=amount, like=like, progress=progress),
            target,
            self._resolved(spend) or Rho(FIRST_RHO),
        )
        return replace(found, instead=instead_of(request))

    def plan(
        self,
        requests: Sequence[Request],
        *,
        spend: Spend | Sequence[Spend | None] | None = None,
        total: Spend | None = None,
        shares: Sequence[float] | None = None,
        like: Like | None = None,
    ) -> Plan:
        """Price several fits, and say which of them the budget allows in this order. Debits nothing.

        Args:
            requests: in the order in which they would be fitted.
            spend: one for all, so that each may cost as much, or one for each; not what is left.
            total: instead, what all may cost together: `bursar.percent(10)`, `bursar.what_is_left()` or an amount.
            shares: weights of the requests in the total, 0 for one that uses earlier releases alone; None for equal
                ones. Without a total they divide what is left.
            like: as for `preview`, of every fit that is paid; the file of a plan does not keep it.

        Returns:
            A plan, which shows itself as a table. `plan.fits` has requests, spends and previews; `plan.save` keeps it,
            `run` pays it.

        Raises:
            InvalidRequestError: numbers that do not go together.
            RefusedError: one of the fits would be refused for its arguments; a price above the remaining budget is no
                error.
            TransportError: no answer came.

        Example:
            >>> requests = [bursar.DPEM(n_components=k) for k in (2, 3, 4)]
            >>> data.plan(requests, spend=bursar.rho(0.4))
            Plan: 3 fits for epsilon ... (...%) of epsilon ... (...%) left; all affordable
               fit                cost  affordable  left  expected
              DPEM  epsilon ... (...%)         yes  epsilon ... (...%)  mean_error height ..., weight ...
              DPEM  epsilon ... (...%)         yes  epsilon ... (...%)  mean_error height ..., weight ...
              DPEM  epsilon ... (...%)         yes  epsilon ... (...%)  mean_error height ..., weight ...
        """
        limits, requests = self.limits(), tuple(requests)
        for request in requests:
            kind_of(request)
        if spend is not None and (total is not None or shares is not None):
            raise InvalidRequestError.of("spend", "must not be given with total or shares")
        if total is None and shares is None:
            spends = spends_of(requests, spend, limits)
        else:
            spends = divided(total or WhatIsLeft(), shares, requests, limits)
        return self._planned(Study(uuid.uuid4().hex[:16], self.name, requests, tuple(spends)), limits, like)

    def load_plan(self, path: str | Path, *, like: Like | None = None) -> Plan:
        """Return the plan that `Plan.save` wrote, with the prices and limits of now, and what of it is paid.

        Args:
            path: of the file.
            like: as for `plan`.

        Raises:
            OSError: the file cannot be read.
            InvalidRequestError: it holds no plan, or one of another dataset.
            Error: a call failed.
        """
        return self._planned(Study.load(path), like=like)

    def run(
        self, plan: Plan, *, only: Sequence[int] | None = None, anyway: bool = False, progress: bool | None = None
    ) -> list[Any]:
        """Pay the fits of a plan that are not paid yet, in their order, and fetch the models of all.

        The request ids are the plan's: after an error or an interrupt the same call goes on where it ended, from any
        program that has the plan's file, and nothing is paid twice.

        Args:
            plan: of this dataset.
            only: places of the fits to run, from 0; None for all, which are refused before the first is paid if they
                do not fit together.
            anyway: as for `fit`.
            progress: as for `fit`.

        Returns:
            A model for each fit that was run.

        Raises:
            InvalidRequestError: the plan is of another dataset, the budget does not allow all of it, or a fit in it is
                useless; nothing was debited.
            Error: a fit failed; those before it are paid.

        Example:
            >>> plan = data.plan([bursar.DPEM(n_components=k) for k in (2, 3)], total=bursar.rho(0.2))
            >>> plan.save("study.json")
            >>> len(data.run(data.load_plan("study.json")))
            2
            >>> data.load_plan("study.json").unpaid.cost_units
            0
        """
        now = self._planned(plan.study)
        chosen = now.fits if only is None else [now.fits[place] for place in only]
        if only is None and not now.affordable:
            raise InvalidRequestError.of("plan", f"does not fit into the budget, nothing was debited: {now!r}")
        # Where the plan has a forecast, that decides, and not the rule of thumb of a plan that is made anew.
        told = plan.fits if only is None else [plan.fits[place] for place in only]
        told = [old if old.preview.forecast else new for old, new in zip(told, chosen, strict=True)]
        useless = [old for old, new in zip(told, chosen, strict=True) if old.preview.useless and not new.paid]
        if useless and not anyway:
            text = (
                f"{useless[0].request!r} is {useless[0].preview.warnings[0]}; nothing was debited, anyway=True insists"
            )
            raise InvalidRequestError.of("plan", text)
        models: list[Any] = []
        for one in told:
            request: Any = one.request
            name = None if one.spend is None else one.request_id
            judged = anyway or one.preview.forecast is not None
            models.append(self.fit(request, spend=one.spend, request_id=name, anyway=judged, progress=progress))
        return models

    def _planned(self, study: Study, limits: Limits | None = None, like: Like | None = None) -> Plan:
        """Return the plan of a study as it is now. Raises as `load_plan` does."""
        if study.dataset != self.name:
            raise InvalidRequestError.of("plan", f"is of dataset {study.dataset!r}, not of {self.name!r}")
        paid = {release.request_id for release in self.releases()}.intersection(study.request_ids)

        def told(request: Request, amount: Spend | None) -> Preview:
            return self.preview(request, spend=amount, like=None if amount is None else like)

        return plan(study, told, limits or self.limits(), paid)

    def _asked(self, spend: Spend | None, request_id: str) -> Asked:
        """Return what a message has beside its request."""
        return Asked(dataset=self.name, columns=self.columns, spend=self._resolved(spend), request_id=request_id)

    def _resolved(self, spend: Spend | None) -> Spend | None:
        """Return the amount of a spend in percent; any other one as it is."""
        if not isinstance(spend, Percent):
            return spend
        limits = self.limits()
        return Rho(limits.dataset.rho_of(units_of(spend, limits)))

    def _available_rho(self) -> float:
        """Return what a dry run spends instead of `what_is_left`, which only the ledger knows."""
        left = self.available().rho
        if not left > 0:
            text = "nothing is left, so a dry run cannot spend that; say an amount, such as bursar.rho(0.01)"
            raise InvalidRequestError.of("spend", text)
        return left

    def _title(self) -> str:
        return f"Dataset {self.name!r}: {self.description}" if self.description else f"Dataset {self.name!r}"

    def _facts(self) -> str:
        unit = self.privacy_unit
        of_unit = f"{unit.max_rows_per_unit} rows at most of one {unit.unit_column}" if unit.unit_column else "one row"
        rows = "number of rows private" if self.public_rows is None else f"{self.public_rows} rows"
        total = f"epsilon {exact_text(self.total.epsilon)}, delta {exact_text(self.total.delta)}"
        retired = "; retired: nothing new is fitted" if self.retired else ""
        return f"{rows}; privacy unit: {of_unit}; {self.adjacency.name}; total budget: {total}{retired}"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        return ["column", "domain", "description"], [[c.name, c.domain, c.description] for c in self.columns]

    def __repr__(self) -> str:
        return harmless(f"{self._title()}\n{text_table(*self._table())}\n  {self._facts()}")

    def _repr_html_(self) -> str:
        return html_table(f"{self._title()}; {self._facts()}", *self._table())


class Datasets(Listing[Dataset]):
    """Datasets, which show themselves as a table."""

    _names = ("dataset", "datasets")
    _headers = ("dataset", "rows", "columns", "budget", "description")

    def _row(self, one: Dataset) -> list[str]:
        rows = "private" if one.public_rows is None else str(one.public_rows)
        budget = "retired" if one.retired else total_text(one.total.epsilon, one.total.delta)
        return [one.name, rows, str(len(one.columns)), budget, one.description]


def _draft_id(spend: Spend | None) -> str:
    """Return a request id for what is not paid now; what would be free has none."""
    return "" if spend is None else str(uuid.uuid4())


def dataset_from(message: catalog_pb2.Dataset, connection: Connection) -> Dataset:
    """Return a handle on the dataset that a message describes.

    Raises:
        ServerError: a column or an adjacency that this client does not know.
    """
    unit = message.privacy_unit
    return Dataset(
        name=message.name,
        description=message.description,
        columns=tuple(map(_column_from, message.columns)),
        adjacency=_convert.named(_convert.ADJACENCIES, message.adjacency),
        privacy_unit=PrivacyUnit(unit.unit_column or None, unit.max_rows_per_unit or 1),
        public_rows=message.public_rows or None,
        total=EpsilonDelta(message.total.epsilon, message.total.delta),
        retired=message.retired,
        _connection=connection,
    )


def _column_from(message: catalog_pb2.Column) -> Column:
    match message.WhichOneof("kind"):
        case "numeric":
            (transform,) = _convert.transforms_from([message.numeric.transform])
            words = {"name": message.name, "description": message.description}
            return _convert.value_of(NumericColumn, message.numeric, transform=transform, **words)
        case "categorical":
            return CategoricalColumn(message.name, message.description, tuple(message.categorical.categories))
    raise ServerError(
        f"the server sent a kind of column {message.name!r} that this client does not know: upgrade bursar"
    )
