"""Sketches made at the site's own machine: paid from its ledger, durably and once; merged for nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click.testing
import numpy as np
import pytest

import bursar
from bursar_ledger import Entry, Ledger, LedgerUnavailableError, adopt_copy
from bursar_server.admin import _sketches
from bursar_server.admin._site_sketch import read_sketch
from bursar_server.admin.cli import main
from bursar_server.fits import sketch as sketch_fit
from bursar_server.jobs.job import NothingReadError
from bursar_server.jobs.order import Orders
from bursar_server.state import State

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.serving.admin.conftest import Admin

ROWS = "height\n" + "".join(f"{0.5 + i % 2 + i / 1000}\n" for i in range(200))
AGREED = ("--frequencies", 20, "--sigma", 0.2)


@pytest.fixture
def site(admin: Admin) -> Admin:
    """An owner whose table has two groups of heights."""
    admin.state.config.write_text("response_quantum_seconds = 0.01\n")
    admin.add(rows=ROWS)
    return admin


def make(site: Admin, *options: object, out: str = "site.json", **kwargs: Any) -> str:
    """Make a sketch of the site's table, with a price and what was agreed unless it is given."""
    words = [*options]
    words += [] if {"--rho", "--epsilon"} & set(options) else ["--rho", 0.005]
    words += [] if {"--clusters", "--frequencies"} & set(options) else AGREED
    return site.ok("sketch", "make", "heights", *words, "--yes", "--out", site.files / out, **kwargs)


def refused(site: Admin, *options: object, out: str = "site.json") -> str:
    """Return what a refusal says; it changes neither ledger nor files."""
    before, files = site.entries(), sorted(site.files.iterdir())
    said = site.refused("sketch", "make", "heights", *options, "--out", site.files / out)
    assert site.entries() == before
    assert sorted(site.files.iterdir()) == files
    return said


def without_state(*arguments: object) -> click.testing.Result:
    """A command that needs no state directory."""
    return click.testing.CliRunner().invoke(main, ["sketch", *map(str, arguments)])


def debits(site: Admin) -> list[Entry]:
    """The debits of the ledger, which verifies."""
    assert site.verified
    return [entry for entry in site.entries() if entry.kind == "debit"]


def test_a_sketch_is_paid_for_in_the_sites_own_ledger(site: Admin) -> None:
    """Price, what is left, what others have to type; a debit under the operator's name, a release, a file."""
    said = make(site, "--reason", "for the joint study", "--request-id", "r1")
    assert "price  epsilon 0.43 (20.6%) of the total" in said
    assert "left   epsilon 1 (100%), after it epsilon 0.885 (79.4%)" in said
    assert "other sites: --columns height --frequencies 20 --sigma 0.2 --seed 0 --law adapted_radius" in said
    debit, release = site.entries()[-2:]
    assert (debit.kind, release.kind) == ("debit", "release")
    assert f"written to {site.files / 'site.json'}: entry {debit.number}" in said
    assert debit.actor.startswith("local:")
    assert (debit.dataset, debit.details["method"]) == ("heights", "FitSketchKMeans")
    assert (debit.details["request_id"], debit.details["parameters"]["reason"]) == ("r1", "for the joint study")
    made = read_sketch(site.files / "site.json")
    assert (made.columns, made.m, made.n_rows, made.lower.tolist(), made.upper.tolist()) == (
        ("height",),
        20,
        200,
        [0],
        [3],
    )
    assert json.loads((site.files / "site.json").read_text())["entry"] == str(debit.number)
    np.testing.assert_array_equal(bursar.load_sketch(site.files / "site.json").sums, made.sums)
    assert site.verified.accounts[0].debits == 1


def test_the_same_request_id_pays_once(site: Admin) -> None:
    """The stored sketch comes again, to the last byte, also when the file is lost; nobody is asked."""
    make(site, "--request-id", "r1")
    first = (site.files / "site.json").read_bytes()
    (site.files / "site.json").unlink()
    words = ("heights", "--rho", 0.005, *AGREED, "--request-id", "r1", "--out", site.files / "site.json")
    for _ in range(2):
        said = site.ok("sketch", "make", *words)
        assert "had paid for it, nothing was debited" in said
        assert "price" not in said
    assert (site.files / "site.json").read_bytes() == first
    assert "has paid for it" in site.ok("sketch", "make", *words, "--dry-run")
    assert len(debits(site)) == 1


def test_a_request_id_belongs_to_its_request(site: Admin) -> None:
    """The id with other options is refused; another sketch without it is another debit."""
    make(site, "--request-id", "r1")
    for options in (("--rho", 0.004, *AGREED), ("--rho", 0.005, "--frequencies", 21, "--sigma", 0.2)):
        assert "another request" in refused(site, *options, "--request-id", "r1", "--yes", out="other.json")
    make(site, out="second.json")
    assert len(debits(site)) == 2
    first, second = (read_sketch(site.files / name) for name in ("site.json", "second.json"))
    assert not np.array_equal(first.sums, second.sums)


def test_a_dry_run_changes_nothing(site: Admin) -> None:
    """It shows price and noise."""
    before = site.entries()
    said = site.ok("sketch", "make", "heights", "--rho", 0.005, *AGREED, "--out", site.files / "site.json", "--dry-run")
    assert "price  epsilon 0.43" in said
    assert "it would be a debit of this price" in said
    assert site.entries() == before
    assert not (site.files / "site.json").exists()


def test_nothing_is_paid_without_a_yes(site: Admin, at_a_terminal: None) -> None:
    """A no writes nothing."""
    words = ("heights", "--rho", 0.005, *AGREED, "--out", site.files / "site.json")
    assert "Aborted" in site.refused("sketch", "make", *words, answer="n\n")
    assert not debits(site)
    site.ok("sketch", "make", *words, answer="y\n")
    assert len(debits(site)) == 1


def test_scripts_say_yes(site: Admin) -> None:
    """Nothing is done without a terminal and --yes."""
    assert "--yes" in refused(site, "--rho", 0.005, *AGREED)


def test_more_than_is_left_is_refused(site: Admin) -> None:
    """The total and everyone's remainder refuse it, before anybody is asked."""
    assert "epsilon 1 (100%) is left" in refused(site, "--rho", 0.025, *AGREED)
    assert "is left" in refused(site, "--rho", 0.025, *AGREED, "--dry-run")
    site.ok("allowance", "set", "heights", "--everyone", "--share", "10%")
    assert "allowance" in refused(site, "--rho", 0.005, *AGREED, "--yes")
    make(site, "--rho", 0.002)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (AGREED, "give --rho"),
        (("--rho", 0.005, "--epsilon", 0.1, *AGREED), "give --rho"),
        (("--rho", 0.005, "--delta", 1e-7, *AGREED), "give --rho"),
        (("--rho", "nan", *AGREED), "spend.rho"),
        (("--epsilon", 0.1, "--delta", 2, *AGREED), "spend.epsilon_delta.delta"),
        (("--rho", 0.005), "give --clusters"),
        (("--rho", 0.005, "--sigma", 0.2), "give --clusters"),
        (("--rho", 0.005, "--frequencies", 20), "give --clusters"),
        (("--rho", 0.005, "--frequencies", 0, "--sigma", 0.2), "--frequencies"),
        (("--rho", 0.005, "--frequencies", 10**6, "--sigma", 0.2), "n_frequencies"),
        (("--rho", 0.005, "--frequencies", 20, "--sigma", "nan"), "sigma"),
        (("--rho", 0.005, *AGREED, "--per-row", 21), "frequencies_per_row"),
        (("--rho", 0.005, *AGREED, "--columns", "height,width"), "columns[1]"),
        (("--rho", 0.005, *AGREED, "--columns", "height,height"), "columns"),
        (("--rho", 0.005, *AGREED, "--request-id", "a b"), "request_id"),
        (("--rho", 0.005, *AGREED, "--law", "uniform"), "--law"),
        (("--rho", 0.005, *AGREED, "--seed", -1), "--seed"),
        (("--rho", 0.005, "--clusters", 0), "--clusters"),
    ],
)
def test_a_wrong_option_is_named(site: Admin, options: tuple[object, ...], message: str) -> None:
    """And costs nothing."""
    assert message in refused(site, *options, "--yes")


def test_an_older_ledger_is_not_debited(site: Admin) -> None:
    """The checkpoints know what it has forgotten: nothing is spent twice, and no row is read."""
    with Ledger.open(site.state.ledger) as ledger:
        ledger.backup(site.files / "old")
    make(site)
    for file in site.state.path.glob("ledger.sqlite*"):
        file.unlink()
    shutil.copy(site.files / "old", site.state.ledger)
    adopt_copy(site.state.ledger)
    said = refused(site, "--rho", 0.005, *AGREED, "--yes", out="other.json")
    assert "file:checkpoints: the ledger ends at entry" in said


def test_a_file_that_cannot_be_written_is_found_before_the_debit(site: Admin) -> None:
    """Another file is not overwritten, and a folder has to be there."""
    (site.files / "site.json").write_text("something else")
    assert "is there already" in refused(site, "--rho", 0.005, *AGREED, "--yes")
    assert "no folder" in refused(site, "--rho", 0.005, *AGREED, "--yes", out="nowhere/site.json")
    assert (site.files / "site.json").read_text() == "something else"


def test_other_tables_are_not_sketched(site: Admin) -> None:
    """Unknown and retired ones."""
    site.ok("retire", "heights", "--yes")
    assert "retired" in refused(site, "--rho", 0.005, *AGREED, "--yes")
    words = ("sketch", "make", "widths", "--rho", 0.005, *AGREED, "--out", site.files / "site.json", "--yes")
    assert "widths" in site.refused(*words)


def test_what_was_cut_off_is_finished_under_its_debit(site: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that could not be stored was thrown away; the same id makes another one, for nothing."""

    def full(*_: object) -> None:
        raise LedgerUnavailableError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "store_release", full)
        words = ("sketch", "make", "heights", "--rho", 0.005, *AGREED, "--out", site.files / "site.json", "--yes")
        said = site.refused(*words, "--request-id", "r1")
    assert "nothing is paid twice" in said
    assert not (site.files / "site.json").exists()
    assert [entry.kind for entry in site.entries()[-1:]] == ["debit"]
    assert "nothing was debited" in make(site, "--request-id", "r1")
    assert len(debits(site)) == 1
    assert site.entries()[-1].kind == "release"


@pytest.mark.slow
def test_a_command_that_was_killed_is_finished_under_its_debit(site: Admin) -> None:
    """The process ends after its debit and before its release; its lock goes with it."""
    script = (
        "import os, sys; from bursar_server.fits import sketch; sketch.run = lambda *_: os._exit(9); "
        "from bursar_server.admin.cli import main; main(sys.argv[1:])"
    )
    options = ("--rho", 0.005, *AGREED, "--request-id", "r1", "--out", site.files / "site.json")
    words = ("sketch", "make", "heights", *options, "--yes", "--state", site.state.path)
    killed = subprocess.run([sys.executable, "-c", script, *map(str, words)], capture_output=True, check=False)
    assert killed.returncode == 9
    assert site.entries()[-1].kind == "debit"
    assert "nothing was debited" in make(site, "--request-id", "r1")
    assert len(debits(site)) == 1
    assert read_sketch(site.files / "site.json").n_rows == 200


def test_an_owner_may_want_one_draw_of_a_debit_at_most(site: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut-off draw is not made again with recovery = "lost"."""
    site.state.config.write_text('response_quantum_seconds = 0.01\nrecovery = "lost"\n')
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "store_release", lambda *_: 1 / 0)
        words = ("sketch", "make", "heights", "--rho", 0.005, *AGREED, "--out", site.files / "site.json", "--yes")
        assert "lost" in site.refused(*words, "--request-id", "r1")
    assert "lost" in site.refused(*words, "--request-id", "r1")
    assert [entry.kind for entry in site.entries()][-1] == "debit"


def test_a_run_that_raises_is_never_drawn_again(site: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its debit gets the empty release; the message tells nothing of what it raised."""

    def burst(*_: object) -> None:
        raise RuntimeError("a secret cell")

    words = ("sketch", "make", "heights", "--rho", 0.005, *AGREED, "--out", site.files / "site.json", "--yes")
    with monkeypatch.context() as patch:
        patch.setattr(sketch_fit, "run", burst)
        said = site.refused(*words, "--request-id", "r1")
    assert "could not be made" in said
    assert "secret" not in said
    assert "could not be made" in site.refused(*words, "--request-id", "r1")
    assert not (site.files / "site.json").exists()
    assert len(debits(site)) == 1


def test_rows_that_could_not_be_opened_are_tried_again(site: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was read, so nothing was drawn."""

    def gone(*_: object) -> None:
        raise NothingReadError

    words = ("sketch", "make", "heights", "--rho", 0.005, *AGREED, "--out", site.files / "site.json", "--yes")
    with monkeypatch.context() as patch:
        patch.setattr(Orders, "_release", gone)
        assert "tries again" in site.refused(*words, "--request-id", "r1")
    assert "nothing was debited" in make(site, "--request-id", "r1")
    assert len(debits(site)) == 1


def test_a_kernel_that_cannot_be_compiled_costs_nothing(site: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled before the debit."""

    def broken() -> None:
        raise RuntimeError

    monkeypatch.setattr(sketch_fit, "warm_up", broken)
    site.run("sketch", "make", "heights", "--rho", 0.005, *AGREED, "--out", site.files / "site.json", "--yes")
    assert not debits(site)


def test_a_sketch_is_made_beside_a_server_but_not_beside_another(site: Admin) -> None:
    """A server's lock is in nobody's way; two commands with one request id would draw twice."""
    with site.state.serving():
        make(site)
    with State.open(site.state.path).sketching():
        assert "is being made" in refused(site, "--rho", 0.005, *AGREED, "--yes", out="second.json")


def test_all_sites_choose_alike_from_the_number_of_clusters(site: Admin) -> None:
    """Frequencies and scale follow from what they agreed on, and not from how many rows there are."""
    site.add("others", "height\n" + "2.5\n" * 30)
    make(site, "--clusters", 2)
    words = ("sketch", "make", "others", "--rho", 0.01, "--clusters", 2, "--yes", "--out", site.files / "others.json")
    assert "this site alone" in site.ok(*words)
    north, south = (read_sketch(site.files / name) for name in ("site.json", "others.json"))
    assert north.frequencies == south.frequencies
    assert north.merge(south).n_rows == 230


def test_every_option_reaches_the_sketch(site: Admin) -> None:
    """And the line for other sites has them all."""
    words = ("--law", "multiscale", "--structure", "hadamard", "--signature", "one_bit", "--units", "bounds")
    said = make(site, "--epsilon", 0.2, *AGREED, *words, "--seed", 2**64 - 1, "--per-row", 5, "--columns", "height")
    made = read_sketch(site.files / "site.json")
    frequencies = made.frequencies
    assert (frequencies.law, frequencies.structure, frequencies.public_seed) == ("multiscale", "hadamard", 2**64 - 1)
    assert (made.signature, made.frequencies_per_row) == ("one_bit", 5)
    assert " ".join(words) in said
    (debit,) = debits(site)
    assert debit.details["events"][0]["mechanism"] == "laplace"


def test_an_epsilon_with_a_delta_buys_gaussian_noise(site: Admin) -> None:
    """The pair is implied by the bought rho."""
    make(site, "--epsilon", 0.5, "--delta", 1e-7)
    (debit,) = debits(site)
    assert debit.details["events"][0]["mechanism"] == "gaussian"


@pytest.fixture
def files(site: Admin) -> tuple[Path, Path]:
    """Sketches of two sites that agreed."""
    site.add("others", "height\n" + "2.5\n" * 100, epsilon=8)
    make(site, "--rho", 0.01)
    words = ("--rho", 0.9, *AGREED, "--yes", "--out", site.files / "others.json")
    site.ok("sketch", "make", "others", *words)
    return site.files / "site.json", site.files / "others.json"


def test_files_are_merged_without_a_state_directory(files: tuple[Path, Path], tmp_path: Path) -> None:
    """The result is what the client makes of them; it belongs to no ledger."""
    result = without_state("merge", *files, "--out", tmp_path / "both.json")
    assert result.exit_code == 0, result.output
    assert "300, 2 sites" in result.output
    both = read_sketch(tmp_path / "both.json")
    first, second = map(read_sketch, files)
    np.testing.assert_array_equal(both.sums, first.merge(second).sums)
    assert "entry" not in json.loads((tmp_path / "both.json").read_text())


def test_what_cannot_be_merged_is_named(site: Admin, files: tuple[Path, Path], tmp_path: Path) -> None:
    """There is no traceback and no file."""
    make(site, "--seed", 1, out="seed.json")
    out = ("--out", tmp_path / "both.json")
    result = without_state("merge", *files, site.files / "seed.json", *out)
    assert result.exit_code == 1
    assert "seed.json does not go with" in result.output
    assert "given twice" in without_state("merge", files[0], files[1], files[0], *out).output
    copy = tmp_path / "copy.json"
    copy.write_bytes(files[0].read_bytes())
    assert "are the same sketch" in without_state("merge", *files, copy, *out).output
    copy.write_text("{}")
    assert "copy.json is no sketch" in without_state("merge", files[0], copy, *out).output
    assert "is there already" in without_state("merge", *files, "--out", files[0]).output
    assert not (tmp_path / "both.json").exists()


def test_the_command_does_what_a_server_does() -> None:
    """There is no second way to rows: the module has no session, no noise and no snapshot of its own."""
    assert not {"Session", "OpenDPNoise", "Snapshot", "exact_sum"} & set(vars(_sketches))


@pytest.mark.slow
def test_other_commands_do_not_wait_for_the_compiler() -> None:
    """Modules for sketches alone are imported when one is made or merged."""
    program = "import sys, bursar_server.admin.cli; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-c", program], check=False).returncode == 0
