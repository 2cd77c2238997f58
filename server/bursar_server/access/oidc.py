"""Tokens of an identity provider: OpenID Connect's JSON Web Tokens, checked with the provider's public keys.

RFC 7519 (tokens), RFC 7517 (keys), RFC 8725 (best current practice: a fixed list of algorithms, issuer and audience
compared exactly, no key taken from the token itself). PyJWT verifies signatures; this module checks the claims.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bursar_ledger import Role
from bursar_server import log
from bursar_server.access.auth import KeysUnavailableError, Principal, UnauthenticatedError
from bursar_server.config import Oidc

try:
    import jwt
except ImportError:  # the extra is not installed; `OidcTokens` says so
    jwt = None  # type: ignore[assignment]  # stands for the module that is not there

PREFIX = "oidc:"
"""Prefix of the provider's principals. Names of this server's own tokens have no colon, so the two cannot collide."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@|+-]{0,127}")
_LARGEST = 2**20
"""Maximum size of a document in bytes; bounds the memory that a wrong address can take. Chosen, not tuned."""

_FETCH_SECONDS = 5.0
"""Timeout of reading a document, in seconds: the call whose token needs a new key waits for it."""

_AGAIN_SECONDS = 10.0
"""Minimum interval between fetches, in seconds, so that invented key names cannot flood the provider.

Chosen, not tuned.
"""

_REFUSED = "the identity provider's token is not accepted; get a new one, or ask the administrator for its reason"
"""Single text for every fault of a token, so that trying tokens reveals nothing."""


_EVERY = "*"
"""Word of the claim of datasets for all of them; no dataset has this name."""


def is_principal(name: str) -> bool:
    """Return whether a name can be that of a principal with the provider's token."""
    return name.startswith(PREFIX) and bool(_NAME.fullmatch(name.removeprefix(PREFIX)))


class OidcError(Exception):
    """Error: the settings of the identity provider cannot be used."""


def fetch(source: str) -> bytes:
    """Read a document of the provider: a file, or an address with https://.

    Raises:
        KeysUnavailableError: the document cannot be read.
    """
    try:
        if not source.startswith("https://"):
            return _small(Path(source).read_bytes())
        # The owner configured this https address; a redirect could lead elsewhere, so none is followed.
        with _OPENER.open(source, timeout=_FETCH_SECONDS) as answer:
            return _small(answer.read(_LARGEST + 1))
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise KeysUnavailableError(f"{source} cannot be read ({type(error).__name__})") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def _small(content: bytes) -> bytes:
    if len(content) > _LARGEST:
        raise ValueError("larger than a list of keys is")
    return content


class ProviderKeys:
    """Public keys of the provider by name (`kid`), fetched when they are needed.

    An unknown name fetches them again, because providers change keys without notice, but at most once in
    `_AGAIN_SECONDS`, because strangers can invent names. Only the call that fetches waits for the provider; other calls
    use the known keys. Old keys stay in force while new ones are not available.

    PyJWT's `PyJWKClient` is not used: it reads answers of any size, lets every call wait for the one that fetches,
    drops old keys once they are due, and asks a provider that fails again at every call.
    """

    def __init__(
        self,
        settings: Oidc,
        fetch: Callable[[str], bytes] = fetch,
        now: Callable[[], float] = time.monotonic,
        *,
        events: log.Events,
    ) -> None:
        self._events = events
        self._settings = settings
        self._fetch = fetch
        self._now = now
        self._lock = threading.Lock()
        self._keys: Mapping[str, Any] = {}
        self._tried = self._got = -float("inf")
        self._fetching = False

    def key(self, name: str) -> Any:
        """Return the key of a name; None if the provider has none.

        Raises:
            KeysUnavailableError: the provider has never answered, or a fetch for an unknown name is under way.
        """
        with self._lock:
            old = self._now() - self._got > self._settings.refresh_seconds
            wanted = (old or name not in self._keys) and self._now() - self._tried > _AGAIN_SECONDS
            fetches = wanted and not self._fetching
            if fetches:
                # Within the lock and before the fetch: of calls at one time only this one fetches.
                self._tried, self._fetching = self._now(), True
        if fetches:
            self._fetch_again()
        with self._lock:
            if self._got == -float("inf") or (self._fetching and name not in self._keys):
                raise KeysUnavailableError("the identity provider's keys could not be read yet")
            return self._keys.get(name)

    def _fetch_again(self) -> None:
        # Without the lock: a provider may take seconds to answer, and calls with known keys must not wait.
        try:
            keys, got = self._fetched(), self._now()
        except KeysUnavailableError as error:
            self._events.tell(log.OidcKeysFailed(reason=str(error)))
        else:
            with self._lock:
                self._keys, self._got = keys, got
        finally:
            with self._lock:
                self._fetching = False

    def _fetched(self) -> Mapping[str, Any]:
        settings = self._settings
        source = settings.keys
        if not source:
            document = self._json(
                settings.document or f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration"
            )
            # Else a document of another issuer would bring its keys into force (RFC 8414, section 3.3).
            if document.get("issuer") != settings.issuer:
                raise KeysUnavailableError("the provider's document names another issuer than the settings")
            source = str(document.get("jwks_uri", ""))
            if not source.startswith("https://"):
                raise KeysUnavailableError(
                    "the provider's document names no keys with an address that begins with https://"
                )
        found = {}
        for described in _list(self._json(source).get("keys")):
            if not isinstance(described, dict):
                continue
            name, algorithm = described.get("kid"), described.get("alg")
            if described.get("use", "sig") != "sig" or not isinstance(name, str):
                continue
            # Unreadable keys are skipped: providers add kinds of keys, and PyJWT raises many types of exceptions.
            with contextlib.suppress(Exception):
                key = jwt.PyJWK(described, algorithm)
                if key.key_type != "oct":  # a shared secret would let its other holders sign tokens
                    found[name] = key
        return found

    def _json(self, source: str) -> Mapping[str, Any]:
        try:
            value = json.loads(self._fetch(source))
        except (ValueError, RecursionError):
            raise KeysUnavailableError(f"{source} is not JSON") from None
        if not isinstance(value, dict):
            raise KeysUnavailableError(f"{source} is not a JSON object")
        return value


class OidcTokens:
    """Tokens of the identity provider; an `auth.Tokens`.

    Settings have an `issuer`; keys are those of `ProviderKeys` by default.

    Raises:
        OidcError: PyJWT is not installed.
    """

    def __init__(
        self,
        settings: Oidc,
        keys: Callable[[str], Any] | None = None,
        clock: Callable[[], float] = time.time,
        *,
        events: log.Events,
    ) -> None:
        if jwt is None:
            raise OidcError(
                "tokens of an identity provider need PyJWT; install it with: pip install './bursar[server,oidc]'"
            )
        self._settings = settings
        self._key = keys or ProviderKeys(settings, events=events).key
        self._clock = clock
        self._verifying = threading.Lock()

    def principal(self, token: str) -> Principal:
        """Return the holder of a token.

        Raises:
            UnauthenticatedError: the token is not the provider's, not for this server, not valid now, or gives no role
                here.
            KeysUnavailableError: the token cannot be checked now.
        """
        try:
            claims = self._claims(token)
            return self._named(claims)
        except (jwt.PyJWTError, TypeError, ValueError, OverflowError, RecursionError) as error:
            # Only the type of the error: its text may quote claims.
            raise UnauthenticatedError(_REFUSED, type(error).__name__) from None

    def _claims(self, token: str) -> Mapping[str, Any]:
        settings = self._settings
        header = jwt.get_unverified_header(token)
        algorithm, name = header.get("alg"), header.get("kid")
        if algorithm not in settings.algorithms or not isinstance(name, str):
            raise jwt.InvalidAlgorithmError
        if "crit" in header:  # RFC 7515, 4.1.11: unknown critical parameters must be refused, and all are unknown here
            raise jwt.InvalidTokenError
        key = self._key(name)
        if key is None or key.algorithm_name != algorithm:
            raise jwt.InvalidKeyError
        # `_check_times` replaces the library's checks, because tests set its clock.
        options: Any = {
            "require": ["exp", "iat", "iss", "aud"],
            "verify_exp": False,
            "verify_nbf": False,
            "verify_iat": False,
        }
        # One at a time, so that verifying strangers' tokens occupies at most one CPU.
        with self._verifying:
            claims: Mapping[str, Any] = jwt.decode(
                token, key, algorithms=[algorithm], audience=settings.audience, issuer=settings.issuer, options=options
            )
        self._check_times(claims)
        return claims

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        now, leeway = self._clock(), self._settings.leeway_seconds
        expires, issued = _seconds(claims["exp"]), _seconds(claims["iat"])
        begins = _seconds(claims.get("nbf", issued))
        if not now < expires + leeway:
            raise jwt.ExpiredSignatureError
        if not max(begins, issued) <= now + leeway:
            raise jwt.ImmatureSignatureError
        if not expires - issued <= self._settings.longest_seconds:
            raise jwt.InvalidTokenError

    def _named(self, claims: Mapping[str, Any]) -> Principal:
        settings = self._settings
        name = claims.get(settings.principal)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError
        said = claims.get(settings.role)
        words = {said} if isinstance(said, str) else {word for word in _list(said) if isinstance(word, str)}
        # The least powerful role first, so that one token never combines roles.
        lists = ((Role.ANALYST, settings.analysts), (Role.AUDITOR, settings.auditors), (Role.ADMIN, settings.admins))
        role = next((role for role, accepted in lists if words & set(accepted)), None)
        if role is None:
            raise ValueError
        datasets = None
        if settings.datasets:
            named = tuple(str(one) for one in _list(claims.get(settings.datasets)) if isinstance(one, str))
            datasets = None if _EVERY in named else named
        return Principal(PREFIX + name, role, datasets)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _seconds(value: object) -> float:
    """Return a time in a JWT as seconds since 1970. Raises ValueError if the value is not a time; NaN included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 2**53:
        raise ValueError
    return float(value)
