"""The options of fits: made from the SDK's requests, and what is typed arrives as the SDK would send it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from google.protobuf.message import Message

import bursar
from bursar._cli._app import app
from bursar._cli._fitting import METHODS as ALL
from bursar._cli._fitting import Method
from bursar._cli._signatures import arguments
from bursar._fits import KINDS
from bursar_models import requests
from tests import asking

if TYPE_CHECKING:
    from tests.client.cli.conftest import Run, Shop

METHODS = {method.name: method for method in ALL}
GIVEN: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "dpem": (
        (
            *("--n-components", "2", "--epsilon", "1", "--delta", "1e-6", "--columns", "weight,height"),
            *("--covariance-type", "diag", "--estimator", "map", "--prior", "kappa=2,scale=0.5", "--iterations", "4"),
            *("--start", "random:7", "--clip-radius", "0.5", "--moments", "fixed_origin"),
            *("--transform", "weight=log1p", "--transform", "height=none"),
        ),
        {
            "n_components": 2,
            "spend": bursar.epsilon_delta(1, 1e-6),
            "columns": ["weight", "height"],
            "covariance_type": "diag",
            "estimator": "map",
            "prior": bursar.GaussianPrior(kappa=2, scale=0.5),
            "iterations": 4,
            "start": bursar.RandomStart(7),
            "clip_radius": 0.5,
            "moments": "fixed_origin",
            "transform": {"weight": "log1p", "height": "none"},
        },
    ),
    "sketch-kmeans": (
        (
            *("--n-clusters", "2", "--epsilon", "0.5", "--scale", "pilot:share=0.2,n_frequencies=32", "--law"),
            *("multiscale", "--units", "bounds", "--n-init", "3", "--decoder-seed", "9", "--decoding", "mixture"),
        ),
        {
            "n_clusters": 2,
            "spend": bursar.pure(0.5),
            "scale": bursar.Pilot(share=0.2, n_frequencies=32),
            "law": "multiscale",
            "units": "bounds",
            "n_init": 3,
            "decoder_seed": 9,
            "decoding": "mixture",
        },
    ),
    "mrf": (
        (
            *("--cliques", "group,weight", "--cliques", "spring", "--precisions", "weight,group=4", "--what-is-left"),
            *("--estimator", "naive", "--regularization", "2", "--inference", "exact", "--unit-weights", "rows"),
        ),
        {
            "cliques": [("group", "weight"), ("spring",)],
            "precisions": {("weight", "group"): 4.0},
            "spend": bursar.what_is_left(),
            "estimator": "naive",
            "regularization": 2.0,
            "inference": "exact",
            "unit_weights": "rows",
        },
    ),
    "gradient-em": (
        (
            *("--model", "mixture_of_regressions", "--target", "weight", "--rho", "0.1", "--symmetric"),
            *("--no-fit-intercept", "--heavy-tails", "--features", "height", "--step-size", "0.5"),
        ),
        {
            "model": "mixture_of_regressions",
            "target": "weight",
            "spend": bursar.rho(0.1),
            "symmetric": True,
            "fit_intercept": False,
            "heavy_tails": True,
            "features": ["height"],
            "step_size": 0.5,
        },
    ),
    "separated-gmm": (
        ("--n-components", "2", "--sigma-min", "5", "--sigma-max", "20", "--rho", "0.1", "--covariance-type", "diag"),
        {"n_components": 2, "sigma_min": 5, "sigma_max": 20, "spend": bursar.rho(0.1), "covariance_type": "diag"},
    ),
}
LEAST: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "dpem": (("--n-components", "2"), {"n_components": 2}),
    "sketch-kmeans": (("--n-clusters", "2"), {"n_clusters": 2}),
    "mrf": (("--cliques", "tree"), {"cliques": "tree"}),
    "gradient-em": (("--model", "gaussian_mixture"), {"model": "gaussian_mixture"}),
    "separated-gmm": (
        ("--n-components", "2", "--sigma-min", "5", "--sigma-max", "20"),
        {"n_components": 2, "sigma_min": 5, "sigma_max": 20},
    ),
}


def _requests(shop: Shop) -> dict[str, Sequence[Message]]:
    return {
        "dpem": shop.requests,
        "sketch-kmeans": shop.sketch_requests,
        "mrf": shop.mrf_requests,
        "gradient-em": shop.gradient_em_requests,
        "separated-gmm": shop.separated_gmm_requests,
    }


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_every_argument_of_a_fit_has_an_option_that_explains_itself(method: Method) -> None:
    """Options that the SDK adds to a fit are there, too, with words and the SDK's own default."""
    made = {argument.name: argument for argument in arguments(method.kind)}
    assert list(made) == [field.name for field in requests.arguments(method.kind)]
    for argument in made.values():
        for option in argument.options:
            assert len((option.help or "").split()) >= 2, (method.name, option.opts)
            assert not re.search(r"\bNone (for|lets|leaves|makes|takes)\b|bursar\.|`", option.help or "")
    shown = [argument.options for argument in made.values() if isinstance(argument.default, str)]
    assert all(any("[default: " in (option.help or "") for option in options) for options in shown)


def test_every_fit_of_the_sdk_has_both_commands() -> None:
    """A new fit needs no line here."""
    assert {method.kind for method in METHODS.values()} == set(KINDS)
    assert set(METHODS) == set(GIVEN) == {kind.name.replace("_", "-") for kind in KINDS.values()}
    for group in ("fit", "preview"):
        command = app.commands[group]
        assert isinstance(command, click.Group)
        assert set(command.commands) == set(METHODS)


def test_an_argument_of_an_unknown_type_is_not_left_out_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer who adds one has to say how it is typed."""
    field = requests.Argument("shape", complex, None, True, None, "its shape")
    monkeypatch.setattr(requests, "arguments", lambda _: (field,))
    with pytest.raises(TypeError, match=r"say in bursar\._cli\._signatures how"):
        arguments(bursar.DPEM)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("full", [False, True], ids=["least", "full"])
def test_a_command_sends_what_the_sdk_sends(run: Run, shop: Shop, name: str, full: bool) -> None:
    """The same request, but for its id: whatever is not typed is left to the SDK's defaults."""
    words, values = (GIVEN if full else LEAST)[name]
    spend: tuple[str, ...] = () if full else ("--rho", "0.1")
    values = {"spend": bursar.rho(0.1)} | values
    key = f"{name}-{full}"
    result = run("fit", name, "toy", *words, *spend, "--yes", "--request-id", key)
    assert result.exit_code == 0, result.output
    sent = _requests(shop)[name][-1]
    with shop.client() as client:
        asking.fit(client.dataset("toy"), METHODS[name].kind, **values, request_id=key)
    assert sent == _requests(shop)[name][-1]
    assert sent is not _requests(shop)[name][-1]


@pytest.mark.parametrize("name", METHODS)
def test_a_preview_takes_the_options_that_have_a_price(run: Run, shop: Shop, name: str) -> None:
    """It asks about the same fit and debits nothing."""
    debits = sum(map(len, _requests(shop).values()))
    result = run("preview", name, "toy", *LEAST[name][0], "--rho", "0.1")
    assert result.exit_code == 0, result.output
    assert "Preview: debits epsilon " in result.stdout
    assert sum(map(len, _requests(shop).values())) == debits


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--rho", "1", "--epsilon", "1"),
        ("--delta", "1e-6"),
        ("--rho", "1", "--delta", "1e-6"),
        ("--rho", "1", "--what-is-left"),
    ],
)
def test_a_spend_is_said_once(run: Run, words: tuple[str, ...]) -> None:
    """None, two, or half of one: the command is not understood, and says what would be."""
    result = run("fit", "dpem", "toy", "--n-components", "2", *words, "--yes")
    assert result.exit_code == 2
    assert "--what-is-left" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dpem", "--n-components", "2", "--start", "nowhere.json"), "there is no file 'nowhere.json'"),
        (("dpem", "--n-components", "2", "--start", "random:x"), "expected random:SEED"),
        (("dpem", "--n-components", "2", "--start", "start.json"), "none of means, weights, covariances"),
        (("dpem", "--n-components", "2", "--start", "text.txt"), "text.txt is no JSON"),
        (("dpem", "--n-components", "2", "--start", "list.json"), "must have a JSON object"),
        (("dpem", "--n-components", "2", "--start", "."), "Is a directory"),
        (("dpem", "--n-components", "2", "--start", "other.json"), "is no model that this version can read"),
        (("dpem", "--n-components", "2", "--prior", "kapa=2"), "concentration, kappa, nu, scale"),
        (("dpem", "--n-components", "2", "--prior", "kappa=-2"), "must be a positive finite number"),
        (("dpem", "--n-components", "2", "--columns", ","), "expected names such as a,b,c"),
        (("sketch-kmeans", "--scale", "pilot:n_frequencies=1.5"), "expected a whole number"),
        (("sketch-kmeans", "--scale", "wide"), "expected a number"),
        (("sketch-kmeans", "--n-clusters", "2", "--foreign", "text.txt"), "is no sketch"),
        (("mrf", "--cliques", "tree", "--chain", "spring,summer"), "one of them"),
        (("mrf", "--cliques", "tree", "--null", "unknown"), "--null goes with --chain"),
        (("mrf", "--cliques", ","), "expected names such as a,b,c"),
        (("mrf", "--cliques", "tree", "--precisions", "4"), "such as age,work=4"),
        (("gradient-em", "--model", "symmetric_mixture", "--centre", "1;2"), "expected a number"),
    ],
)
def test_what_cannot_be_read_is_an_error_of_usage(run: Run, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """The message says what was expected, before anything is sent."""
    (tmp_path / "start.json").write_text('{"means": [[1, 2]], "weigths": [1]}')
    (tmp_path / "text.txt").write_text("no JSON")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "other.json").write_text("{}")
    result = run("fit", words[0], "toy", *words[1:], "--rho", "0.1", "--yes")
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_other_ways_to_say_where_to_start_and_what_goes_together(run: Run, shop: Shop, tmp_path: Path) -> None:
    """Files with parameters, saved models, entries, chains, and words that are columns, too."""
    (tmp_path / "start.json").write_text(json.dumps({"means": [[160, 60], [170, 80]], "weights": [0.5, 0.5]}))
    (tmp_path / "lines.json").write_text(json.dumps({"coefficients": [[1.0], [2.0]]}))
    dpem = ("fit", "dpem", "toy", "--n-components", "2", "--rho", "0.1", "--yes")
    assert run(*dpem, "--start", "start.json", "--save", "model.json").exit_code == 0
    assert shop.requests[-1].given.weights.values == [0.5, 0.5]
    entry = json.loads(run("releases", "--json").stdout)[-1]["entry"]
    assert run(*dpem, "--start", entry).exit_code == 0
    assert shop.requests[-1].released.entry == entry
    assert run(*dpem, "--start", "splitting").exit_code == 0
    assert shop.requests[-1].WhichOneof("start") == "splitting"
    gradient = ("fit", "gradient-em", "toy", "--rho", "0.1", "--yes", "--model")
    assert run(*gradient, "gaussian_mixture", "--start", "model.json").exit_code == 0
    assert shop.gradient_em_requests[-1].given.coefficients.shape == [2, 2]
    assert run(*gradient, "mixture_of_regressions", "--target", "weight", "--start", "lines.json").exit_code == 0
    assert run(*gradient, "symmetric_mixture", "--centre", "160,80", "--start", "random").exit_code == 0
    assert list(shop.gradient_em_requests[-1].centre.values) == [160, 80]
    chain = run("fit", "mrf", "toy", "--chain", "spring,summer,autumn", "--null", "unknown", "--rho", "0.1", "--yes")
    assert chain.exit_code == 0
    assert shop.mrf_requests[-1].chain.null_category == "unknown"
    missing = run("preview", "mrf", "toy", "--cliques", "tree,", "--rho", "0.1")
    assert missing.exit_code == 1  # a column of this name, which there is not
    assert "has no column of this name" in missing.stderr


def test_no_command_takes_a_token_as_an_argument() -> None:
    """Other users of a machine read arguments."""

    def options(command: click.Command) -> set[str]:
        below = command.commands.values() if isinstance(command, click.Group) else ()
        return {name for p in command.params for name in p.opts}.union(*map(options, below))

    assert {name for name in options(app) if "token" in name} == {"--token-file"}
