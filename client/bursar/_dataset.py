"""A handle on one dataset: what is public about it, what is left of its budget, and the fits."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy.typing as npt

from bursar import _convert
from bursar._connection import Connection
from bursar._dpem import DPEMSettings, GaussianPrior, Start
from bursar._dummy import Dummy, Tried, dummy_of, refuse_dummies
from bursar._errors import InvalidRequestError, ServerError
from bursar._fit import fit_dpem, fit_gradient_em, fit_mrf, fit_separated_gmm, fit_sketch
from bursar._gradient_em import (
    GradientEMModel,
    GradientEMSettings,
    GradientStart,
    LatentModel,
    MixtureArguments,
    RegressionArguments,
)
from bursar._mrf import MRFGraph, MRFSettings, PaidTables
from bursar._preview import Preview, preview_from
from bursar._privacy import (
    Adjacency,
    EpsilonDelta,
    Limits,
    Price,
    PrivacyUnit,
    Receipt,
    Remaining,
    Rho,
    Spend,
    WhatIsLeft,
)
from bursar._progress import OneMore, progress_bar
from bursar._releases import (
    Releases,
    ReleaseSummary,
    Sketches,
    get_release,
    list_releases,
    list_sketches,
)
from bursar._schema import CategoricalColumn, Column, NumericColumn
from bursar._separated_gmm import (
    SeparatedCovariance,
    SeparatedEstimator,
    SeparatedGMMSettings,
    SeparatedSearch,
    SeparatedVariant,
)
from bursar._sketch_kmeans import (
    ColumnUnits,
    Computer,
    Decoding,
    NewSketch,
    NewSketchArguments,
    PaidSketch,
    Scale,
    SketchSettings,
    receipt_for_nothing,
)
from bursar._suggest import FIRST_RHO, FitName, Suggestion, Target, suggest
from bursar._text import html_table, text_table
from bursar.models import (
    CovarianceType,
    FrequencyLaw,
    FrequencyStructure,
    GaussianMixture,
    GradientVariant,
    KMeans,
    LinearRegression,
    MarkovRandomField,
    MixtureOfRegressions,
    Model,
    Signature,
    Sketch,
    SymmetricMixture,
)
from bursar.models.mrf._estimation import Estimator, Inference
from bursar.models.mrf._markov_random_field import UnitWeights
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
    dummy: Tried


class SketchArguments(NewSketchArguments, total=False):
    """The keyword arguments that both overloads of `Dataset.fit_sketch_kmeans` share; documented there."""

    spend: Spend | None
    sketch: PaidSketch | None
    foreign: Sequence[Sketch]
    n_init: int | None
    decoder_seed: int
    decoded_by: Computer
    request_id: str | None
    progress: bool | None
    dummy: Tried


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

    def releases(self) -> Releases:
        """The caller's own debits on this dataset, oldest first; asks the server.

        Raises:
            Error: the call failed.
        """
        return list_releases(self._connection, self.name)

    def model(self, entry: ReleaseSummary | Receipt | int) -> Model | Sketch:
        """What one of the caller's own debits released, once more, from any program; debits nothing.

        A fit that still runs is not waited for, nor is one that was cut off run again: ask for the fit itself with the
        same arguments and `request_id`, which does both under the same debit.

        Args:
            entry: of the ledger, or the receipt, or what `releases()` lists.

        Returns:
            The model of the type that the fit returned, learnt again from the stored tables if it is that of `fit_mrf`;
            of `sketch` and `fit_sketch_kmeans`, the sketch.

        Raises:
            NotFoundError: this token's holder has no such debit on this dataset, or it has no release yet.
            TransportError: no answer came.
            ReleaseLostError: the fit was cut off, and this server never runs such a fit again.
            ServerError: the fit ended without a model, or the server failed.
            HistoryError: the server's ledger is not the one that was seen before.

        Example:
            >>> model = data.fit_dpem(n_components=2, spend=bursar.rho(0.1))
            >>> again = data.model(model.receipt)
            >>> again.receipt.replayed, (again.means_ == model.means_).all().item()
            (True, True)
        """
        return get_release(self._connection, self.name, entry)

    def sketches(self) -> Sketches:
        """The caller's own sketches of this dataset, oldest first; asks the server.

        Each can be had again, and decoded again, for nothing: `sketch(entry=...)`, `fit_sketch_kmeans(sketch=...)`.

        Raises:
            Error: the call failed.
        """
        return list_sketches(self._connection, self.name)

    def suggest_spend(
        self, fit: FitName, goal: Target | None = None, /, *, spend: Spend | None = None, **arguments: Any
    ) -> Suggestion:
        """The least spend with which a preview promises an accuracy; debits nothing. Previews turned around.

        It asks for some twenty previews, and ends within two per cent of the least amount. What they promise are rules
        of thumb from public numbers, as a preview's are.

        Args:
            fit: "dpem", "gradient_em", "separated_gmm", "mrf", "sketch" or "sketch_kmeans".
            goal: what the preview shall promise; or give it as `target=`, where the fit has no argument of that name:
                regressions have, which is the column that they explain.
            spend: of which kind, and where to begin: `bursar.rho(...)`, `bursar.epsilon_delta(...)`, for which epsilon
                is looked for at its delta, or `bursar.pure(...)`. None is rho.
            arguments: the others of the fit, which its preview takes, too.

        Returns:
            A suggestion with the spend and its preview. It says if it is more than is left, which is no error.

        Raises:
            InvalidRequestError: no spend reaches the target, this fit's preview does not tell it, or the fit would be
                refused for its arguments.
            Error: a preview failed.

        Example:
            >>> data.suggest_spend("dpem", target=bursar.Target(mean_error=0.3), n_components=2)
            Suggestion: bursar.rho(0.278), which is rho=0.278 of rho=0.9 left; 3 like it are left
                            target  expected
              mean_error of height       0.3
              mean_error of weight       0.3
        """
        previews: dict[str, Callable[..., Preview]] = {
            "dpem": self.preview_dpem,
            "gradient_em": self.preview_gradient_em,
            "separated_gmm": self.preview_separated_gmm,
            "mrf": self.preview_mrf,
            "sketch": self.preview_sketch,
            "sketch_kmeans": self.preview_sketch,
        }
        if fit not in previews:
            raise InvalidRequestError.of("fit", f"must be one of {', '.join(map(repr, previews))}, got {fit!r}")
        if goal is None and isinstance(arguments.get("target"), Target):
            goal = arguments.pop("target")
        if not isinstance(goal, Target):
            given = type(arguments.get("target") if goal is None else goal).__name__
            text = f"must be a bursar.Target, as target= or as the second argument, got {given}"
            raise InvalidRequestError.of("target", text)
        preview = previews[fit]
        return suggest(lambda amount: preview(spend=amount, **arguments), goal, spend or Rho(FIRST_RHO))

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
        dummy: Tried = False,
    ) -> GaussianMixture | KMeans:
        """Fit a mixture of Gaussians, or cluster centres, by differentially private EM; debits `spend`.

        A stream that breaks is asked for again with the same request_id, which costs nothing.

        Args:
            n_components: number of components.
            spend: `bursar.rho(...)`, `bursar.epsilon_delta(...)`, `bursar.pure(...)`, or `bursar.what_is_left()`.
            columns: numeric columns in the order that the model shall have; None for all that are never null.
            covariance_type: "full", "tied", "diag" or "spherical"; None is "full". Not for k-means.
            estimator: maximum likelihood "ml" or maximum a posteriori "map".
            prior: hyperparameters for "map"; None for the server's.
            mode: "mixture", or "kmeans" for hard assignments to the nearest centre.
            moments: "recentred" about the released means, or the paper's "fixed_origin".
            iterations: noisy steps in all, the start's included; None lets the server choose from public numbers.
            start: "splitting" (private, the default), a `RandomStart`, a `GivenStart`, or an earlier model, its receipt
                or its entry. Of a `GaussianMixture` that another fit made the numbers are sent, for nothing.
            clip_radius: of the public ball to which rows are clipped, in half-widths of a column's bounds (for
                spherical covariances and k-means: the largest); None for the ball that holds the whole box.
            request_id: idempotency key, 1 to 64 characters of [A-Za-z0-9_.:-]; None makes one. The same key with the
                same arguments gets the same release without a second debit.
            progress: show a bar; None shows it in terminals and notebooks.
            dummy: True runs the server's code on made-up rows, for nothing, and the result says so (`dummy_`); a
                `bursar.Dummy` says which rows. There is no receipt, and nothing is kept under the request_id.

        Returns:
            A `GaussianMixture`, or a `KMeans` for that mode, with its receipt.

        Raises:
            RefusedError: nothing was debited; `InvalidRequestError`, `BudgetExhaustedError` and others say why.
            TransportError: the stream broke too often; `error.request_id` resumes it.
            ServerError: the server failed, perhaps after the debit.
            HistoryError: the server's ledger is not the one that was seen before; the fit was not sent.

        Example:
            >>> model = data.fit_dpem(n_components=2, columns=["height", "weight"], spend=bursar.rho(0.1))
            >>> model
            GaussianMixture: 2 components, full covariances, entry 2 of 'toy'
              weight  height  weight
                 0.5     130      60
                 0.5     190     120
            >>> model.receipt.price
            Price(rho=0.1, cost_units=1099511627776, delta_units=0)
        """
        tried = self._tried(dummy, start=[start])
        settings = DPEMSettings(
            n_components=n_components,
            spend=self._spend(spend, tried),
            columns=self._numeric_columns() if columns is None else columns,
            covariance_type=covariance_type,
            estimator=estimator,
            prior=prior,
            mode=mode,
            moments=moments,
            iterations=iterations,
            start=start,
            clip_radius=clip_radius,
            dummy=tried is not None,
        )
        request = settings.message(self.name, request_id or str(uuid.uuid4()))
        with progress_bar(progress, f"fit_dpem on {self.name}") as report:
            return fit_dpem(self._connection, request, report, tried)

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

        Example:
            >>> data.preview_dpem(n_components=2, spend=bursar.rho(0.1))
            Preview: debits rho=0.1 of rho=0.9 left; affordable, 9 like it are left
              3 steps; standard deviations of the noise:
              release  times  numbers  counts  sums
              moments      3        2      10     5
              rho=0.8 would be left
              at most, in the columns' units times rows, on sums of moments: height 300, weight 300
              expected error of a component's mean: height 0.5, weight 0.5
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

    @overload
    def fit_sketch_kmeans(
        self, *, n_clusters: int, decoding: Literal["kmeans"] = "kmeans", **arguments: Unpack[SketchArguments]
    ) -> KMeans: ...

    @overload
    def fit_sketch_kmeans(
        self, *, n_clusters: int, decoding: Literal["mixture"], **arguments: Unpack[SketchArguments]
    ) -> GaussianMixture: ...

    def fit_sketch_kmeans(
        self,
        *,
        n_clusters: int,
        spend: Spend | None = None,
        sketch: PaidSketch | None = None,
        foreign: Sequence[Sketch] = (),
        decoding: Decoding = "kmeans",
        columns: Sequence[str] | None = None,
        n_frequencies: int | None = None,
        frequencies_per_row: int | None = None,
        law: FrequencyLaw = "adapted_radius",
        structure: FrequencyStructure = "dense",
        signature: Signature = "exponential",
        units: ColumnUnits = "common",
        scale: Scale = "pilot",
        public_seed: int | None = None,
        n_init: int | None = None,
        decoder_seed: int = 0,
        decoded_by: Computer = "client",
        request_id: str | None = None,
        progress: bool | None = None,
        dummy: Tried = False,
    ) -> KMeans | GaussianMixture:
        """Find cluster centres, or a mixture of Gaussians, in a noisy sketch of the rows; debits `spend`, if any.

        The sketch is what is paid for: noisy sums over the rows of random Fourier moments. The model is decoded from
        it on this machine, which costs nothing; so does decoding it again, with `sketch=` or `model.sketch.kmeans(k)`.
        Give `spend` for a new sketch, or `sketch` for an earlier one, or `foreign` alone.

        A stream that breaks is asked for again with the same request_id, which costs nothing.

        Args:
            n_clusters: number of clusters, or of components.
            spend: pays for a new sketch: `bursar.rho(...)`, `bursar.epsilon_delta(...)`, `bursar.pure(...)`, or
                `bursar.what_is_left()`. Not with `sketch`.
            sketch: an earlier sketch of yours of this dataset, its receipt or its entry. Costs nothing, and the sketch
                itself is decoded without a question to the server.
            foreign: sketches of other sites with the same frequencies, merged with that one before decoding.
            decoding: "kmeans", or "mixture" for Gaussians with diagonal covariances.
            columns: numeric columns in the order that the model shall have; None for all that are never null. This and
                the arguments down to `public_seed` are for a new sketch only.
            n_frequencies: m, the number of moments, 1 to 16384; None lets the server choose from public numbers.
            frequencies_per_row: r, how many of the m moments each row takes part in; None for all. Fewer save the
                server's time; they save no privacy and cost accuracy.
            law: of the frequencies: "adapted_radius", "gaussian", or "multiscale" if the scale is not known.
            structure: "dense", or "hadamard", which is faster for many columns.
            signature: "exponential", or "one_bit" for the signs of cosine and sine.
            units: "common" measures distances as the data do; "bounds" takes every column's half-width as its unit.
            scale: standard deviation of a cluster that the frequencies are tuned to: found by a "pilot" sketch, which a
                part of the spend pays for (`bursar.Pilot(share=..., n_frequencies=...)` says which part); from the
                public "schema", which costs nothing and knows nothing; or a number in the sketch's units, in which the
                widest column (for units="bounds" every column) reaches from -1 to 1.
            public_seed: of the frequencies, 0 to 2^64 - 1; None derives it from the request_id, so that it differs
                between requests. It is part of the request and the answer and protects nothing. Sketches that shall be
                merged need the same one.
            n_init: restarts of the decoder, of which the one that explains the sketch best is kept; they are free.
                None: 20, or as many as take a minute or two, which is fewer for many clusters.
            decoder_seed: of the decoder's random starts; with the same one both sides decode the same but for rounding.
            decoded_by: "client", or "server" for a machine that is too slow: the owner's server decodes then, for
                nothing, and the fit takes it as much longer.
            request_id: idempotency key, 1 to 64 characters of [A-Za-z0-9_.:-]; None makes one for a new sketch. The
                same key with the same arguments gets the same release without a second debit. What is free is computed
                anew each time, to the same result, and needs none.
            progress: show a bar; None shows it in terminals and notebooks.
            dummy: True runs the server's code on made-up rows, for nothing, and the result says so (`dummy_`); a
                `bursar.Dummy` says which rows. There is no receipt, and nothing is kept under the request_id.

        Returns:
            A `KMeans`, or a `GaussianMixture` for that decoding, with its receipt, which says whether it was `free`.
            Its `sketch` is the one that was paid for, before foreign ones were merged with it. The same arguments and
            `request_id` give the same model again.

        Raises:
            RefusedError: nothing was debited; `InvalidRequestError`, `BudgetExhaustedError` and others say why.
            TransportError: the stream broke too often; `error.request_id` resumes it.
            ServerError: the server failed, perhaps after the debit; or this version of bursar draws other frequencies
                than the server's.
            HistoryError: the server's ledger is not the one that was seen before; the request was not sent.

        Example:
            >>> model = data.fit_sketch_kmeans(n_clusters=2, spend=bursar.rho(0.1))
            >>> model.n_clusters, model.receipt.free
            (2, False)
            >>> another = data.fit_sketch_kmeans(n_clusters=5, sketch=model.sketch)
            >>> another.n_clusters, another.receipt.free
            (5, True)
        """
        tried = self._tried(dummy, sketch=[sketch], foreign=foreign)
        if tried is not None and isinstance(sketch, Sketch):
            foreign = (sketch, *foreign)  # by its numbers: no entry is looked up
            sketch = None
        settings = SketchSettings(
            new=NewSketch(
                columns=columns,
                n_frequencies=n_frequencies,
                frequencies_per_row=frequencies_per_row,
                law=law,
                structure=structure,
                signature=signature,
                units=units,
                scale=scale,
                public_seed=public_seed,
            ),
            spend=None if spend is None else self._spend(spend, tried),
            sketch=sketch,
            foreign=foreign,
            n_clusters=n_clusters,
            decoding=decoding,
            n_init=n_init,
            decoder_seed=decoder_seed,
            decoded_by=decoded_by,
        )
        if settings.decoded_here and spend is None:
            return self._decode(settings, request_id, progress, tried)
        request = settings.message(self.name, request_id, self._numeric_columns())
        with progress_bar(progress, f"fit_sketch_kmeans on {self.name}") as report:
            counted = OneMore(report) if settings.decoded_here else report
            found = fit_sketch(self._connection, request, counted, tried)
            if found.decoded is not None:
                return found.decoded
            if found.sketch is None:
                raise ServerError("the server sent no sketch, nor what was to be decoded from it")
            model = settings.decoded(found.sketch, found.sketch.receipt, found.noise[:-1])
            if isinstance(counted, OneMore):
                counted.done()
            return model

    @overload
    def sketch(
        self,
        *,
        spend: Spend,
        n_clusters: int | None = None,
        request_id: str | None = None,
        progress: bool | None = None,
        dummy: Tried = False,
        **arguments: Unpack[NewSketchArguments],
    ) -> Sketch: ...

    @overload
    def sketch(self, *, entry: Receipt | int, progress: bool | None = None) -> Sketch: ...

    def sketch(
        self,
        *,
        spend: Spend | None = None,
        entry: Receipt | int | None = None,
        n_clusters: int | None = None,
        columns: Sequence[str] | None = None,
        n_frequencies: int | None = None,
        frequencies_per_row: int | None = None,
        law: FrequencyLaw = "adapted_radius",
        structure: FrequencyStructure = "dense",
        signature: Signature = "exponential",
        units: ColumnUnits = "common",
        scale: Scale = "pilot",
        public_seed: int | None = None,
        request_id: str | None = None,
        progress: bool | None = None,
        dummy: Tried = False,
    ) -> Sketch:
        """Buy a noisy sketch of the rows, to be decoded here as often as one likes; debits `spend`, if any.

        `sketch.kmeans(k)` and `sketch.gaussian_mixture(k)` ask nobody and cost nothing; `bursar.save_sketch` keeps it.

        Args:
            spend: as in `fit_sketch_kmeans`.
            entry: of an earlier sketch of yours of this dataset, or its receipt; costs nothing. Not with `spend`.
            n_clusters: of a new sketch, about how many clusters you will look for: the server chooses the number of
                frequencies, and the scale by the schema, for that many. None leaves it open.
            columns: this and the other arguments as in `fit_sketch_kmeans`.
            n_frequencies: likewise.
            frequencies_per_row: likewise.
            law: likewise.
            structure: likewise.
            signature: likewise.
            units: likewise.
            scale: likewise.
            public_seed: likewise.
            request_id: likewise.
            progress: likewise.
            dummy: likewise.

        Returns:
            The sketch with its receipt.

        Raises:
            RefusedError: nothing was debited; `InvalidRequestError`, `BudgetExhaustedError` and others say why.
            TransportError: the stream broke too often; `error.request_id` resumes it.
            ServerError: the server failed, perhaps after the debit; or this version of bursar draws other frequencies
                than the server's.
            HistoryError: the server's ledger is not the one that was seen before; the request was not sent.

        Example:
            >>> sketch = data.sketch(spend=bursar.rho(0.1), columns=["height", "weight"], public_seed=1)
            >>> sketch.kmeans(3)  # decoded here, for nothing
            KMeans: 3 clusters, ...
            >>> data.sketch(entry=sketch.receipt.entry).receipt.free  # another day
            True
        """
        tried = self._tried(dummy)
        settings = SketchSettings(
            new=NewSketch(
                columns=columns,
                n_frequencies=n_frequencies,
                frequencies_per_row=frequencies_per_row,
                law=law,
                structure=structure,
                signature=signature,
                units=units,
                scale=scale,
                public_seed=public_seed,
            ),
            spend=None if spend is None else self._spend(spend, tried),
            sketch=entry,
            n_clusters=n_clusters,
            # Nothing is decoded here: a single restart keeps the number of clusters from being too large for that.
            n_init=1,
        )
        return self._fit_sketch(settings, request_id, progress, tried)

    def preview_sketch(
        self,
        *,
        spend: Spend,
        n_clusters: int | None = None,
        columns: Sequence[str] | None = None,
        n_frequencies: int | None = None,
        frequencies_per_row: int | None = None,
        law: FrequencyLaw = "adapted_radius",
        structure: FrequencyStructure = "dense",
        signature: Signature = "exponential",
        units: ColumnUnits = "common",
        scale: Scale = "pilot",
        public_seed: int | None = None,
    ) -> Preview:
        """What `fit_sketch_kmeans` or `sketch` with these arguments would debit, and what to expect. Reads no row.

        Args:
            spend: all arguments as in `fit_sketch_kmeans`.
            n_clusters: None for a sketch alone.
            columns: likewise.
            n_frequencies: likewise.
            frequencies_per_row: likewise.
            law: likewise.
            structure: likewise.
            signature: likewise.
            units: likewise.
            scale: likewise.
            public_seed: likewise.

        Returns:
            A preview with `predicted_snr`, `predicted_relative_sse` and `warnings`.

        Raises:
            RefusedError: the fit would be refused for its arguments; a price above what is left is no error here.
            TransportError: no answer.
        """
        settings = SketchSettings(
            new=NewSketch(
                columns=columns,
                n_frequencies=n_frequencies,
                frequencies_per_row=frequencies_per_row,
                law=law,
                structure=structure,
                signature=signature,
                units=units,
                scale=scale,
                public_seed=public_seed,
            ),
            spend=spend,
            n_clusters=n_clusters,
            # Nothing is decoded: a preview says the same of both, and older servers know no other.
            decoded_by="server",
        )
        request = fit_pb2.PreviewRequest(sketch_kmeans=settings.message(self.name, None, self._numeric_columns()))
        answer = self._connection.ask(self._connection.fits.Preview, request)
        return preview_from(answer, request.sketch_kmeans.columns)

    def fit_mrf(
        self,
        *,
        cliques: MRFGraph,
        spend: Spend | None = None,
        columns: Sequence[str] | None = None,
        precisions: Mapping[tuple[str, ...], float] | None = None,
        share: float | None = None,
        estimator: Estimator = "cgm",
        regularization: float | None = None,
        inference: Inference = "auto",
        unit_weights: UnitWeights | None = None,
        reuse: Sequence[PaidTables] = (),
        estimated_by: Computer = "client",
        request_id: str | None = None,
        progress: bool | None = None,
        dummy: Tried = False,
    ) -> MarkovRandomField:
        """Learn a Markov random field of discrete columns from noisy contingency tables; debits `spend`, if any.

        The tables are what is paid for: every cell of every table gets noise, once. Everything else is computed from
        them, on this machine. They come with the model, and later fits may use them again for nothing.

        A stream that breaks is asked for again with the same request_id, which costs nothing.

        Args:
            cliques: which columns have a table together. A list such as `[("age", "work"), ("work", "income")]`, of one
                or more columns each; "tree" to have the server choose a tree of strong dependences, which a part of the
                spend pays for; "independent" for one table a column; or a `bursar.Chain` of columns in the order of
                time, with the same transitions between all neighbours.
            spend: pays for new tables: `bursar.rho(...)`, `bursar.epsilon_delta(...)`, `bursar.pure(...)`, or
                `bursar.what_is_left()`. Leave it out if `reuse` has all tables.
            columns: categorical columns, and numeric ones that the schema has bins for, in the order that the model
                shall have; those in no clique get a table of their own. None: those of the listed cliques in the order
                of the schema; for "tree" and "independent" all that there are. Not with a chain.
            precisions: of listed cliques relative to one another, such as `{("age", "work"): 4}`: the noise on a
                clique's table is divided by the square root of its precision. None, and those left out: 1.
            share: of the spend, that the choice of a tree has, one-way tables included, 0.05 to 0.9; None leaves it to
                the server, which takes a third.
            estimator: "cgm" infers the true tables and the model together and knows the law of the noise; "nlbp" does
                it by the paper's own loop; "naive" takes the noisy tables, projected to the simplex, for the truth.
            regularization: L2 penalty on the log-potentials, in rows; None: none, and 1 for "naive".
            inference: "exact" on a junction tree, refused where its tables are above the server's limit; "loopy" belief
                propagation; "auto" for exact where that is possible. A graph without cycles is always exact.
            unit_weights: where a person may have several rows: "shares" counts each of K rows as 1/K, for the price of
                one row; "rows" counts each as 1, for the price of all that a person may have. None: shares, or rows
                where a row is the privacy unit.
            reuse: earlier models of this dataset, their receipts or their entries. All their tables are used beside the
                new ones, and cliques that are within one of them are not paid for again.
            estimated_by: "client", or "server" for a machine that is too slow: the owner's server learns the model
                then, for nothing, and the fit takes it as much longer.
            request_id: idempotency key, 1 to 64 characters of [A-Za-z0-9_.:-]; None makes one for what is paid. The
                same key with the same arguments gets the same release without a second debit. What is free is computed
                anew each time, to the same result, and needs none.
            progress: show a bar; None shows it in terminals and notebooks.
            dummy: True runs the server's code on made-up rows, for nothing, and the result says so (`dummy_`); a
                `bursar.Dummy` says which rows. There is no receipt, and nothing is kept under the request_id.

        Returns:
            A `MarkovRandomField` with its receipt and its tables.

        Raises:
            RefusedError: nothing was debited; `InvalidRequestError`, `BudgetExhaustedError` and others say why.
            TransportError: the stream broke too often; `error.request_id` resumes it.
            ServerError: the server failed, perhaps after the debit.
            HistoryError: the server's ledger is not the one that was seen before; the request was not sent.

        Example:
            >>> field = data.fit_mrf(cliques=[("group", "spring"), ("spring", "summer")], spend=bursar.rho(0.1))
            >>> field.columns
            ('group', 'spring', 'summer')
            >>> field.conditional("spring", {"group": "treated"}).round(2).tolist()
            [0.1, 0.19, 0.71]
            >>> data.fit_mrf(cliques=[("spring",)], reuse=[field]).receipt.free
            True
        """
        tried = self._tried(dummy, reuse=reuse)
        if tried is not None and reuse:
            text = "a dummy run looks no earlier tables up; leave reuse out, and say a spend"
            raise InvalidRequestError.of("reuse", text)
        settings = MRFSettings(
            cliques=cliques,
            spend=None if spend is None else self._spend(spend, tried),
            columns=columns,
            precisions=precisions,
            share=share,
            estimator=estimator,
            regularization=regularization,
            inference=inference,
            unit_weights=unit_weights,
            reuse=reuse,
            estimated_by=estimated_by,
        )
        request = settings.message(self.name, request_id)
        with progress_bar(progress, f"fit_mrf on {self.name}") as report:
            if estimated_by == "server":
                return fit_mrf(self._connection, request, report, tried)
            counted = OneMore(report)
            model = fit_mrf(self._connection, request, counted, tried)
            counted.done()
            return model

    def preview_mrf(
        self,
        *,
        cliques: MRFGraph,
        spend: Spend | None = None,
        columns: Sequence[str] | None = None,
        precisions: Mapping[tuple[str, ...], float] | None = None,
        share: float | None = None,
        estimator: Estimator = "cgm",
        regularization: float | None = None,
        inference: Inference = "auto",
        unit_weights: UnitWeights | None = None,
        reuse: Sequence[PaidTables] = (),
    ) -> Preview:
        """What `fit_mrf` with the same arguments would debit, and the noise of every table. Reads no row.

        Args:
            cliques: all arguments as in `fit_mrf`.
            spend: likewise.
            columns: likewise.
            precisions: likewise.
            share: likewise.
            estimator: likewise.
            regularization: likewise.
            inference: likewise.
            unit_weights: likewise.
            reuse: likewise.

        Raises:
            RefusedError: `fit_mrf` would be refused for its arguments; a price above what is left is no error here.
            TransportError: no answer.
        """
        settings = MRFSettings(
            cliques=cliques,
            spend=spend,
            columns=columns,
            precisions=precisions,
            share=share,
            estimator=estimator,
            regularization=regularization,
            inference=inference,
            unit_weights=unit_weights,
            reuse=reuse,
            # Nothing is estimated: a preview says the same of both, and older servers know no other.
            estimated_by="server",
        )
        request = fit_pb2.PreviewRequest(mrf=settings.message(self.name, None))
        return preview_from(self._connection.ask(self._connection.fits.Preview, request), ())

    @overload
    def fit_gradient_em(
        self,
        *,
        model: Literal["symmetric_mixture"],
        spend: Spend,
        centre: npt.ArrayLike | None = None,
        paper_weights: bool = False,
        **arguments: Unpack[MixtureArguments],
    ) -> SymmetricMixture: ...

    @overload
    def fit_gradient_em(
        self,
        *,
        model: Literal["gaussian_mixture"],
        spend: Spend,
        n_components: int | None = None,
        **arguments: Unpack[MixtureArguments],
    ) -> GaussianMixture: ...

    @overload
    def fit_gradient_em(
        self,
        *,
        model: Literal["mixture_of_regressions"],
        spend: Spend,
        target: str,
        n_components: int | None = None,
        symmetric: bool = False,
        fit_intercept: bool = True,
        paper_weights: bool = False,
        **arguments: Unpack[RegressionArguments],
    ) -> MixtureOfRegressions: ...

    @overload
    def fit_gradient_em(
        self,
        *,
        model: Literal["missing_covariates"],
        spend: Spend,
        target: str,
        **arguments: Unpack[RegressionArguments],
    ) -> LinearRegression: ...

    def fit_gradient_em(
        self,
        *,
        model: LatentModel,
        spend: Spend,
        columns: Sequence[str] | None = None,
        target: str | None = None,
        features: Sequence[str] | None = None,
        n_components: int | None = None,
        symmetric: bool = False,
        fit_intercept: bool = True,
        variant: GradientVariant | None = None,
        heavy_tails: bool = False,
        iterations: int | None = None,
        step_size: float | None = None,
        averaged: int | None = None,
        noise_std: float | None = None,
        scale: float | None = None,
        zeta: float | None = None,
        tau: float | None = None,
        start: GradientStart | None = None,
        centre: npt.ArrayLike | None = None,
        units: ColumnUnits = "common",
        paper_weights: bool = False,
        request_id: str | None = None,
        progress: bool | None = None,
        dummy: Tried = False,
    ) -> GradientEMModel:
        """Fit a mixture, or a regression with something hidden, by differentially private gradient EM; debits `spend`.

        Every step sums a bounded gradient over the rows and releases the sum with noise; how many steps there are is
        decided before. The result comes with approximate standard errors.

        A stream that breaks is asked for again with the same request_id, which costs nothing.

        Args:
            model: "symmetric_mixture": two Gaussians at centre + b and centre - b; "gaussian_mixture":
                `n_components` Gaussians, each with one standard deviation in every column;
                "mixture_of_regressions": each row follows one of `n_components` linear regressions;
                "missing_covariates": one linear regression, of which features that the schema calls nullable may be
                missing.
            spend: `bursar.rho(...)`, `bursar.epsilon_delta(...)`, `bursar.pure(...)`, or `bursar.what_is_left()`.
            columns: of mixtures, numeric columns in the order that the model shall have; None for all that are never
                null.
            target: of regressions, the numeric column to explain.
            features: of regressions, the numeric columns that explain it, in the order that the model shall have; None
                for all but the target; only "missing_covariates" has those that may be null.
            n_components: of Gaussian mixtures and mixtures of regressions, k; None is 2.
            symmetric: two regressions b and -b of equal weight without intercept, as in Wang et al. 2020.
            fit_intercept: False for mixtures of regressions through the origin of the data's own units.
            variant: what bounds a row's part of a gradient. "recentred": residuals about the released model, clipped to
                a multiple of the released noise level; "radial": Catoni's truncation of their norm; "truncated":
                algorithm 2 of the paper, Catoni's truncation of every coordinate; "clipped": algorithm 1, norms of
                the gradients about each component clipped to `scale` in every step; "dp_em": algorithm 3, truncated
                sums of the M-step itself, of mixtures only. None leaves it to the server: recentred, or radial for
                mixtures of regressions with `heavy_tails`.
            heavy_tails: say so where rows may lie far out; changes the default variant only.
            iterations: noisy gradient steps, T; None lets the server choose from public numbers.
            step_size: eta of every step; None: full EM steps at first, shorter ones as parameters settle.
            averaged: how many of the last iterates the estimate is the mean of; None is the server's choice, 1 takes
                the last one alone.
            noise_std: standard deviation of the model's noise if it is known without the rows: in the target's unit, or
                the columns' common unit (with units="bounds" in half-widths of the bounds). None estimates it from
                released sums.
            scale: of the variants "truncated" and "dp_em" s, of "clipped" C, in half-widths of the bounds (of
                regressions times the target's); None takes it from released and public numbers.
            zeta: of "truncated" and "dp_em", the probability that they may fail with; None is 0.05.
            tau: likewise, bound of a coordinate's second moment, in squared units of `scale`; None takes it from
                released sums. A wrong one costs accuracy, never privacy.
            start: a `RandomStart` (public seed 0 by default), a `GivenCoefficients`, or an earlier model of this kind,
                whose numbers are sent; for a Gaussian mixture any `GaussianMixture` or `KMeans`.
            centre: of a symmetric mixture, the point between the two means, array-like of shape (n_columns,), in the
                data's own units; None is the middle of the bounds. It must be known without the rows.
            units: of mixtures, "common" measures distances as the data do; "bounds" takes every column's half-width as
                its unit.
            paper_weights: posterior weights as the paper prints them, which lack a factor 2 in the exponent; of
                symmetric models only.
            request_id: idempotency key, 1 to 64 characters of [A-Za-z0-9_.:-]; None makes one. The same key with the
                same arguments gets the same release without a second debit.
            progress: show a bar; None shows it in terminals and notebooks.
            dummy: True runs the server's code on made-up rows, for nothing, and the result says so (`dummy_`); a
                `bursar.Dummy` says which rows. There is no receipt, and nothing is kept under the request_id.

        Returns:
            A `SymmetricMixture`, a `GaussianMixture`, a `MixtureOfRegressions` or a `LinearRegression`, as `model`
            says, with its receipt and its `trace`.

        Raises:
            RefusedError: nothing was debited; `InvalidRequestError`, `BudgetExhaustedError` and others say why.
            TransportError: the stream broke too often; `error.request_id` resumes it.
            ServerError: the server failed, perhaps after the debit.
            HistoryError: the server's ledger is not the one that was seen before; the fit was not sent.

        Example:
            >>> data.fit_gradient_em(model="mixture_of_regressions", target="weight", spend=bursar.rho(0.1))
            MixtureOfRegressions of 'weight': 2 components, entry 2 of 'toy'
              weight       height  intercept  noise
                 0.5  0.5 ± 0.005   10 ± 0.1     12
                 0.5     1 ± 0.01  -70 ± 0.7     12
        """
        tried = self._tried(dummy, start=[start])
        settings = GradientEMSettings(
            model=model,
            spend=self._spend(spend, tried),
            columns=columns,
            target=target,
            features=features,
            n_components=n_components,
            symmetric=symmetric,
            fit_intercept=fit_intercept,
            variant=variant,
            heavy_tails=heavy_tails,
            iterations=iterations,
            step_size=step_size,
            averaged=averaged,
            noise_std=noise_std,
            scale=scale,
            zeta=zeta,
            tau=tau,
            start=start,
            centre=centre,
            units=units,
            paper_weights=paper_weights,
        )
        request = settings.message(self.name, request_id or str(uuid.uuid4()), self._latent_columns(model))
        with progress_bar(progress, f"fit_gradient_em on {self.name}") as report:
            return fit_gradient_em(self._connection, request, report, tried)

    def preview_gradient_em(
        self,
        *,
        model: LatentModel,
        spend: Spend,
        columns: Sequence[str] | None = None,
        target: str | None = None,
        features: Sequence[str] | None = None,
        n_components: int | None = None,
        symmetric: bool = False,
        fit_intercept: bool = True,
        variant: GradientVariant | None = None,
        heavy_tails: bool = False,
        iterations: int | None = None,
        step_size: float | None = None,
        averaged: int | None = None,
        noise_std: float | None = None,
        scale: float | None = None,
        zeta: float | None = None,
        tau: float | None = None,
        start: GradientStart | None = None,
        centre: npt.ArrayLike | None = None,
        units: ColumnUnits = "common",
        paper_weights: bool = False,
    ) -> Preview:
        """What `fit_gradient_em` with the same arguments would debit and how exact it would be. Reads no row.

        Args:
            model: all arguments as in `fit_gradient_em`.
            spend: likewise.
            columns: likewise.
            target: likewise.
            features: likewise.
            n_components: likewise.
            symmetric: likewise.
            fit_intercept: likewise.
            variant: likewise.
            heavy_tails: likewise.
            iterations: likewise.
            step_size: likewise.
            averaged: likewise.
            noise_std: likewise.
            scale: likewise.
            zeta: likewise.
            tau: likewise.
            start: likewise.
            centre: likewise.
            units: likewise.
            paper_weights: likewise.

        Raises:
            RefusedError: `fit_gradient_em` would be refused for its arguments; a price above what is left is no error
                here.
            TransportError: no answer.
        """
        settings = GradientEMSettings(
            model=model,
            spend=spend,
            columns=columns,
            target=target,
            features=features,
            n_components=n_components,
            symmetric=symmetric,
            fit_intercept=fit_intercept,
            variant=variant,
            heavy_tails=heavy_tails,
            iterations=iterations,
            step_size=step_size,
            averaged=averaged,
            noise_std=noise_std,
            scale=scale,
            zeta=zeta,
            tau=tau,
            start=start,
            centre=centre,
            units=units,
            paper_weights=paper_weights,
        )
        # The server checks a preview as it would the fit, the key included; nothing is kept under it.
        message = settings.message(self.name, str(uuid.uuid4()), self._latent_columns(model))
        request = fit_pb2.PreviewRequest(gradient_em=message)
        return preview_from(self._connection.ask(self._connection.fits.Preview, request), message.columns)

    def fit_separated_gmm(
        self,
        *,
        n_components: int,
        sigma_min: float,
        sigma_max: float,
        spend: Spend,
        columns: Sequence[str] | None = None,
        radius: float | None = None,
        min_weight: float | None = None,
        covariance_type: SeparatedCovariance | None = None,
        separation: float | None = None,
        variant: SeparatedVariant = "recursive",
        search: SeparatedSearch = "slabs",
        estimator: SeparatedEstimator | None = None,
        units: ColumnUnits = "common",
        public_seed: int = 0,
        request_id: str | None = None,
        progress: bool | None = None,
        dummy: Tried = False,
    ) -> GaussianMixture:
        """Find Gaussians that lie apart, and estimate each; debits `spend`.

        Rows are split in two where a wide gap is found, and each part again, down to single components. It needs no
        start and no luck, but components that are far enough apart and have rows enough: `preview_separated_gmm` says
        whether they do. If fewer components than were asked for are found, those are the result.

        A stream that breaks is asked for again with the same request_id, which costs nothing.

        Args:
            n_components: k, the most components that are looked for, 1 to 32.
            sigma_min: no component is narrower in any direction (standard deviation), as far as you know without the
                rows. In the data's own units; with units="bounds" in half-widths of the columns' bounds.
            sigma_max: none is wider; likewise. Bounds that are wrong cost accuracy, never privacy.
            spend: `bursar.rho(...)`, `bursar.epsilon_delta(...)`, or `bursar.what_is_left()`; there is no pure variant.
            columns: numeric columns in the order that the model shall have; None for all that are never null.
            radius: R, all means lie in the ball of this radius about the middle of the bounds; units as of `sigma_min`.
                None takes it from the bounds.
            min_weight: no component has a smaller part of the rows, as far as you know; None is 1 / (2 k).
            covariance_type: of each component, "full", "diag" or "spherical". None is "full" for the variant
                "recursive", and "spherical" for the others.
            separation: least distance of two means, as far as you know; units as of `sigma_min`. It only decides how
                much is spent on what. None is 6 times the geometric mean of `sigma_min` and `sigma_max`.
            variant: "recursive"; "easy", algorithm 1 of the paper, for components that are all equally far apart; or
                "sample_and_aggregate", its section 6, to compare with, which needs covariance_type="spherical".
            search: "slabs" between parallel planes, or "balls" in the space of the principal directions, for groups
                that others surround.
            estimator: "em", noisy EM steps from what was found; or "clusters", every row for the component that it was
                put into, as in the paper. None is "em" for the variant "recursive", and "clusters" for the others;
                "sample_and_aggregate" averages its blocks' answers, whatever is asked for.
            units: "common" measures distances as the data do; "bounds" takes every column's half-width as its unit.
            public_seed: of the directions in which splits are looked for, 0 to 2^64 - 1. It is part of the request and
                protects nothing.
            request_id: idempotency key, 1 to 64 characters of [A-Za-z0-9_.:-]; None makes one. The same key with the
                same arguments gets the same release without a second debit.
            progress: show a bar; None shows it in terminals and notebooks.
            dummy: True runs the server's code on made-up rows, for nothing, and the result says so (`dummy_`); a
                `bursar.Dummy` says which rows. There is no receipt, and nothing is kept under the request_id.

        Returns:
            A `GaussianMixture` of `found_` components with its receipt and its errors, see `Separation`. It can start
            `fit_dpem` and `fit_gradient_em` for nothing.

        Raises:
            RefusedError: nothing was debited; `InvalidRequestError`, `BudgetExhaustedError` and others say why.
            TransportError: the stream broke too often; `error.request_id` resumes it.
            ServerError: the server failed, perhaps after the debit.
            HistoryError: the server's ledger is not the one that was seen before; the fit was not sent.

        Example:
            >>> model = data.fit_separated_gmm(n_components=2, sigma_min=1, sigma_max=20, spend=bursar.rho(0.1))
            >>> model.found_, model.means_.tolist()
            (2, [[130.0, 60.0], [190.0, 120.0]])
        """
        tried = self._tried(dummy)
        settings = SeparatedGMMSettings(
            n_components=n_components,
            sigma_min=sigma_min,
            sigma_max=sigma_max,
            spend=self._spend(spend, tried),
            columns=columns,
            radius=radius,
            min_weight=min_weight,
            covariance_type=covariance_type,
            separation=separation,
            variant=variant,
            search=search,
            estimator=estimator,
            units=units,
            public_seed=public_seed,
        )
        request = settings.message(self.name, request_id or str(uuid.uuid4()), self._numeric_columns())
        with progress_bar(progress, f"fit_separated_gmm on {self.name}") as report:
            return fit_separated_gmm(self._connection, request, report, tried)

    def preview_separated_gmm(
        self,
        *,
        n_components: int,
        sigma_min: float,
        sigma_max: float,
        spend: Spend,
        columns: Sequence[str] | None = None,
        radius: float | None = None,
        min_weight: float | None = None,
        covariance_type: SeparatedCovariance | None = None,
        separation: float | None = None,
        variant: SeparatedVariant = "recursive",
        search: SeparatedSearch = "slabs",
        estimator: SeparatedEstimator | None = None,
        units: ColumnUnits = "common",
        public_seed: int = 0,
    ) -> Preview:
        """What `fit_separated_gmm` with the same arguments would debit, and whether it would find them. Reads no row.

        Args:
            n_components: all arguments as in `fit_separated_gmm`.
            sigma_min: likewise.
            sigma_max: likewise.
            spend: likewise.
            columns: likewise.
            radius: likewise.
            min_weight: likewise.
            covariance_type: likewise.
            separation: likewise.
            variant: likewise.
            search: likewise.
            estimator: likewise.
            units: likewise.
            public_seed: likewise.

        Returns:
            A preview with a `preflight`, if the number of rows is public or declared.

        Raises:
            RefusedError: `fit_separated_gmm` would be refused for its arguments; a price above what is left is no error
                here.
            TransportError: no answer.
        """
        settings = SeparatedGMMSettings(
            n_components=n_components,
            sigma_min=sigma_min,
            sigma_max=sigma_max,
            spend=spend,
            columns=columns,
            radius=radius,
            min_weight=min_weight,
            covariance_type=covariance_type,
            separation=separation,
            variant=variant,
            search=search,
            estimator=estimator,
            units=units,
            public_seed=public_seed,
        )
        # The server checks a preview as it would the fit, the key included; nothing is kept under it.
        message = settings.message(self.name, str(uuid.uuid4()), self._numeric_columns())
        request = fit_pb2.PreviewRequest(separated_gmm=message)
        return preview_from(self._connection.ask(self._connection.fits.Preview, request), message.columns)

    def _fit_sketch(
        self, settings: SketchSettings, request_id: str | None, progress: bool | None, tried: Dummy | None
    ) -> Sketch:
        """A sketch, new or paid for earlier."""
        request = settings.message(self.name, request_id, self._numeric_columns())
        with progress_bar(progress, f"fit_sketch_kmeans on {self.name}") as report:
            sketch = fit_sketch(self._connection, request, report, tried).sketch
        if sketch is None:
            raise ServerError("the server sent no sketch")
        return sketch

    def _decode(
        self, settings: SketchSettings, request_id: str | None, progress: bool | None, tried: Dummy | None
    ) -> KMeans | GaussianMixture:
        """What is decoded for nothing. The server is asked for what is not at hand: a sketch, or what is left."""
        request = settings.message(self.name, request_id, ())
        source, receipt = settings.sketch, None
        if source is None:
            self._check_foreign(settings.foreign)
            receipt = None if tried else self._receipt_for_nothing(request.request_id)
        elif isinstance(source, Sketch):
            receipt = None if source.receipt is None else receipt_for_nothing(source.receipt, request.request_id)
        elif tried:
            text = "a dummy run looks nothing up in the ledger; give the sketch itself, or leave it out"
            raise InvalidRequestError.of("entry", text)
        else:
            source = self._fit_sketch(SketchSettings(sketch=source), request_id, progress, None)
            receipt = source.receipt
        settings.check_decoding(settings.foreign[0] if source is None else source)
        model = settings.decoded(source, receipt)
        return model if tried is None else replace(model, dummy_=True)

    def _check_foreign(self, sketches: Sequence[Sketch]) -> None:
        """That sketches of other sites alone are of columns that this dataset has, too. Raises InvalidRequestError."""
        known = self._numeric_columns(nullable=True)
        for index, sketch in enumerate(sketches):
            if not set(sketch.columns) <= set(known):
                text = f"dataset {self.name!r} has other numeric columns: {', '.join(known)}"
                raise InvalidRequestError.of(f"foreign[{index}].columns", text)

    def _receipt_for_nothing(self, request_id: str) -> Receipt:
        """Of what is computed here, and from no release of this server."""
        limits = self.limits()
        return Receipt(
            dataset=self.name,
            request_id=request_id,
            entry=0,
            price=Price(0, 0, 0.0),
            remaining=limits.dataset,
            ledger_head="",
            adjacency=self.adjacency,
            allowance_remaining=limits.allowance,
            free=True,
        )

    def _tried(self, dummy: Tried, **sources: object) -> Dummy | None:
        """Which rows a dummy run makes up; None for a fit that is paid for, in which nothing may come from a dummy."""
        tried = dummy_of(dummy)
        if tried is None:
            for name, given in sources.items():
                refuse_dummies(name, given)
        return tried

    def _spend(self, spend: Spend, tried: Dummy | None) -> Spend:
        """What a dummy run is told instead of `what_is_left`, which only the ledger knows: as much as there is now."""
        if tried is None or not isinstance(spend, WhatIsLeft):
            return spend
        left = self.available().rho
        if not left > 0:
            text = "nothing is left, so a dummy run cannot spend that; say an amount, such as bursar.rho(0.01)"
            raise InvalidRequestError.of("spend", text)
        return Rho(left)

    def _numeric_columns(self, *, nullable: bool = False) -> list[str]:
        """Those that every row has a value of: most fits have no rule for rows without one. `nullable`: all."""
        numeric = [column for column in self.columns if isinstance(column, NumericColumn)]
        return [column.name for column in numeric if nullable or not column.nullable]

    def _latent_columns(self, model: LatentModel) -> list[str]:
        return self._numeric_columns(nullable=model == "missing_covariates")

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
            bounds = message.numeric
            edges = tuple(bounds.bin_edges)
            return NumericColumn(message.name, message.description, bounds.lower, bounds.upper, edges, bounds.nullable)
        case "categorical":
            return CategoricalColumn(message.name, message.description, tuple(message.categorical.categories))
    raise ServerError(
        f"the server sent a kind of column {message.name!r} that this client does not know: upgrade bursar"
    )
