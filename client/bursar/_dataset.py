"""A handle on one dataset: what is public about it, what is left of its budget, and the fits."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict, Unpack, overload

from bursar import _convert
from bursar._connection import Connection
from bursar._dpem import DPEMSettings, GaussianPrior, Start
from bursar._errors import ServerError
from bursar._fit import fit_dpem
from bursar._preview import Preview, preview_from
from bursar._privacy import Adjacency, EpsilonDelta, Limits, Price, PrivacyUnit, Remaining, Spend
from bursar._progress import progress_bar
from bursar._schema import CategoricalColumn, Column, NumericColumn
from bursar._text import html_table, text_table
from bursar.models import CovarianceType, GaussianMixture, KMeans
from bursar_proto.v1 import catalog_pb2, fit_pb2


class DPEMArguments(TypedDict, total=False):
    """The keyword arguments that both overloads of `Dataset.fit_dpem` share; documented there."""

    columns: Sequence[str] | None
    covariance_type: CovarianceType | None
    estimator: Literal["ml", "map"]
    prior: GaussianPrior | None
    moments: Literal["recentred", "fixed_origin"]
    iterations: int | None
    start: Start
    clip_radius: float | None
    request_id: str | None
    progress: bool | None


class ReleaseState(enum.Enum):
    """What became of a debit."""

    RUNNING_OR_INTERRUPTED = "running_or_interrupted"
    """No release yet: the same request_id joins the fit, or runs it under the same debit if it was interrupted."""
    RELEASED = "released"
    """The same request_id gets the stored release."""
    FAILED = "failed"
    """The fit ended without a model and is never run again."""


_STATES = {
    ReleaseState.RUNNING_OR_INTERRUPTED: catalog_pb2.RELEASE_STATE_RUNNING_OR_INTERRUPTED,
    ReleaseState.RELEASED: catalog_pb2.RELEASE_STATE_RELEASED,
    ReleaseState.FAILED: catalog_pb2.RELEASE_STATE_FAILED,
}


@dataclass(frozen=True)
class ReleaseSummary:
    """One of the caller's own debits.

    Attributes:
        entry: position of the debit in the ledger.
        dataset: its name.
        request_id: the fit's idempotency key.
        method: what was fitted.
        price: what was debited.
        time: RFC 3339; informational.
        released: whether there is a model to be had; the same as `state is ReleaseState.RELEASED`.
        state: what became of it.
    """

    entry: int
    dataset: str
    request_id: str
    method: str
    price: Price
    time: str
    released: bool
    state: ReleaseState


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
    adjacency: Adjacency
    privacy_unit: PrivacyUnit
    public_rows: int | None
    total: EpsilonDelta
    retired: bool
    _connection: Connection = field(compare=False)

    def remaining(self) -> Remaining:
        """What is left now of the budget that everybody shares; asks the server.

        Raises:
            Error: the call failed.
        """
        return self.limits().dataset

    def available(self) -> Remaining:
        """What one request of yours may cost now: the smallest of `limits()`; asks the server.

        `available().rho` is the largest rho that a fit may ask for now, and asking for exactly that is granted, if
        nobody comes between; `bursar.what_is_left()` asks for it so that nobody can.

        Raises:
            Error: the call failed.
        """
        return self.limits().available

    def limits(self) -> Limits:
        """Everything that a request of yours has to fit into; asks the server.

        Raises:
            Error: the call failed.
        """
        return _convert.limits_from(get_dataset(self._connection, self.name))

    def releases(self) -> list[ReleaseSummary]:
        """The caller's own debits on this dataset, oldest first; asks the server.

        Raises:
            Error: the call failed.
        """
        releases: list[ReleaseSummary] = []
        token = 0
        while True:
            request = catalog_pb2.ListReleasesRequest(dataset=self.name, page_token=token)
            answer = self._connection.ask(self._connection.catalog.ListReleases, request)
            releases += map(_release_from, answer.releases)
            if not answer.next_page_token > token:  # 0 for the last page; a smaller one would never end
                return releases
            token = answer.next_page_token

    @overload
    def fit_dpem(
        self,
        *,
        n_components: int,
        spend: Spend,
        mode: Literal["mixture"] = "mixture",
        **arguments: Unpack[DPEMArguments],
    ) -> GaussianMixture: ...

    @overload
    def fit_dpem(
        self, *, n_components: int, spend: Spend, mode: Literal["kmeans"], **arguments: Unpack[DPEMArguments]
    ) -> KMeans: ...

    # Spelt out, though long: an editor or a notebook completes the names that the signature has.
    def fit_dpem(
        self,
        *,
        n_components: int,
        spend: Spend,
        columns: Sequence[str] | None = None,
        covariance_type: CovarianceType | None = None,
        estimator: Literal["ml", "map"] = "ml",
        prior: GaussianPrior | None = None,
        mode: Literal["mixture", "kmeans"] = "mixture",
        moments: Literal["recentred", "fixed_origin"] = "recentred",
        iterations: int | None = None,
        start: Start = "splitting",
        clip_radius: float | None = None,
        request_id: str | None = None,
        progress: bool | None = None,
    ) -> GaussianMixture | KMeans:
        """Fit a mixture of Gaussians, or cluster centres, by differentially private EM; debits `spend`.

        A stream that breaks is asked for again with the same request_id, which costs nothing.

        Args:
            n_components: number of components.
            spend: `bursar.rho(...)`, `bursar.epsilon_delta(...)`, `bursar.pure(...)`, or `bursar.what_is_left()`.
            columns: numeric columns in the order that the model shall have; None for all.
            covariance_type: "full", "tied", "diag" or "spherical"; None is "full". Not for k-means.
            estimator: maximum likelihood "ml" or maximum a posteriori "map".
            prior: hyperparameters for "map"; None for the server's.
            mode: "mixture", or "kmeans" for hard assignments to the nearest centre.
            moments: "recentred" about the released means, or the paper's "fixed_origin".
            iterations: noisy steps in all, the start's included; None lets the server choose from public numbers.
            start: "splitting" (private, the default), a `RandomStart`, a `GivenStart`, or an earlier model, its receipt
                or its entry.
            clip_radius: of the public ball to which rows are clipped, in half-widths of a column's bounds (for
                spherical covariances and k-means: the largest); None for the ball that holds the whole box.
            request_id: idempotency key, 1 to 64 characters of [A-Za-z0-9_.:-]; None makes one. The same key with the
                same arguments gets the same release without a second debit.
            progress: show a bar; None shows it in terminals and notebooks.

        Returns:
            A `GaussianMixture`, or a `KMeans` for that mode, with its receipt.

        Raises:
            RefusedError: nothing was debited; `InvalidRequestError`, `BudgetExhaustedError` and others say why.
            TransportError: the stream broke too often; `error.request_id` resumes it.
            ServerError: the server failed, perhaps after the debit.
            HistoryError: the server's ledger is not the one that was seen before; the fit was not sent.
        """
        settings = DPEMSettings(
            n_components=n_components,
            spend=spend,
            columns=self._numeric_columns() if columns is None else columns,
            covariance_type=covariance_type,
            estimator=estimator,
            prior=prior,
            mode=mode,
            moments=moments,
            iterations=iterations,
            start=start,
            clip_radius=clip_radius,
        )
        request = settings.message(self.name, request_id or str(uuid.uuid4()))
        with progress_bar(progress, f"fit_dpem on {self.name}") as report:
            return fit_dpem(self._connection, request, report)

    def preview_dpem(
        self,
        *,
        n_components: int,
        spend: Spend,
        columns: Sequence[str] | None = None,
        covariance_type: CovarianceType | None = None,
        estimator: Literal["ml", "map"] = "ml",
        prior: GaussianPrior | None = None,
        mode: Literal["mixture", "kmeans"] = "mixture",
        moments: Literal["recentred", "fixed_origin"] = "recentred",
        iterations: int | None = None,
        start: Start = "splitting",
        clip_radius: float | None = None,
    ) -> Preview:
        """What `fit_dpem` with the same arguments would debit and how exact it would be. Reads no row.

        Args:
            n_components: all arguments as in `fit_dpem`.
            spend: likewise.
            columns: likewise.
            covariance_type: likewise.
            estimator: likewise.
            prior: likewise.
            mode: likewise.
            moments: likewise.
            iterations: likewise.
            start: likewise.
            clip_radius: likewise.

        Raises:
            RefusedError: `fit_dpem` would be refused for its arguments; a price above what is left is no error here.
            TransportError: no answer.
        """
        settings = DPEMSettings(
            n_components=n_components,
            spend=spend,
            columns=self._numeric_columns() if columns is None else columns,
            covariance_type=covariance_type,
            estimator=estimator,
            prior=prior,
            mode=mode,
            moments=moments,
            iterations=iterations,
            start=start,
            clip_radius=clip_radius,
        )
        # The server checks a preview as it would the fit, the key included; nothing is kept under it.
        request = fit_pb2.PreviewRequest(dpem=settings.message(self.name, str(uuid.uuid4())))
        answer = self._connection.ask(self._connection.fits.Preview, request)
        return preview_from(answer, request.dpem.columns)

    def _numeric_columns(self) -> list[str]:
        return [column.name for column in self.columns if isinstance(column, NumericColumn)]

    def _title(self) -> str:
        return f"Dataset {self.name!r}: {self.description}" if self.description else f"Dataset {self.name!r}"

    def _facts(self) -> str:
        unit = self.privacy_unit
        of_unit = f"{unit.max_rows_per_unit} rows at most of one {unit.unit_column}" if unit.unit_column else "one row"
        rows = "number of rows private" if self.public_rows is None else f"{self.public_rows} rows"
        total = f"epsilon {self.total.epsilon:g}, delta {self.total.delta:g}"
        retired = "; retired: nothing new is fitted" if self.retired else ""
        return f"{rows}; privacy unit: {of_unit}; {self.adjacency.name}; total budget: {total}{retired}"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        return ["column", "domain", "description"], [[c.name, c.domain, c.description] for c in self.columns]

    def __repr__(self) -> str:
        return f"{self._title()}\n{text_table(*self._table())}\n  {self._facts()}"

    def _repr_html_(self) -> str:
        return html_table(f"{self._title()}; {self._facts()}", *self._table())


def get_dataset(connection: Connection, name: str) -> catalog_pb2.Dataset:
    """What the server says about one dataset.

    Raises:
        NotFoundError: there is none of this name.
        Error: the call failed.
    """
    return connection.ask(connection.catalog.GetDataset, catalog_pb2.GetDatasetRequest(dataset=name)).dataset


def dataset_from(message: catalog_pb2.Dataset, connection: Connection) -> Dataset:
    """A handle on the dataset that a message describes.

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
            return NumericColumn(message.name, message.description, message.numeric.lower, message.numeric.upper)
        case "categorical":
            return CategoricalColumn(message.name, message.description, tuple(message.categorical.categories))
    raise ServerError(
        f"the server sent a kind of column {message.name!r} that this client does not know: upgrade bursar"
    )


def _release_from(message: catalog_pb2.ReleaseSummary) -> ReleaseSummary:
    return ReleaseSummary(
        entry=message.entry,
        dataset=message.dataset,
        request_id=message.request_id,
        method=message.method,
        price=_convert.price_from(message.price),
        time=message.time,
        released=message.released,
        state=_convert.named(_STATES, message.state),
    )
