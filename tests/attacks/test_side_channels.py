"""Attacks on what goes out beside the answer: extra fields, seeds, types that execute, statistics, public metadata."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

import bursar
import bursar.testing
import bursar_ledger
import bursar_proto
import bursar_server.jobs.job
import bursar_server.jobs.limits
import bursar_server.jobs.order
import bursar_server.jobs.paid
import bursar_server.jobs.trial
import bursar_server.wire.trial_service
from bursar_proto.v1 import (
    admin_pb2,
    audit_pb2,
    catalog_pb2,
    catalog_pb2_grpc,
    dummy_pb2,
    fit_pb2,
    fit_pb2_grpc,
    types_pb2,
)
from bursar_server.fits import dpem
from bursar_server.vault import Session
from tests.attacks.asking import PATIENCE, Make, analyst, raw, told
from tests.attacks.deaf import Deaf, Seeded
from tests.audit.wire import Miswired
from tests.server.serving.conftest import COUNT

if TYPE_CHECKING:
    from bursar_server.fits import AnyFit
    from tests.attacks.conftest import Pair
    from tests.server.serving.conftest import Harness

PairWith = Callable[["AnyFit"], "Pair"]
MODULES = (fit_pb2, dummy_pb2, catalog_pb2, admin_pb2, audit_pb2)


def chatty(plan: dpem.DPEMPlan, session: Session) -> fit_pb2.GaussianMixtureModel:
    """A fit that adds the number of rows to its model (Lomas returns scores on the training rows; others n_iter, n)."""
    model = dpem.run(plan, session)
    model.n_rows += session._rows.slots
    return model


def early(plan: dpem.DPEMPlan, session: Session) -> fit_pb2.GaussianMixtureModel:
    """A fit whose number of steps depends on rows, as that of all EM that runs to convergence."""
    model = dpem.run(plan, session)
    model.iterations -= session._rows.slots % 2 + session._rows.slots // 100
    return model


def halting(plan: dpem.DPEMPlan, session: Session) -> fit_pb2.GaussianMixtureModel:
    """A fit that says one step more where the number of rows is odd."""
    progress = session.progress
    session.progress = lambda step, steps: progress(step, steps + session._rows.slots % 2)
    return dpem.run(plan, session)


def differs(pair: Pair, **fields: Any) -> bool:
    """Return whether anything but the noisy sums tells "here" from "there".

    In model, progress, preview, catalogue or list.
    """
    fits = fit_pb2_grpc.FitServiceStub(pair.channel)
    catalog = catalog_pb2_grpc.CatalogServiceStub(pair.channel)
    heard: list[list[object]] = []
    for name in ("here", "there"):
        message = pair.request(name, **fields)
        *before, last = fits.FitDPEM(message, metadata=pair.bearer, timeout=PATIENCE)
        # Which steps are told depends on the time that they take; how many there are must not depend on rows.
        steps = {one.progress.steps for one in before if one.HasField("progress")}
        preview = fits.Preview(fit_pb2.PreviewRequest(dpem=message), metadata=pair.bearer, timeout=PATIENCE)
        asked = catalog_pb2.GetDatasetRequest(dataset=name)
        shown = catalog.GetDataset(asked, metadata=pair.bearer, timeout=PATIENCE).dataset
        shown.name = ""
        listed = catalog.ListReleases(catalog_pb2.ListReleasesRequest(dataset=name), metadata=pair.bearer).releases[-1]
        heard.append([last.model, steps, preview, shown, listed.price, listed.released])
    return heard[0] != heard[1]


REQUESTS: list[dict[str, Any]] = [
    {},
    {"mode": fit_pb2.MODE_KMEANS, "n_components": 3},
    {"covariance_type": fit_pb2.COVARIANCE_TYPE_DIAG, "moments": fit_pb2.MOMENTS_FIXED_ORIGIN},
    {"estimator": fit_pb2.ESTIMATOR_MAXIMUM_A_POSTERIORI, "random": fit_pb2.StartAtRandom(public_seed=3)},
]


@pytest.mark.parametrize("fields", REQUESTS)
def test_under_equal_noise_all_tables_look_alike(pair_with: PairWith, fields: dict[str, Any]) -> None:
    """Compare everything that two utterly different tables give when each noisy sum is the same for both.

    What differs then came past the noise: Lomas' scores, imputers and row counts, n_iter of fits that converge.
    """
    assert not differs(pair_with(Miswired(Deaf())), **fields)


@pytest.mark.parametrize("run", [chatty, early, halting])
def test_a_rival_that_says_more_is_heard(pair_with: PairWith, run: Any) -> None:
    """The same comparison finds a row count in the model, and numbers of steps that depend on rows."""
    assert differs(pair_with(Miswired(Deaf(), run)))


def test_without_that_deafness_tables_differ(pair: Pair) -> None:
    """The comparison sees two tables with the real noise, so that its silence above means something."""
    assert differs(pair)


def fields_of(message: Descriptor, path: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    """Every field that a message can hold, by path; recursive ones once."""
    for field in message.fields:
        where = f"{path}{field.name}"
        yield where, field
        if field.message_type is not None and field.message_type.full_name not in path:
            yield from fields_of(field.message_type, f"{where}.")


def requests() -> list[Descriptor]:
    """All messages that a client sends."""
    services = [service for module in MODULES for service in module.DESCRIPTOR.services_by_name.values()]
    return [method.input_type for service in services for method in service.methods]


def answers() -> list[Descriptor]:
    """All messages that the server sends."""
    services = [service for module in MODULES for service in module.DESCRIPTOR.services_by_name.values()]
    return [method.output_type for service in services for method in service.methods]


WORDS_OF_CONTROL = ("seed", "random_state", "noise", "scale", "sigma", "sensitivity", "debug", "disable", "kwargs")
ALLOWED_OF_DPEM = {
    # Where to start is public and free; noise does not know it.
    "random.public_seed",
    # Of the prior of MAP estimation, not of noise.
    "prior.scale",
}
ALLOWED_OF_SKETCHES = {
    # Which frequencies, and where the decoder starts.
    "new_sketch.public_seed",
    "new_sketch.sigma",
    "public_seed",
    # What sketches of elsewhere say of themselves; they are decoded, never noised.
    "foreign.frequencies.public_seed",
    "foreign.frequencies.sigma",
    "foreign.noise_std",
    "foreign.pilot_sigma",
}
ALLOWED_OF_GRADIENT_EM = {
    # Where to start is public and free.
    "random.public_seed",
    # Sigma of the model: what its latent posterior weights divide by. The noise that protects comes from the price.
    "noise_std",
    # What bounds a row's gradient: the sensitivity is computed from it, and the noise grows with it.
    "scale",
}
ALLOWED_OF_SEPARATED_GMM = {
    # In which directions gaps are looked for is public and free.
    "public_seed",
    # Of the components that are looked for. The noise that protects comes from the price.
    "sigma_min",
    "sigma_max",
}
ALLOWED_OF_PREVIEWS = {
    *(f"dpem.{path}" for path in ALLOWED_OF_DPEM),
    *(f"sketch_kmeans.{path}" for path in ALLOWED_OF_SKETCHES),
    *(f"gradient_em.{path}" for path in ALLOWED_OF_GRADIENT_EM),
    *(f"separated_gmm.{path}" for path in ALLOWED_OF_SEPARATED_GMM),
}
ALLOWED = {
    *ALLOWED_OF_DPEM,
    *ALLOWED_OF_SKETCHES,
    *ALLOWED_OF_GRADIENT_EM,
    *ALLOWED_OF_SEPARATED_GMM,
    *ALLOWED_OF_PREVIEWS,
    # Of dummy runs, whose public_seed is that of made-up rows, and never of noise.
    *(f"fit.{path}" for path in ALLOWED_OF_PREVIEWS),
}


def controls(messages: list[Descriptor]) -> set[str]:
    """Fields of requests whose names speak of noise or randomness."""
    return {
        path
        for message in messages
        for path, field in fields_of(message)
        if any(word in field.name for word in WORDS_OF_CONTROL)
    }


def test_no_request_speaks_of_noise() -> None:
    """Send a seed, a scale or a switch: there is no field for it, and unknown fields are refused.

    Lomas passes `random_state` and all other keyword arguments of a client's pipeline on to diffprivlib.
    """
    assert controls(requests()) == ALLOWED
    assert "count_std" in {field.name for _, field in fields_of(types_pb2.ReleaseNoise.DESCRIPTOR)}
    assert controls([fit_pb2.PreviewResponse.DESCRIPTOR])  # where noise is spoken of, the search finds it


def test_the_public_seed_does_not_reach_the_noise(pair: Pair) -> None:
    """Fix every seed that a client has, twice, and hope for the same noise (Lomas' random_state on diffprivlib)."""
    fixed = {"random": fit_pb2.StartAtRandom(public_seed=7), "iterations": 1}
    first, second = (pair.fit("here", **fixed)[-1].model for _ in range(2))
    assert first.means != second.means


def test_the_rivals_seed_does(pair_with: PairWith) -> None:
    """The same attack on seeded noise: two requests, one draw."""
    pair = pair_with(Miswired(Seeded()))
    fixed = {"random": fit_pb2.StartAtRandom(public_seed=7), "iterations": 1}
    first, second = (pair.fit("here", **fixed)[-1].model for _ in range(2))
    assert first.means == second.means


HASHES = {"ledger_head", "hash", "head", "head_at_size", "body", "digest"}
"""Fields of bytes: hashes, and the canonical JSON that they are of."""


def opaque(messages: list[Descriptor]) -> set[str]:
    """Fields that may hold bytes of any kind: a place for a pickle."""
    return {
        path
        for message in messages
        for path, field in fields_of(message)
        if field.type == FieldDescriptor.TYPE_BYTES or (field.message_type and field.message_type.name == "Any")
    }


def test_nothing_on_the_wire_can_be_executed() -> None:
    """Send or get something that runs when it is read (Lomas sends pickled models): all bytes are hashes or JSON."""
    found = opaque(requests() + answers())
    assert {path.rpartition(".")[2] for path in found} <= HASHES, found
    assert "ledger_head" in {path.rpartition(".")[2] for path in opaque([fit_pb2.FitDPEMResponse.DESCRIPTOR])}


DANGEROUS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml"}


def unpicklers(folder: Path) -> list[str]:
    """Files that import what executes what it reads, or call eval and exec."""
    found = []
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [node.func.id]
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec")
                else []
            )
            if {name.partition(".")[0] for name in names} & (DANGEROUS | {"eval", "exec"}):
                found.append(f"{file.name}:{getattr(node, 'lineno', 0)}")
    return found


@pytest.mark.slow
def test_no_code_reads_pickles(tmp_path: Path) -> None:
    """The same from inside: no package imports a module that executes what it reads.

    But for two: a fit's process takes its job from the server that forked it, and a cluster's worker its task from the
    server that it has a certificate of.
    """
    for package in (bursar, bursar_ledger, bursar_proto):
        assert not unpicklers(Path(inspect.getfile(package)).parent)
    found = unpicklers(Path(inspect.getfile(bursar_server)).parent)
    assert {name.partition(":")[0] for name in found} == {"sandbox.py", "_dask.py"}
    (tmp_path / "rival.py").write_text("import pickle\npickle.loads(b'')\neval('1')\n")
    assert len(unpicklers(tmp_path)) == 2


def test_an_answer_that_was_stored_is_parsed_as_a_model_or_not_at_all(served: Harness, fit_request: Make) -> None:
    """Every message of a fit's stream is one of the contract's; none is passed through from the fit as it came."""
    for message in raw(served, fit_request()):
        parsed = fit_pb2.FitDPEMResponse.FromString(message)
        assert parsed.WhichOneof("event") in {"receipt", "progress", "model"}
        assert parsed.SerializeToString(deterministic=True) == message


def grid_of(models: list[fit_pb2.GaussianMixtureModel]) -> bool:
    """Return whether all counts of released models are whole multiples of the lattice of the count."""
    return all(float(model.n_rows / COUNT.lattice).is_integer() for model in models)


def test_noise_leaves_no_pattern_of_floats(served: Harness, fit_request: Make) -> None:
    """Tell 0 + noise from 1 + noise by which doubles can occur (Mironov 2012; diffprivlib #94, #19; Google's k-means).

    Sums and noise are integers on one lattice before they are floats, so the same doubles occur for all tables.
    """
    spend = types_pb2.Spend(rho=0.0005)
    models = [
        fit_pb2.FitDPEMResponse.FromString(raw(served, fit_request(request_id=f"r{i}", spend=spend))[-1]).model
        for i in range(20)
    ]
    assert grid_of(models)
    rival = np.random.default_rng(0).laplace(size=20)  # noqa: TID251  noise of a rival, to be found out
    assert not grid_of([fit_pb2.GaussianMixtureModel(n_rows=40.0 + x) for x in rival])


def imports_of(module: object) -> set[str]:
    """Top-level packages that a module's text imports."""
    nodes = list(ast.walk(ast.parse(inspect.getsource(module))))  # type: ignore[arg-type]
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name.partition(".")[0] for name in plain | {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}}


def modules_of(module: object) -> set[str]:
    """Modules that names are imported from."""
    nodes = ast.walk(ast.parse(inspect.getsource(module)))  # type: ignore[arg-type]
    return {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def names_from(module: object, package: str) -> set[str]:
    """Names that a module imports from a package."""
    nodes = ast.walk(ast.parse(inspect.getsource(module)))  # type: ignore[arg-type]
    found = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == package]
    return {alias.name for node in found for alias in node.names}


def test_practice_shares_no_code_with_the_ledger() -> None:
    """Rehearse on made-up data and be charged, or fit for real and not be (Lomas runs both kinds through one queue).

    Practice is a server of its own in the client's package; it knows neither ledger nor rows. A dummy run of the real
    server has its price from the ledger's package, and nothing that could debit, look up or store.
    """
    assert not imports_of(bursar.testing) & {"bursar_ledger", "bursar_server"}
    assert "bursar_ledger" in imports_of(bursar_server.jobs.paid)
    for module in (
        bursar_server.jobs.trial,
        bursar_server.wire.trial_service,
        bursar_server.jobs.job,
        bursar_server.jobs.limits,
    ):
        assert names_from(module, "bursar_ledger") <= {"Adjacency", "Cost", "price"}
        known = {
            "bursar_server.jobs.paid",
            "bursar_server.jobs.order",
            "bursar_server.tables.catalogue",
            "bursar_server.tables",
        }
        assert not modules_of(module) & known
    assert {"Ledger", "DebitRequest"} <= names_from(bursar_server.jobs.paid, "bursar_ledger")
    assert "bursar_server.jobs.paid" in modules_of(bursar_server.jobs.order)


def test_a_start_from_anothers_release_is_a_start_from_nothing(served: Harness, fit_request: Make) -> None:
    """Start from entries by number: another's model and an entry that never was are refused in the same words."""
    hers = fit_pb2.FitDPEMResponse.FromString(raw(served, fit_request())[0]).receipt.entry
    mallory = analyst(served, "mallory")
    answers = {
        told(served, fit_request(released=fit_pb2.StartReleased(entry=entry)), mallory)
        for entry in (hers, 1, hers + 5000)
    }
    assert len(answers) == 1
    assert "not a release of yours" in answers.pop()
