"""Every proof beside the code is about the code as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import bursar
import bursar_amounts
import bursar_ledger
import bursar_server
from tests.refresh_proofs import FENCE, ProofError, fingerprint, front_matter, main, stale

AMOUNTS, CLIENT, SERVER, LEDGER = (
    Path(next(iter(package.__path__))) for package in (bursar_amounts, bursar, bursar_server, bursar_ledger)
)
PROOFS = sorted(proof for folder in (AMOUNTS, CLIENT, SERVER, LEDGER) for proof in folder.rglob("*.md"))
MUST_BE_PROVEN = [
    SERVER / "tables" / "_partitions.py",
    SERVER / "tables" / "_snapshot.py",
    *(
        SERVER / "vault" / f"{name}.py"
        for name in (
            "_blocks",
            "_dask",
            "_noise",
            "_parts",
            "_search",
            "_selection",
            "_sensitivity",
            "_session",
            "_statistic",
            "_transforms",
        )
    ),
    *sorted(SERVER.glob("fits/*/*statistics.py")),
    AMOUNTS / "_amounts.py",
    LEDGER / "_pricing.py",
    CLIENT / "local.py",
]

SOURCE = '''
LIMIT = 3


class Meter:
    """Counts."""

    def charge(self, cost: int) -> None:
        """Count."""
        # why
        if cost > LIMIT:
            raise ValueError(f"too much: {cost}")
'''


def proof_of(folder: Path, *names: str) -> Path:
    """A fresh proof of `SOURCE` that has just been read."""
    (folder / "_meter.py").write_text(SOURCE)
    proof = folder / "_meter.md"
    lines = "".join(f'"{name}" = "unread"\n' for name in names)
    proof.write_text(f"{FENCE}[proves]\n{lines}{FENCE}# Proof\n\nBecause.\n")
    assert CliRunner().invoke(main, [str(proof)]).exit_code == 0
    return proof


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: f"{proof.parent.name}/{proof.name}")
def test_proof_is_current(proof: Path) -> None:
    """The definitions a proof names are those it was read against; if not, read it again: tests/refresh_proofs.py."""
    assert stale(proof) == []


@pytest.mark.parametrize("module", MUST_BE_PROVEN, ids=lambda module: f"{module.parent.name}/{module.name}")
def test_privacy_critical_module_has_a_proof(module: Path) -> None:
    """Noise, sensitivity, meter, sums, prices and every fit's statistics have a proof of the same name beside them."""
    assert front_matter(module.with_suffix(".md"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cost > LIMIT", "cost >= LIMIT"),
        ("            raise", "            pass\n        raise"),
        ("too much", "too little"),
    ],
)
def test_changed_code_makes_a_proof_stale(tmp_path: Path, old: str, new: str) -> None:
    """A changed operator, a statement moved out of its branch, a changed string: each is seen."""
    proof = proof_of(tmp_path, "Meter.charge", "LIMIT")
    (tmp_path / "_meter.py").write_text(SOURCE.replace(old, new))
    assert stale(proof) == ["Meter.charge"]


def test_changed_words_do_not(tmp_path: Path) -> None:
    """Comments, docstrings, blank lines and other definitions leave a proof current."""
    proof = proof_of(tmp_path, "Meter.charge")
    changed = SOURCE.replace("# why", "# because").replace('"Count."', '"Counts.\n\n        Much more.\n        "')
    (tmp_path / "_meter.py").write_text("X = 1\n" + changed.replace("LIMIT = 3", "LIMIT = 4"))
    assert stale(proof) == []


def test_a_constant_and_a_class_can_be_proven(tmp_path: Path) -> None:
    """Constants and whole classes have fingerprints, too, and a class's covers its methods."""
    proof = proof_of(tmp_path, "LIMIT", "Meter")
    (tmp_path / "_meter.py").write_text(SOURCE.replace("= 3", "= 4").replace("cost > LIMIT", "cost < LIMIT"))
    assert stale(proof) == ["LIMIT", "Meter"]


def test_a_definition_of_a_neighbouring_module_can_be_proven(tmp_path: Path) -> None:
    """A proof may name definitions of other modules of its folder, such as a compiled kernel's."""
    proof = proof_of(tmp_path, "_meter:LIMIT")
    (tmp_path / "_meter.py").write_text("LIMIT = 4\n")
    assert stale(proof) == ["_meter:LIMIT"]


def test_refreshing_keeps_the_words_of_a_proof(tmp_path: Path) -> None:
    """Only the front matter is written again."""
    assert proof_of(tmp_path, "LIMIT").read_text().endswith(f"{FENCE}# Proof\n\nBecause.\n")


@pytest.mark.parametrize("text", ["# Proof", f"{FENCE}{FENCE}# Proof", f"x\n{FENCE}[proves]\na = 'b'\n{FENCE}"])
def test_a_proof_without_front_matter_is_refused(tmp_path: Path, text: str) -> None:
    """A proof that names nothing proves nothing."""
    (tmp_path / "_x.md").write_text(text)
    with pytest.raises(ProofError, match="must"):
        front_matter(tmp_path / "_x.md")


def test_a_name_that_is_gone_is_reported() -> None:
    """A proof about a function that was renamed or removed is an error, not a pass."""
    with pytest.raises(ProofError, match=r"defines no Meter\.refund"):
        fingerprint(SOURCE, "Meter.refund")
