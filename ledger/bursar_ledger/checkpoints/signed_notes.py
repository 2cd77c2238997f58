"""Signed notes and checkpoints, in the text of transparency logs: c2sp.org/signed-note and c2sp.org/tlog-checkpoint.

A checkpoint says "at this size the newest entry had this hash", and a note is such a text with an Ed25519 signature::

    bursar/0123456789abcdef0123456789abcdef
    57
    qsBWBUTVYdPQvpRDCPOs/6JzR8jqmKKTKcEzJbuDhLU=
    hash-chain-sha256
    time 2026-11-21T13:30:00+00:00

    — bursar/0123456789abcdef0123456789abcdef 5sl2Iq8...

Tools for signed notes read and verify it. The third line is the hash of the newest entry of a hash chain and not the
root of a Merkle tree, so it has no inclusion proofs; the fourth line says so.

Stability: the text is kept outside for years, so its lines never change their meaning.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .._mark import write_new
from ..errors import LedgerError

CHAIN_LINE = "hash-chain-sha256"
"""The fourth line of a checkpoint: the head is that of a hash chain over SHA-256."""

_ED25519 = b"\x01"
_PRIVATE = "PRIVATE+KEY+"
_DASH = "— "
_LARGEST = 1_000_000  # characters of a note; as in Go's package
_SIZE = re.compile(r"[1-9][0-9]{0,18}")
_NO_TEXT = re.compile("[\x00-\x09\x0b-\x1f\ud800-\udfff]")


class NoteError(LedgerError):
    """Raised when a text is not the note, checkpoint or key that it should be; says which part is wrong."""


@dataclass(frozen=True)
class VerifierKey:
    """Public key as auditors pin it; `str()` gives the text "name+key id+key".

    Attributes:
        name: name of the signer; for a bursar ledger it is the origin of its checkpoints.
        public: the Ed25519 public key, 32 bytes.
    """

    name: str
    public: bytes

    def __post_init__(self) -> None:
        _check_name(self.name)
        if len(self.public) != 32:
            raise NoteError(f"an Ed25519 public key has 32 bytes, got {len(self.public)}")

    @property
    def key_id(self) -> bytes:
        """Four bytes by which a signature names its key."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{_base64(_ED25519 + self.public)}"

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """Return the key that a text "name+key id+key" holds; white space around it is ignored.

        Raises:
            NoteError: it is no such text, another algorithm, or the key id is not that of name and key.
        """
        # The base64 part may hold a "+" of its own.
        name, _, rest = text.strip().partition("+")
        key_id, _, encoded = rest.partition("+")
        key = cls(name, _algorithm_bytes("verifier key", encoded))
        if key.key_id.hex() != key_id:
            raise NoteError("the verifier key's key id is not that of its name and key; copy the whole key again")
        return key

    def accepts(self, text: bytes, signature: bytes) -> bool:
        """Return whether the 64-byte signature is this key's over the text."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, text)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """Private key and the name it signs under; `repr` does not show the secret.

    Attributes:
        name: name of the signer.
        secret: the Ed25519 seed, 32 bytes.
    """

    name: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        if len(self.secret) != 32:
            raise NoteError(f"an Ed25519 private key has 32 bytes, got {len(self.secret)}")

    @classmethod
    def create(cls, name: str) -> SigningKey:
        """Return a new key, from the system's randomness."""
        return cls(name, Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def parse(cls, text: str) -> SigningKey:
        """Return the key of a text "PRIVATE+KEY+name+key id+key"; raises NoteError, which never quotes the text."""
        if not text.startswith(_PRIVATE):
            raise NoteError(f"a signing key begins with {_PRIVATE}")
        name, _, rest = text.removeprefix(_PRIVATE).strip().partition("+")
        key_id, _, encoded = rest.partition("+")
        key = cls(name, _algorithm_bytes("signing key", encoded))
        if key.verifier.key_id.hex() != key_id:
            raise NoteError("the signing key's key id is not that of its name and key; restore it from a backup")
        return key

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """Return the key of a file.

        Raises:
            NoteError: the file is missing, holds no key, or can be read by others than its owner.
        """
        try:
            if path.stat().st_mode & 0o077:
                raise NoteError(f"{path} can be read by others than its owner; expected mode 0600")
            return cls.parse(path.read_text("utf-8"))
        except OSError as error:
            raise NoteError(f"the signing key {path} cannot be read: {error.strerror}") from error
        except UnicodeError as error:
            raise NoteError(f"{path} does not hold a signing key") from error

    def save(self, path: Path) -> None:
        """Write the key to a new file, durably, for its owner only.

        Raises:
            NoteError: there is a file already, or it cannot be written.
        """
        verifier = self.verifier
        text = f"{_PRIVATE}{self.name}+{verifier.key_id.hex()}+{_base64(_ED25519 + self.secret)}\n"
        try:
            # Durable first: the ledger's entry about the key comes next, and must not outlive the key in a power cut.
            write_new(path, text.encode())
        except FileExistsError as error:
            raise NoteError(f"there is a file at {path} already; a signing key is never overwritten") from error
        except OSError as error:
            raise NoteError(f"the signing key {path} cannot be written: {error.strerror}") from error

    @property
    def verifier(self) -> VerifierKey:
        """Public half."""
        return VerifierKey(self.name, self._private().public_key().public_bytes_raw())

    def note(self, text: str) -> str:
        """Return a text with its signature, as a note; the same every time."""
        signature = self.verifier.key_id + self._private().sign(text.encode())
        return f"{text}\n{_DASH}{self.name} {_base64(signature)}\n"

    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)


@dataclass(frozen=True)
class Signature:
    """One signature line of a note.

    Attributes:
        name: name of the signer.
        key_id: first four bytes of what is encoded.
        value: the rest; 64 bytes if it is Ed25519.
    """

    name: str
    key_id: bytes
    value: bytes


@dataclass(frozen=True)
class Note:
    """Text and its signatures, taken apart and not verified.

    Attributes:
        text: what was signed; ends with a line break.
        signatures: at least one, of any algorithm; those of unknown keys are no harm.
    """

    text: str
    signatures: tuple[Signature, ...]

    @classmethod
    def parse(cls, note: str) -> Note:
        """Return a note taken apart; raises NoteError if it is not one."""
        if len(note) > _LARGEST:
            raise NoteError(f"a note has at most {_LARGEST} characters, got {len(note)}")
        if _NO_TEXT.search(note):
            raise NoteError("a note is UTF-8 without control characters but line breaks")
        text, blank, lines = note.rpartition("\n\n")
        if not blank or not text or not lines.endswith("\n"):
            raise NoteError("a note is a text, an empty line and signature lines, each ended by a line break")
        return cls(text + "\n", tuple(_signature(line) for line in lines[:-1].split("\n")))

    def signed_by(self, keys: Sequence[VerifierKey]) -> VerifierKey:
        """Return the first of the keys that signed this note.

        Raises:
            NoteError: none did, or a signature that names one of them is not one.
        """
        for key in keys:
            for signature in self.signatures:
                if (signature.name, signature.key_id) == (key.name, key.key_id):
                    if not key.accepts(self.text.encode(), signature.value):
                        raise NoteError("the signature does not verify: the note is not what was signed")
                    return key
        raise NoteError("it is not signed by the expected key")


@dataclass(frozen=True)
class Checkpoint:
    """Size and head of a ledger at one moment.

    Attributes:
        origin: which ledger, "bursar/" and its id.
        size: number of its newest entry, from 1 on.
        head: hash of that entry, 32 bytes.
        extensions: further lines; "time " and an RFC 3339 time is one. Informational.
    """

    origin: str
    size: int
    head: bytes
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_name(self.origin)
        if not 1 <= self.size < 2**63:
            raise NoteError(f"the size of a checkpoint must lie in 1 to 2**63 - 1, got {self.size}")
        if len(self.head) != 32:
            raise NoteError(f"the head of a checkpoint has 32 bytes, got {len(self.head)}")
        if not all(line and line.isprintable() for line in self.extensions):
            raise NoteError("the extension lines of a checkpoint are not empty and have printable characters")

    @property
    def time(self) -> str | None:
        """Time of signing by the signer's clock, if the note has it."""
        return next((line.removeprefix("time ") for line in self.extensions if line.startswith("time ")), None)

    @property
    def text(self) -> str:
        """Text that is signed."""
        lines = (self.origin, str(self.size), _base64(self.head), CHAIN_LINE, *self.extensions)
        return "".join(f"{line}\n" for line in lines)

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Return the checkpoint that a note's text holds; raises NoteError naming the line that is wrong."""
        lines = text.split("\n")
        if len(lines) < 5 or lines[-1]:
            raise NoteError("a checkpoint has at least the four lines origin, size, head and " + CHAIN_LINE)
        origin, size, head, chain, *extensions = lines[:-1]
        if not _SIZE.fullmatch(size):
            raise NoteError("the second line of a checkpoint is its size, a positive decimal without leading zeros")
        if chain != CHAIN_LINE:
            raise NoteError(f"the fourth line of a checkpoint of a bursar ledger is {CHAIN_LINE}")
        return cls(origin, int(size), _decoded("the third line of a checkpoint", head), tuple(extensions))


def sign(checkpoint: Checkpoint, key: SigningKey) -> str:
    """Return the checkpoint as a note with the key's signature."""
    return key.note(checkpoint.text)


def open_note(note: str, key: VerifierKey) -> Checkpoint:
    """Return the checkpoint of a note that the key signed.

    Raises:
        NoteError: it is not a note, not signed by the key, or its text is not a checkpoint.
    """
    parsed = Note.parse(note)
    parsed.signed_by([key])
    return Checkpoint.parse(parsed.text)


def _signature(line: str) -> Signature:
    name, space, encoded = line.removeprefix(_DASH).partition(" ")
    if not line.startswith(_DASH) or not space:
        raise NoteError('a signature line is "— name signature"')
    _check_name(name)
    value = _decoded("a signature", encoded)
    if len(value) < 5:
        raise NoteError("a signature has a key id of four bytes and something after it")
    return Signature(name, value[:4], value[4:])


def _algorithm_bytes(what: str, encoded: str) -> bytes:
    value = _decoded(f"the {what}", encoded)
    if not value.startswith(_ED25519):
        raise NoteError(f"the {what} is not of the algorithm Ed25519 (first byte 1)")
    return value[1:]


def _check_name(name: str) -> None:
    if not name or not name.isprintable() or "+" in name or any(map(str.isspace, name)):
        raise NoteError("a key name or origin has at least one character, all printable, without spaces and plus signs")


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _decoded(what: str, encoded: str) -> bytes:
    """Standard base64 with padding; one value has one text only."""
    try:
        value = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise NoteError(f"{what} is not base64") from error
    # Else one signature had several texts, and a changed note could pass for another one.
    if _base64(value) != encoded:
        raise NoteError(f"{what} is not base64 in its only form")
    return value
