"""`bursar-server check` finds what would be found out too late, and says what to do; a good directory passes."""

from __future__ import annotations

import dataclasses
import datetime
import json
import sqlite3
import struct
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bursar_ledger import Ledger, LedgerUnavailableError
from bursar_ledger.checkpoints import checkpoint_of, sign
from bursar_server.__main__ import main
from bursar_server.config import Config, template
from bursar_server.fits import registry
from bursar_server.jobs import hardening
from bursar_server.ops import doctor
from bursar_server.ops.checkpoints import load_key, prepare_checkpoints, write_checkpoint
from bursar_server.ops.doctor import Finding, check
from bursar_server.state import State, write_private
from bursar_server.tables.catalogue import Registered
from bursar_server.tables.registration import destroy_key, remove_rows


@pytest.fixture
def good(state: State, monkeypatch: pytest.MonkeyPatch) -> State:
    """A directory with nothing wrong, on a machine with room and without swap."""
    monkeypatch.setattr(doctor, "_LEAST_DISK", 0)
    monkeypatch.setattr(doctor, "swap_in_use", lambda: False)
    monkeypatch.setattr(doctor, "memory_of_machine", lambda: 2**40)
    write_private(state.config, template().encode())
    with Ledger.open(state.ledger) as ledger:
        prepare_checkpoints(state, ledger)
    state.ledger.chmod(0o600)
    return state


def problems(state: State, *, rows: bool = False) -> dict[str, Finding]:
    """Return what is wrong, by what it is."""
    # A place of checkpoints has its path in its name.
    return {finding.what.partition(" in ")[0]: finding for finding in check(state.path, rows=rows) if finding.problem}


def test_a_good_directory_passes(good: State) -> None:
    """Rows included; and everything was looked at."""
    assert problems(good, rows=True) == {}
    looked = {finding.what for finding in check(good.path)}
    assert {
        "settings",
        "certificate",
        "file modes",
        "key of people",
        "ledger",
        "dataset people",
        "swap",
    } <= looked


def _other_mode(state: State) -> None:
    _table_key(state).chmod(0o640)


def _open_folder(state: State) -> None:
    state.path.chmod(0o755)


def _table_key(state: State) -> Path:
    (path,) = (state.keys / "tables").iterdir()
    return path


def _key_that_came_back(state: State) -> None:
    secret = _table_key(state).read_bytes()
    with Ledger.open(state.ledger) as ledger:
        ledger.retire_dataset("people", actor="test", reason="")
        remove_rows(state, ledger, "people", actor="test", reason="")
        path = _table_key(state)
        destroy_key(state, ledger, "people", actor="test", reason="")
    write_private(path, secret)


def _no_checkpoint_key(state: State) -> None:
    (state.keys / "checkpoint.key").unlink()


def _bad_setting(state: State) -> None:
    state.config.write_text("fit_workers = 0")


def _no_certificate(state: State) -> None:
    (state.tls / "server.pem").unlink()


def _others_key(state: State) -> None:
    pair(state, days=100)
    write_private(state.tls / "server-key.pem", _pem(ec.generate_private_key(ec.SECP256R1())))


def _old_certificate(state: State) -> None:
    pair(state, days=-1)


def _no_clients_authority(state: State) -> None:
    state.config.write_text('[tls]\nclient_ca = "clients.pem"')


def _broken_ledger(state: State) -> None:
    with sqlite3.connect(state.ledger) as file:
        for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            file.execute(f'DROP TRIGGER "{name}"')
        file.execute("UPDATE entries SET body = replace(body, 'the-analyst', 'the-anarchist') WHERE number = 3")
    file.close()


def _folder(state: State) -> Path:
    with Ledger.open(state.ledger) as ledger:
        return state.datasets / Registered.of(ledger.dataset("people").manifest).snapshot


def _no_rows(state: State) -> None:
    (_folder(state) / "rows.arrow").unlink()


def _old_checkpoints(state: State) -> None:
    # The ledger was longer when this was signed.
    with Ledger.open(state.ledger) as ledger:
        newest = checkpoint_of(ledger)
        note = sign(dataclasses.replace(newest, size=newest.size + 5), load_key(state))
    (state.path / "checkpoints").write_text(note + "\n")


@pytest.mark.parametrize(
    ("harm", "what", "said"),
    [
        (_other_mode, "file modes", "chmod 600"),
        (_open_folder, "file modes", "chmod 700"),
        (_key_that_came_back, "key of people", "destroyed: remove it"),
        (_no_checkpoint_key, "key of checkpoints", "restore it from a backup"),
        (_bad_setting, "settings", "fit_workers"),
        (_no_certificate, "certificate", "server.pem"),
        (_others_key, "certificate", "is not the key of"),
        (_old_certificate, "certificate", "has ended"),
        (_no_clients_authority, "certificate", "clients.pem"),
        (_broken_ledger, "ledger", "trigger"),
        (_no_rows, "dataset people", "import the table again"),
        (_old_checkpoints, "checkpoints", "entr"),
    ],
)
def test_what_keeps_a_server_from_serving_is_found(
    good: State, harm: Callable[[State], None], what: str, said: str
) -> None:
    """Each named, with what to do, and the exit status says that something is wrong."""
    harm(good)
    found = problems(good)
    assert found[what].fatal
    assert said in found[what].problem
    result = CliRunner().invoke(main, ["check", "--state", str(good.path)])
    assert result.exit_code == 1
    assert f"WRONG  {what}" in result.output


def test_rows_that_were_changed_are_found_when_they_are_read(good: State) -> None:
    """One bit of one cell, though the file has the right shape; without --rows nobody looks."""
    path = _folder(good) / "rows.arrow"
    content = bytearray(path.read_bytes())
    content[content.index(struct.pack("<d", 1.5))] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(content))
    assert problems(good) == {}
    assert "not those that were registered" in problems(good, rows=True)["dataset people"].problem


def test_a_ledger_that_cannot_be_read_now_is_a_finding(good: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite cannot read on a full disk; findings made before that, such as the room on it, are reported."""

    def full(_: object) -> None:
        raise LedgerUnavailableError("the ledger file cannot be used now: disk I/O error")

    monkeypatch.setattr(doctor, "verifier_keys", full)
    monkeypatch.setattr(doctor, "_LEAST_DISK", 2**80)
    found = problems(good)
    assert "disk I/O error" in found["ledger"].problem
    assert found["ledger"].fatal
    assert "MiB are free" in found["disk"].problem


def test_what_somebody_should_look_at_is_a_note(good: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that ends soon, a token left there, a full disk, a swap, rows of what is retired, a lost key."""
    pair(good, days=20)
    _table_key(good).unlink()
    write_private(good.path / "admin.token", b"x")
    (good.datasets / "left").mkdir()
    monkeypatch.setattr(doctor, "_LEAST_DISK", 2**63)
    monkeypatch.setattr(doctor, "swap_in_use", lambda: True)
    monkeypatch.setattr(doctor, "memory_of_machine", lambda: 4 * 4096 * 2**20 - 1)
    with Ledger.open(good.ledger) as ledger:
        ledger.retire_dataset("people", actor="test", reason="")
        assert not write_checkpoint(good, ledger, Config(), create=True)
    found = problems(good)
    assert set(found) == {
        "certificate",
        "administrator's token",
        "disk",
        "swap",
        "memory",
        "dataset people",
        "key of people",
        "other tables",
    }
    assert not any(finding.fatal for finding in found.values())
    result = CliRunner().invoke(main, ["check", "--state", str(good.path), "--json"])
    assert result.exit_code == 0
    assert {one["what"] for one in json.loads(result.output) if one["problem"]} == set(found)


def test_a_place_that_is_no_state_directory_is_said_to_be_none(tmp_path: Path) -> None:
    """The message has the command that makes one."""
    (finding,) = check(tmp_path)
    assert "bursar-admin init" in finding.problem


@pytest.mark.parametrize("kind", ["ext4", "nfs4", "cifs"])
def test_a_network_file_system_is_found(
    good: State, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest mount that holds the directory counts."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {good.path.parent} {kind} rw 0 0\n")
    original = doctor._filesystem
    monkeypatch.setattr(doctor, "_filesystem", lambda path: original(path, mounts))
    assert ("file system" in problems(good)) == (kind != "ext4")


@pytest.mark.parametrize(
    ("swaps", "limit", "expected"),
    [
        ("", None, False),
        ("/dev/sda2 partition 1 0 -2\n", None, True),
        ("/dev/sda2 partition 1 0 -2\n", "max", True),
        ("/dev/sda2 partition 1 0 -2\n", "0", False),
        ("/dev/zram0 partition 1 0 100\n", "max", False),
    ],
)
def test_swap_counts_if_pages_of_the_server_can_go_there(
    tmp_path: Path, swaps: str, limit: str | None, expected: bool
) -> None:
    """Not if its group may use none, nor if the swap is memory itself."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "swaps").write_text("Filename Type Size Used Priority\n" + swaps)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/system.slice/bursar.service\n")
    group = tmp_path / "cgroup" / "system.slice" / "bursar.service"
    group.mkdir(parents=True)
    if limit is not None:
        (group / "memory.swap.max").write_text(limit + "\n")
    assert hardening.swap_in_use(tmp_path / "proc", tmp_path / "cgroup") is expected


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def pair(state: State, days: int) -> None:
    """Put a certificate that ends in so many days, signed by itself, into the place of the server's."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "test")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=90))
        .not_valid_after(now + datetime.timedelta(days=days, hours=1))
        .sign(key, hashes.SHA256())
    )
    write_private(state.tls / "server.pem", certificate.public_bytes(serialization.Encoding.PEM))
    write_private(state.tls / "server-key.pem", _pem(key))


def test_kernels_are_compiled_before_the_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fit's in turn, which is said; a fit that has none is passed over."""
    warmed: list[str] = []
    first = types.SimpleNamespace(warm_up=lambda: warmed.append("first"))
    monkeypatch.setattr(registry, "FITS", {"FitFirst": first, "FitSecond": types.SimpleNamespace()})
    result = CliRunner().invoke(main, ["warm"])
    assert result.exit_code == 0, result.output
    assert warmed == ["first"]
    assert "kernels of FitFirst, 1 of 2" in result.output
    assert "kernels of FitSecond, 2 of 2" in result.output
