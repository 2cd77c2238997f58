"""Commands: what they print, ask and refuse, and the exit status that scripts go by."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import grpc
import pytest
from click.shell_completion import BashComplete
from google.rpc import error_details_pb2

import bursar
from bursar._cli._app import app
from bursar._cli._failing import _FOR_PROGRAMS, explained, in_options
from bursar._cli._printing import plain, say, say_table, table

if TYPE_CHECKING:
    from tests.client.cli.conftest import Run, Shop

DPEM = ("dpem", "toy", "--n-components", "2", "--rho", "0.1")


def _commands(group: click.Command, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    if not isinstance(group, click.Group):
        return {path: group}
    below = [_commands(command, (*path, name)) for name, command in group.commands.items()]
    return {path: group, **{name: command for found in below for name, command in found.items()}}


COMMANDS = _commands(app)
LEAVES = {path: command for path, command in COMMANDS.items() if not isinstance(command, click.Group)}


def test_every_command_explains_itself(run: Run) -> None:
    """More than its name said again; every one that does something has --json, says its exit status, and an example."""
    for path in COMMANDS:
        result = run(*path, "--help")
        assert result.exit_code == 0, path
        assert len((COMMANDS[path].help or "").split()) >= 5, path
        if path in LEAVES:
            assert "--json" in result.stdout or path == ("try",), path  # which prints what its command prints
            assert "Exit status:" in result.stdout, path
            assert f"\n    bursar {' '.join(path)}" in result.stdout, path


def test_the_commands_come_in_the_order_of_an_analysts_work(run: Run) -> None:
    """The connection first, the price before the fit, the model last."""
    listed = run("--help").stdout.partition("Commands:")[2].partition("Exit status")[0]
    names = [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line.strip()]
    assert [n for n in names if n in app.commands] == [*app.commands]
    assert [*app.commands] == [
        "setup",
        "datasets",
        "show",
        "limits",
        "preview",
        "suggest",
        "plan",
        "fit",
        "releases",
        "model",
        "try",
    ]


def test_what_there_is_and_what_is_left(run: Run) -> None:
    """Names, bounds, categories and amounts, each in its own words."""
    listed = run("datasets").stdout
    assert re.search(r"toy +1000  6 +\(100000, 1e-06\)  epsilon \S+ \(\S+%\) +invented people", listed)
    shown = run("show", "toy").stdout
    assert "height  100 to 220" in shown
    assert "well, ill, unknown" in shown
    assert re.search(r"left of the budget: epsilon \S+ \(\S+%\)", shown)
    assert re.search(r"yours now +epsilon \S+ \(\S+%\)  +\S+", run("limits", "toy").stdout)


REMAINING = {
    "cost_units",
    "delta_units",
    "cap_cost_units",
    "cap_delta_units",
    "rho",
    "pure_epsilon",
    "order",
    "share",
    "epsilon",
    "delta",
    "budget_cost_units",
}
DATASET = {"name", "description", "columns", "adjacency", "privacy_unit", "public_rows", "total", "retired"}
PREVIEW = {"price", "remaining", "available", "affordable", "fits_left", "noise", "iterations", "warnings"}
RELEASE = {"entry", "dataset", "request_id", "method", "price", "time", "released", "state"}


def test_json_has_the_names_of_the_sdk(run: Run) -> None:
    """Every command; a script may rely on these."""
    run("fit", *DPEM, "--yes", "--save", "model.json")
    (data,) = (one for one in json.loads(run("datasets", "--json").stdout) if one["name"] == "toy")
    assert set(data) == DATASET | {"available"}
    shown = json.loads(run("show", "toy", "--json").stdout)
    assert set(shown) == DATASET | {"limits"}
    assert shown["columns"][0] == {
        "kind": "numeric",
        "name": "height",
        "description": "",
        "lower": 100.0,
        "upper": 220.0,
        "bin_edges": [],
        "nullable": False,
        "transform": "none",
    }
    assert shown["adjacency"] == "replace_one"
    limits = json.loads(run("limits", "toy", "--json").stdout)
    assert set(limits) == {"dataset", "allowance", "call", "available"}
    assert set(limits["available"]) == REMAINING
    assert limits["call"] is None
    preview = json.loads(run("preview", *DPEM, "--json").stdout)
    assert set(preview) >= PREVIEW
    assert set(preview["expected"]["mean_error"]) == {"height", "weight"}
    fitted = json.loads(run("fit", *DPEM, "--yes", "--json").stdout)
    assert set(fitted) == {"receipt", "saved", "model"}
    assert fitted["saved"] is None
    assert fitted["model"]["kind"] == "GaussianMixture"
    assert {"entry", "price", "remaining", "ledger_head", "request_id", "free", "replayed"} <= set(fitted["receipt"])
    for words in (("releases",), ("releases", "toy")):
        assert set(json.loads(run(*words, "--json").stdout)[-1]) == RELEASE
    assert sum(json.loads(run("model", "show", "model.json", "--json").stdout)["weights_"]) == pytest.approx(1)


def test_json_has_no_numbers_that_json_has_not() -> None:
    """NaN and infinity are null, numpy's numbers are numbers."""
    import numpy as np

    values = {"a": float("nan"), "b": np.float64(1.5), "c": np.array([1.0, np.inf]), 3: (np.int64(2), None, True)}
    assert plain(values) == {"a": None, "b": 1.5, "c": [1.0, None], "3": [2, None, True]}


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_nothing_is_spent_without_a_yes(run: Run, shop: Shop, answer: str) -> None:
    """Price and remainder are shown first, on standard error; no and an empty answer end it."""
    before = len(shop.requests)
    result = run("fit", *DPEM, answer=answer)
    assert result.exit_code == 1
    assert len(shop.requests) == before
    assert re.search(r"price  epsilon \S+ \(\S+%\) of the budget", result.stderr)
    assert re.search(r"left   epsilon \S+ \(\S+%\), after it epsilon \S+ \(\S+%\)", result.stderr)
    assert "note   the shop is small" in result.stderr
    assert not result.stdout


@pytest.mark.usefixtures("terminal")
def test_a_yes_buys_the_model(run: Run, shop: Shop, tmp_path: Path) -> None:
    """The model and its receipt on standard output, the file beside, the request id on standard error."""
    result = run("fit", *DPEM, "--save", "model.json", answer="y\n")
    assert result.exit_code == 0
    assert result.stdout.startswith("GaussianMixture: 2 components")
    assert re.search(r"debited epsilon \S+ \(\S+%\), left epsilon \S+ \(\S+%\)", result.stdout)
    assert f"request id {shop.requests[-1].request_id}: give it with --request-id" in result.stderr
    assert isinstance(bursar.load(tmp_path / "model.json"), bursar.GaussianMixture)


def test_a_dummy_run_asks_and_pays_nothing(run: Run, shop: Shop, tmp_path: Path) -> None:
    """No question without --yes, no debit; the file and the text say what it is."""
    before = len(shop.requests)
    result = run("fit", *DPEM, "--dry-run", "--dry-run-rows", "50", "--dry-run-seed", "7", "--save", "dummy.json")
    assert result.exit_code == 0
    assert (len(shop.requests), shop.dummy_requests[-1].rows, shop.dummy_requests[-1].public_seed) == (before, 50, 7)
    assert "DUMMY" in result.stdout
    assert "nothing was debited" in result.stdout
    assert "request id" not in result.stderr
    model = bursar.load(tmp_path / "dummy.json")
    assert isinstance(model, bursar.GaussianMixture)
    assert model.dummy_
    told = json.loads(run("fit", *DPEM, "--dry-run", "--json").stdout)
    assert (told["receipt"], told["model"]["dummy_"]) == (None, True)
    assert "go with --dry-run" in run("fit", *DPEM, "--dry-run-rows", "50").stderr
    assert "leave it out with --dry-run" in run("fit", *DPEM, "--dry-run", "--request-id", "again").stderr


def test_a_suggestion_for_every_fit(run: Run, shop: Shop) -> None:
    """The line of a preview with a target in the place of the spend; nothing is asked, nothing is debited."""
    before = len(shop.requests)
    result = run("suggest", "dpem", "toy", "--n-components", "2", "--mean-error", "0.6")
    assert result.stdout.startswith("Suggestion: bursar.rho(")
    told = json.loads(
        run("suggest", "mrf", "toy", "--cliques", "group,spring", "--table-error", "0.1", "--json").stdout
    )
    assert 0 < told["spend"]["value"] < 1
    field = ("suggest", "mrf", "toy", "--json", "--table-errors")
    amounts = [json.loads(run(*field, wanted).stdout)["spend"]["value"] for wanted in ("0.1", "group,spring=0.2")]
    assert amounts[0] > amounts[1]
    assert "one of them" in run(*field, "0.1", "--table-errors", "group,spring=0.2").stderr
    assert "is none of" in run(*field, "group,winter=0.2").stderr
    epsilon = run("suggest", "dpem", "toy", "--n-components", "2", "--delta", "1e-6", "--noise", "em=20")
    assert "bursar.epsilon_delta(" in epsilon.stdout
    lines = ("gradient-em", "toy", "--model", "mixture_of_regressions", "--target", "weight")
    assert "relative_error" in run("suggest", *lines, "--relative-error", "0.2").stdout
    for wrong, text in (
        (["--mean-error", "0"], "target.mean_error"),
        ([], "at least one of --mean-error, --quantile-error, --noise"),
        (["--noise", "moments"], "expected a name and a number"),
        (["--mean-error", "1", "--pure", "--delta", "1e-6"], "not both"),
    ):
        refused = run("suggest", "dpem", "toy", "--n-components", "2", *wrong)
        assert refused.exit_code != 0
        assert text in refused.stderr
    assert len(shop.requests) == before


def test_without_a_terminal_somebody_has_to_say_yes(run: Run, shop: Shop) -> None:
    """A script that forgot --yes spends nothing."""
    before = len(shop.requests)
    result = run("fit", *DPEM)
    assert result.exit_code == 1
    assert "give --yes" in result.stderr
    assert len(shop.requests) == before


@pytest.mark.usefixtures("terminal")
def test_what_is_above_the_rest_is_refused_before_the_question(run: Run, shop: Shop) -> None:
    """Status 3, with the most that would do."""
    shop.poor = True
    before = len(shop.requests)
    result = run("fit", *DPEM, answer="y\n")
    assert result.exit_code == 3
    assert re.search(r"ask for at most --spend \S+%, or for --what-is-left\. Nothing was debited", result.stderr)
    assert len(shop.requests) == before


def test_a_refusal_of_the_server_has_the_status_of_one(run: Run, shop: Shop) -> None:
    """Status 3, and what less would do; without amounts no advice about amounts."""
    amounts = {f"{which}_{what}": "1" for which in ("requested", "remaining") for what in ("cost_units", "delta_units")}
    amounts |= {"cap_cost_units": f"{9 * 10**12}", "remaining_cost_units": f"{10**12}", "cap_delta_units": "9"}
    amounts |= {"remaining_rho": "0.25", "requested_rho": "5"}
    amounts |= {"remaining_pure_epsilon": "1", "order": "9", "limit": "dataset"}
    amounts |= {
        "budget_cost_units": f"{9 * 10**12}",
        "delta": "1e-6",
        "requested_epsilon": "9",
        "requested_share": "0.2",
    }
    for metadata, advice in ((amounts, True), ({}, False)):
        info = error_details_pb2.ErrorInfo(domain="bursar", reason="BUDGET_EXHAUSTED", metadata=metadata)
        shop.failures.append((grpc.StatusCode.RESOURCE_EXHAUSTED, "too dear", [info]))
        result = run("fit", *DPEM, "--yes")
        assert result.exit_code == 3
        assert "Error: too dear" in result.stderr
        assert ("at most --spend 11.1%" in result.stderr) == advice


def test_a_broken_stream_says_how_to_go_on(run: Run, shop: Shop) -> None:
    """Status 4; the same command with the id that it names pays nothing more, and does not ask again."""
    shop.break_next(3)
    broken = run("fit", *DPEM, "--yes")
    assert broken.exit_code == 4
    key = shop.requests[-1].request_id
    assert f"Give the same command with --request-id {key}" in broken.stderr
    entries = len(json.loads(run("releases", "--json").stdout))
    resumed = run("fit", *DPEM, "--request-id", key)
    assert resumed.exit_code == 0
    assert "nothing more is debited" in resumed.stderr
    assert "nothing was debited" in resumed.stdout
    assert len(json.loads(run("releases", "--json").stdout)) == entries


@pytest.mark.parametrize(("code", "status"), [("INTERNAL", 4), ("INVALID_ARGUMENT", 1), ("UNAUTHENTICATED", 1)])
def test_the_status_of_other_failures(run: Run, shop: Shop, code: str, status: int) -> None:
    """A failed server may have debited; a refusal has not. No failure has a traceback."""
    shop.failures.append((grpc.StatusCode[code], "what happened", []))
    result = run("fit", *DPEM, "--yes")
    assert result.exit_code == status
    assert "Error: what happened" in result.stderr
    assert "Traceback" not in result.output


def test_a_lost_release_is_no_reason_to_ask_again(run: Run, shop: Shop) -> None:
    """It is paid and gone: status 1."""
    info = error_details_pb2.ErrorInfo(domain="bursar", reason="RELEASE_LOST")
    shop.failures.append((grpc.StatusCode.DATA_LOSS, "gone", [info]))
    result = run("fit", *DPEM, "--yes")
    assert result.exit_code == 1
    assert "--request-id" not in result.stderr.partition("Error:")[2]


def test_ctrl_c_says_how_to_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server finishes what is paid; without a payment it is an interrupt like any other."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bursar._dataset.fit", interrupted)
    tree = ("fit", "mrf", "toy", "--cliques", "tree")
    paid = run(*tree, "--rho", "0.1", "--yes", "--request-id", "my-key")
    assert paid.exit_code == 4
    assert "interrupted. Give the same command with --request-id my-key" in paid.stderr
    assert run(*tree, "--reuse", "2").exit_code == 1


def test_what_is_free_is_not_asked_about(run: Run, tmp_path: Path) -> None:
    """A sketch is paid for once; what is decoded from it, there or here, needs no yes."""
    small = ("--decoding", "none", "--n-frequencies", "40", "--rho", "0.1", "--yes", "--save", "sketch.json")
    assert run("fit", "sketch-kmeans", "toy", *small).exit_code == 0
    entry = json.loads(run("releases", "--json").stdout)[-1]["entry"]
    decoded = run("fit", "sketch-kmeans", "toy", "--n-clusters", "2", "--n-init", "2", "--sketch", entry)
    assert decoded.exit_code == 0
    assert f"entry {entry} had paid for it, nothing was debited" in decoded.stdout
    again = run("fit", "sketch-kmeans", "toy", "--decoding", "none", "--sketch", entry, "--json")
    assert json.loads(again.stdout)["receipt"]["free"] is True
    here = run("model", "decode", "sketch.json", "--clusters", "2", "--restarts", "2", "--save", "model.json")
    assert here.exit_code == 0
    assert isinstance(bursar.load(tmp_path / "model.json"), bursar.KMeans)
    mixture = run("model", "decode", "sketch.json", "--clusters", "2", "--mixture", "--restarts", "2", "--json")
    assert json.loads(mixture.stdout)["kind"] == "GaussianMixture"
    assert "frequencies" in json.loads(run("model", "show", "sketch.json", "--json").stdout)
    fetched = run("model", "show", entry, "--save", "again.json")
    assert "saved to again.json" in fetched.stdout
    assert (tmp_path / "again.json").read_text() == (tmp_path / "sketch.json").read_text()


@pytest.mark.slow
def test_a_number_of_clusters_is_chosen_from_a_sketch(run: Run) -> None:
    """Each number's mean squared distance has an interval, in words and as JSON."""
    options = ("--decoding", "none", "--rho", "0.1", "--yes", "--save", "sketch.json")
    assert run("fit", "sketch-kmeans", "toy", *options).exit_code == 0
    told = run("model", "choose", "sketch.json", "--most", "2", "--restarts", "2")
    assert "mean square" in told.stdout
    assert "chosen from 1 to 2" in told.stdout
    table = json.loads(run("model", "choose", "sketch.json", "--most", "2", "--restarts", "2", "--json").stdout)
    assert table["numbers"] == [1, 2]
    assert table["chosen"] in (1, 2)
    assert all(
        low <= x <= high for low, x, high in zip(table["low"], table["mean_squares"], table["high"], strict=True)
    )


def test_every_model_is_had_again_by_its_entry(run: Run, tmp_path: Path) -> None:
    """A later run of the command gets it free; an entry that is no debit is answered with where they are listed."""
    before = len(json.loads(run("releases", "--json").stdout))
    for name, fit in (("one.json", DPEM), ("two.json", ("mrf", "toy", "--cliques", "tree", "--rho", "0.1"))):
        assert run("fit", *fit, "--yes", "--save", name).exit_code == 0
        entry = json.loads(run("releases", "--json").stdout)[-1]["entry"]
        assert run("model", "show", entry, "--save", f"again-{name}").exit_code == 0
        kept, again = (json.loads((tmp_path / path).read_text()) for path in (name, f"again-{name}"))
        assert kept.pop("receipt")["entry"] == again.pop("receipt")["entry"]
        assert kept == again
    assert len(json.loads(run("releases", "--json").stdout)) == before + 2
    assert "bursar releases lists them" in run("model", "show", "100000000").stderr


def test_a_file_is_checked_before_anything_is_paid(run: Run, shop: Shop, tmp_path: Path) -> None:
    """An older file stays, and a folder that is not there is no place."""
    (tmp_path / "model.json").write_text("precious")
    before = len(shop.requests)
    for name, said in (("model.json", "is there already"), ("nowhere/model.json", "is no folder")):
        result = run("fit", *DPEM, "--yes", "--save", name)
        assert result.exit_code == 1
        assert said in result.stderr
    assert len(shop.requests) == before
    assert (tmp_path / "model.json").read_text() == "precious"


def test_a_model_that_cannot_be_saved_can_be_had_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk after the payment: status 4, and the id; then the older file may be replaced."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(bursar.GaussianMixture, "save", full)
        result = run("fit", *DPEM, "--yes", "--save", "model.json", "--request-id", "full-disk")
    assert result.exit_code == 4
    assert "No space left on device" in result.stderr
    assert "--request-id full-disk" in result.stderr
    Path("model.json").write_text("half")
    assert run("fit", *DPEM, "--save", "model.json", "--request-id", "full-disk").exit_code == 0
    assert run("model", "show", "model.json").exit_code == 0


def test_what_can_be_done_with_a_model_in_a_file(run: Run, tmp_path: Path) -> None:
    """Shown, drawn, sampled from; the same seed gives the same rows."""
    run("fit", *DPEM, "--yes", "--save", "mixture.json")
    run("fit", "mrf", "toy", "--cliques", "tree", "--rho", "0.1", "--yes", "--save", "field.json")
    assert run("model", "show", "mixture.json").stdout.startswith("GaussianMixture: 2 components")
    for name, chosen in (("mixture.json", ("--columns", "height")), ("field.json", ())):
        assert run("model", "plot", name, *chosen, "--out", "a.png").stdout == "wrote a.png\n"
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(run("model", "plot", "field.json", "--out", "b.SVG", "--json").stdout) == {"wrote": "b.SVG"}
    first, again = (run("model", "sample", "mixture.json", "-n", "3", "--seed", "1", "--csv") for _ in range(2))
    assert first.stdout == again.stdout
    assert first.stdout.splitlines()[0] == "height,weight"
    assert len(first.stdout.splitlines()) == 4
    rows = json.loads(run("model", "sample", "field.json", "--rows", "5", "--json").stdout)
    assert len(rows) == 5
    assert {row["group"] for row in rows} <= {"control", "treated"}
    assert "group" in run("model", "sample", "field.json").stdout
    shown = run("model", "show", "field.json", "--intervals", "--level", "0.9").stdout
    assert "Intervals at 0.9 of the population" in shown
    assert "group=treated" in shown
    found = json.loads(run("model", "show", "field.json", "--intervals", "--json").stdout)["intervals"]
    assert found["level"] == 0.95
    assert set(found["rows"][0]) == {"name", "estimate", "low", "high", "about"}
    for form in (["--csv"], ["--json"], []):
        written = run("model", "sample", "field.json", "-n", "2", "--out", "rows.txt", *form)
        assert written.stdout == ""
        assert "wrote rows.txt" in written.stderr
        assert "group" in (tmp_path / "rows.txt").read_text()


IMPOSSIBLE = (
    (("show", "nothing.json"), 1, "nothing.json: No such file or directory"),
    (("show", "text.txt"), 1, "is no model that this version can read"),
    (("show", "sketch.json", "--intervals"), 2, "decode a model from it"),
    (("show", "field.json", "--intervals", "--level", "95"), 2, "--level"),
    (("plot", "centres.json", "--out", "a.txt"), 2, "ends in .png, .svg, .pdf"),
    (("plot", "field.json", "--columns", "group", "--out", "a.png"), 2, "drawn as a whole"),
    (("plot", "centres.json", "--columns", "age", "--out", "a.png"), 1, "age"),
    (("plot", "centres.json", "--out", "nowhere/a.png"), 1, "No such file or directory"),
    (("plot", "sketch.json", "--out", "a.png"), 1, "bursar model decode sketch.json --clusters K"),
    (("sample", "centres.json"), 1, "does not say how rows are distributed"),
    (("sample", "field.json", "--csv", "--json"), 2, "not both"),
    (("decode", "centres.json", "--clusters", "2"), 1, "only sketches are decoded"),
    (("decode", "sketch.json", "--clusters", "20000"), 1, "at most the"),
    (("choose", "centres.json"), 1, "only sketches are decoded"),
    (("choose", "sketch.json", "--most", "20000"), 1, "at most the"),
    (("choose", "sketch.json", "--most", "2", "--least", "3"), 2, "--least is above --most"),
)


def test_what_cannot_be_done_with_a_model(run: Run, tmp_path: Path) -> None:
    """One message that says why, no traceback, no half file."""
    run("fit", "sketch-kmeans", "toy", "--decoding", "none", "--rho", "0.1", "--yes", "--save", "sketch.json")
    run("fit", *DPEM, "--mode", "kmeans", "--yes", "--save", "centres.json")
    run("fit", "mrf", "toy", "--cliques", "tree", "--rho", "0.1", "--yes", "--save", "field.json")
    (tmp_path / "text.txt").write_text("no JSON")
    for words, status, said in IMPOSSIBLE:
        result = run("model", *words)
        assert result.exit_code == status, words
        assert said in " ".join(result.stderr.split()), words
        assert not list(tmp_path.glob("a.*")), words


def test_a_dataset_that_is_not_there(run: Run) -> None:
    """Status 1, and where to look."""
    result = run("show", "people")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no dataset 'people'. You may use: ")


def test_names_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A description may have been written by anybody; only line breaks of our own are line breaks."""
    say("a\x1b[2Jb\u202ec")
    assert capsys.readouterr().out == "a\\x1b[2Jb\\u202ec\n"
    assert table(("a",), [("x\ny",)]) == ["a", "x\\ny"]


def test_a_table_fits_the_terminal() -> None:
    """The widest columns are wrapped, never what is copied, and no letter is lost."""
    rows = [("7", "a" * 30, "b" * 50, "key-0123456789")]
    lines = table(("entry", "one", "two", "id"), rows, width=60, whole=("id",))
    assert max(map(len, lines)) <= 60
    assert "key-0123456789" in lines[1]
    assert "".join(lines[1:]).count("a") == 30
    assert "".join(lines[1:]).count("b") == 50
    narrow = table(("entry", "one", "two", "id"), rows, width=10, whole=("id",))[1]
    assert narrow.split() == ["7", "aaaaaa", "bbbbbb", "key-0123456789"]
    assert table(("id",), [("x" * 20,)], width=5, whole=("id",))[1] == "x" * 20


def test_advice_to_programs_becomes_advice_to_people() -> None:
    """Arguments of the SDK are said as options."""
    assert in_options("leave it out, or say symmetric=True; for mode=\"kmeans\" and 'x'") == (
        "leave it out, or say --symmetric; for --mode kmeans and 'x'"
    )
    assert in_options("is named by sketch= (to have only it, by entry=); give n_clusters=") == (
        "is named by --sketch (to have only it, by --entry); give --n-clusters"
    )
    assert in_options("rho = 0.5, and x==3") == "rho = 0.5, and x==3"
    for said, meant in _FOR_PROGRAMS.items():
        assert in_options(f"no; {said}") == f"no; {meant}"


def test_the_advice_that_is_translated_is_the_sdks() -> None:
    """A text that is changed there has to be changed here."""
    texts = "".join(path.read_text() for path in Path(bursar.__file__).parent.glob("*.py"))
    texts += (Path(__file__).parents[3] / "server/bursar_server/wire/statuses.py").read_text()
    flat = texts.replace('"\n                f"', "").replace('"\n            "', "")
    missing = [said for said in _FOR_PROGRAMS if said not in flat]
    assert missing == []


def test_a_warning_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Not the place in the source that it came from."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with explained():
            warnings.warn("no history, or pass history=False", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err == "Warning: no history, or to off\n"


def test_a_closed_pager_is_no_error_of_ours() -> None:
    """It is left to click, which ends quietly."""
    with pytest.raises(BrokenPipeError), explained():
        raise BrokenPipeError


def test_the_tabulator_knows_datasets_and_options(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names come from the server; one that does not answer is no error there."""
    assert run("datasets").exit_code == 0
    complete = BashComplete(app, {}, "bursar", "_BURSAR_COMPLETE")
    assert [item.value for item in complete.get_completions(["show"], "t")] == ["toy"]
    assert complete.get_completions(["limits"], "x") == []
    assert "--n-components" in [item.value for item in complete.get_completions(["fit", "dpem"], "--n")]

    def nobody(*_: object, **__: object) -> None:
        raise bursar.UnavailableError("nobody answers")

    monkeypatch.setattr(bursar, "connect", nobody)
    assert complete.get_completions(["show"], "t") == []


def test_without_click_the_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK works without it; another missing module is another error."""
    from bursar import _cli

    monkeypatch.delitem(sys.modules, "bursar._cli._app")
    monkeypatch.setitem(sys.modules, "click", None)
    monkeypatch.setattr(sys, "argv", ["bursar"])
    with pytest.raises(SystemExit, match=r"pip install './bursar\[cli\]'"):
        _cli.main()


def test_the_list_of_releases_fits_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long request id is wrapped first: an entry, which is enough to get a model again, stays whole."""

    def narrow(header: Sequence[str], rows: Sequence[Sequence[object]], whole: Collection[str] = ()) -> None:
        for line in table(header, rows, 80, whole):
            click.echo(line)

    run("fit", "dpem", "toy", "--n-components", 1, "--rho", 0.01, "--request-id", "f" * 60, "--yes")
    monkeypatch.setattr("bursar._cli._catalog.say_table", narrow)
    lines = run("releases").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    first = next(line for line in lines if "ffffff" in line)
    assert re.match(r"\d+ +\S+ +toy +FitDPEM +epsilon \S+ .*f+$", first)
    assert "".join(re.findall("f{6,}", "".join(lines))).count("f") == 60


def test_an_accuracy_may_differ_by_column(run: Run) -> None:
    """One number is given for all columns, or one for each named column, as in the SDK."""
    ask = ("suggest", "dpem", "toy", "--n-components", 2, "--mean-error")
    found = json.loads(run(*ask, "height=1,weight=5", "--json").stdout)
    promised = found["preview"]["expected"]["mean_error"]
    assert promised["height"] <= 1
    assert promised["weight"] <= 5
    wrong = run(*ask, "height=tall")
    assert wrong.exit_code == 2


def test_columns_of_a_table_can_be_chosen(run: Run) -> None:
    """Columns keep the order in which they were named; a missing one is named with those that there are."""
    header, *rows = run("show", "toy", "--columns", "domain,column").stdout.splitlines()[1:3]
    assert header.split() == ["domain", "column"]
    assert rows[0].split() == ["100", "to", "220", "height"]
    wrong = run("releases", "--columns", "prize")
    assert wrong.exit_code == 2
    assert "--columns: 'prize' is none of entry,date,dataset,method,paid,state,request id" in wrong.stderr


def test_what_was_paid_and_not_fetched_is_listed(run: Run) -> None:
    """Nothing, where every model came back to this machine."""
    listed = run("releases", "--unfetched")
    assert listed.exit_code == 0
    assert "every model that was paid for came back" in listed.stderr


@pytest.mark.parametrize(("no_color", "bold"), [("", True), ("1", False)])
def test_headers_are_bold_where_colours_are_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_color: str, bold: bool
) -> None:
    """They are bold on a terminal, unless NO_COLOR is set; in a pipe never."""
    say_table(("a",), [("b",)])
    assert capsys.readouterr().out == "a\nb\n"
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    say_table(("a",), [("b",)])
    assert capsys.readouterr().out == ("\x1b[1ma\x1b[0m\nb\n" if bold else "a\nb\n")


@pytest.mark.slow
def test_a_server_can_be_tried_in_one_command() -> None:
    """A command finds a server on synthetic rows, and its exit status is that of the program."""
    program = [sys.executable, "-c", "from bursar._cli import main; main()", "try"]
    code = "import bursar; c = bursar.connect(); print(c.dataset('people').public_rows); raise SystemExit(7)"
    done = subprocess.run([*program, sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "10000\n"), done.stderr
    assert "the server and its state are removed" in done.stderr


def test_a_program_that_is_not_there_is_told_before_a_server_starts(run: Run) -> None:
    """The search is that of the shell, with this installation's programs first."""
    missing = run("try", "no-such-program")
    assert missing.exit_code == 1
    assert "no-such-program: No such file" in missing.stderr
    assert "starting a server" not in missing.stderr
