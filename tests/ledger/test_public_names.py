"""What the package offers, and that its proofs are of the code as it is."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
from pathlib import Path

import pytest

import bursar_ledger

PROOF = Path(bursar_ledger.__file__).with_name("_pricing.md")
PROVED = re.findall(r"^- `([\w.]+)` ([0-9a-f]{12})$", PROOF.read_text("utf-8"), re.MULTILINE)


def test_public_names_are_listed_and_documented() -> None:
    """`__all__` is what the namespace offers, and every name has a docstring."""
    offered = {n for n in vars(bursar_ledger) if not n.startswith("_") and not inspect.ismodule(vars(bursar_ledger)[n])}
    assert offered == set(bursar_ledger.__all__)
    for name in bursar_ledger.__all__:
        thing = getattr(bursar_ledger, name)
        assert not callable(thing) or name == "Event" or inspect.getdoc(thing), name


@pytest.mark.parametrize(("name", "digest"), PROVED)
def test_proofs_are_of_the_code_as_it_is(name: str, digest: str) -> None:
    """A proof names the hash of the source that it proves; after an edit, read the proof again and set the new hash."""
    module, _, function = name.rpartition(".")
    source = inspect.getsource(getattr(importlib.import_module(f"bursar_ledger.{module}"), function))
    assert hashlib.sha256(source.encode()).hexdigest()[:12] == digest


def test_the_proof_covers_the_prices() -> None:
    """Gaussian, Laplace, pure, conversion and filter are proved."""
    assert {name.rpartition(".")[2] for name, _ in PROVED} >= {
        "_gaussian",
        "laplace_rdp",
        "pure_rdp",
        "divergence_cap",
        "cost_units",
    }
