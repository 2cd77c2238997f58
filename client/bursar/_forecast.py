"""Forecasts of a fit's errors, from dry runs on rows like those of an earlier model or a guess. Debits nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bursar._progress import Report
from bursar_models import Model
from bursar_models.arrays import FloatArray
from bursar_models.budget import Price, Pure, Rho, Spend
from bursar_models.errors import InvalidRequestError
from bursar_models.expected_rows import Guess, Like, rows_like
from bursar_models.forecasts import Forecast, factors_of, foretold, replicates_of, scaled, with_cells
from bursar_models.schema import Column

MOST_ROWS, MOST_NUMBERS = 20_000, 200_000
"""Largest table of a dry run: 200,000 numbers are 0.8 MB, below what a server takes by default."""

Run = Callable[[Spend, Mapping[str, FloatArray]], Any]
"""Makes a model in a dry run with a spend on rows of one's own."""


def forecast(
    run: Run, like: Like, columns: Sequence[Column], n: int, *, price: Price, spend: Spend, report: Report
) -> Forecast:
    """Return the errors of fits to rows that are like those that are expected.

    What noise does depends on its size beside the number of rows. So a large table is stood in for by fewer rows, with
    as much less noise: a spend of rho on n rows is rho (n / m)^2 on m.

    Raises:
        InvalidRequestError: no rows can be drawn, or the fit releases nothing that has an error.
        Error: a dry run failed.
    """
    m = most_rows(len(columns), n)
    values = [rows_like(like, columns, m, seed=0)]
    amount = Pure(spend.epsilon * (n / m)) if isinstance(spend, Pure) else Rho(price.rho * (n / m) ** 2)
    models = [[run(amount, values[0])]]
    first = models[0][0]
    each = replicates_of(first, like)
    for seed in range(1, len(each)):
        values.append(rows_like(like, columns, m, seed, cells=True))
        models.append([])
    for done, place in enumerate([i for i, count in enumerate(each) for _ in range(count)][1:], 1):
        report(done, sum(each))
        models[place].append(run(amount, values[place]))
    report(sum(each), sum(each))
    errors, *others = [foretold(*one) for one in zip(models, values, strict=True)]
    if not errors:
        raise InvalidRequestError.of("like", f"foretells nothing of a {type(first).__name__}; leave it out")
    factors = factors_of(first, like, columns)
    if factors:
        errors = with_cells(errors, others, factors) if others else scaled(errors, factors)
    low, middle, high = ({name: found[place] for name, found in errors.items()} for place in range(3))
    return Forecast(
        like=_said(like),
        guessed=not isinstance(like, Model) or like.receipt is None,
        replicates=sum(each),
        rows=m,
        expected=middle,
        low=low,
        high=high,
        wide=bool(factors),
    )


def most_rows(columns: int, n: int) -> int:
    """Return how many rows of a table are sent, n of `columns` numbers at most."""
    return max(1, min(n, MOST_ROWS, MOST_NUMBERS // max(1, columns)))


def rows_of(like: Like, public: int | None) -> int:
    """Return the number of rows that a forecast is for: the public or declared one, or a released estimate.

    Raises:
        InvalidRequestError: it is neither public nor released.
    """
    known = public or getattr(like, "n_rows", None)
    if known is None or not known >= 1:
        text = "cannot be used: the number of rows is neither public nor in the model's n_rows"
        raise InvalidRequestError.of("like", text)
    return round(known)


def _said(like: Like) -> str:
    if isinstance(like, Guess):
        return "a guess"
    if isinstance(like, Model) and like.receipt is not None:
        return f"the {type(like).__name__} of entry {like.receipt.entry}"
    return f"a {type(like).__name__} without a receipt"
