"""Tokens of an identity provider: OpenID Connect's JSON Web Tokens, checked with the provider's public keys.

RFC 7519 (tokens), RFC 7517 (keys), RFC 8725 (best current practice: one list of algorithms, issuer and audience checked
word by word, no key taken from the token itself). The signature is PyJWT's business, the rules about claims are here.
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
from bursar_server import logs
from bursar_server.auth import KeysUnavailableError, Principal, UnauthenticatedError
from bursar_server.config import Oidc

try:
    import jwt
except ImportError:  # the extra is not installed; `OidcTokens` says so
    jwt = None  # type: ignore[assignment]  # stands for the module that is not there

PREFIX = "oidc:"
"""Of principals: no name of a token of this server's own has a colon, so nobody can take another's place."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@|+-]{0,127}")
_LARGEST = 2**20
_FETCH_SECONDS = 5.0
_AGAIN_SECONDS = 10.0
_REFUSED = "the identity provider's token is not accepted; get a new one, or ask the administrator for its reason"
"""One text for everything that can be wrong with a token: whoever tries them out learns nothing."""


class OidcError(Exception):
    """The settings of the identity provider cannot be used."""


def fetch(source: str) -> bytes:
    """A document of the provider: a file, or an address with https://. Raises KeysUnavailableError."""
    try:
        if not source.startswith("https://"):
            return _small(Path(source).read_bytes())
        # The address is the owner's, and begins with https://; redirects may not leave it.
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
    """The provider's public keys by their names (`kid`), fetched when they are needed.

    A name that is not known fetches them again, as providers change keys without notice; not more often than every
    `_AGAIN_SECONDS`, so that made-up names do not make this server call the provider all the time. Old keys stay in
    force while new ones cannot be had.

    Args:
        settings: of the provider.
        fetch: gets a document.
        now: seconds on a clock that never goes back.
    """

    def __init__(
        self, settings: Oidc, fetch: Callable[[str], bytes] = fetch, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._fetch = fetch
        self._now = now
        self._lock = threading.Lock()
        self._keys: Mapping[str, Any] = {}
        self._tried = self._got = -float("inf")

    def key(self, name: str) -> Any:
        """The key of a name; None if the provider has none. Raises KeysUnavailableError if it never could be asked."""
        with self._lock:
            old = self._now() - self._got > self._settings.refresh_seconds
            if (old or name not in self._keys) and self._now() - self._tried > _AGAIN_SECONDS:
                self._tried = self._now()
                try:
                    self._keys = self._fetched()
                    self._got = self._now()
                except KeysUnavailableError as error:
                    logs.event("oidc_keys_failed", reason=str(error))
            if self._got == -float("inf"):
                raise KeysUnavailableError("the identity provider's keys could not be read yet")
            return self._keys.get(name)

    def _fetched(self) -> Mapping[str, Any]:
        settings = self._settings
        source = settings.keys
        if not source:
            document = self._json(
                settings.document or f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration"
            )
            # Another issuer's document would name another issuer's keys.
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
            # What it cannot read is of an unknown kind, or no key; PyJWT raises much else than its own errors.
            with contextlib.suppress(Exception):
                key = jwt.PyJWK(described, algorithm)
                if key.key_type != "oct":  # a shared secret is not the provider's alone
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
    """Lets in whoever has a token of the provider. See `auth.Tokens`.

    Args:
        settings: of the provider; `issuer` is set.
        keys: of the provider.
        clock: seconds since 1970.

    Raises:
        OidcError: PyJWT is not installed.
    """

    def __init__(
        self, settings: Oidc, keys: Callable[[str], Any] | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        if jwt is None:
            raise OidcError(
                "tokens of an identity provider need PyJWT; install it with: pip install 'bursar[server,oidc]'"
            )
        self._settings = settings
        self._key = keys or ProviderKeys(settings).key
        self._clock = clock

    def principal(self, token: str) -> Principal:
        """Who has a token.

        Raises:
            UnauthenticatedError: it is not the provider's, not for this server, not now, or gives no role here.
            KeysUnavailableError: nobody can tell now.
        """
        try:
            claims = self._claims(token)
            return self._named(claims)
        except (jwt.PyJWTError, TypeError, ValueError, OverflowError, RecursionError) as error:
            # The kind of error only: texts quote claims.
            logs.event("oidc_refused", error=type(error).__name__)
            raise UnauthenticatedError(_REFUSED) from None

    def _claims(self, token: str) -> Mapping[str, Any]:
        settings = self._settings
        header = jwt.get_unverified_header(token)
        algorithm, name = header.get("alg"), header.get("kid")
        if algorithm not in settings.algorithms or not isinstance(name, str):
            raise jwt.InvalidAlgorithmError
        if "crit" in header:  # RFC 7515, 4.1.11: what is critical has to be understood, and nothing is here
            raise jwt.InvalidTokenError
        key = self._key(name)
        if key is None or key.algorithm_name != algorithm:
            raise jwt.InvalidKeyError
        # The library's own look at the clock is replaced by the one below, which tests can set.
        options: Any = {
            "require": ["exp", "iat", "iss", "aud"],
            "verify_exp": False,
            "verify_nbf": False,
            "verify_iat": False,
        }
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
        # The least of the roles first: who is both gets what both may do by two tokens, not by one.
        lists = ((Role.ANALYST, settings.analysts), (Role.AUDITOR, settings.auditors), (Role.ADMIN, settings.admins))
        role = next((role for role, accepted in lists if words & set(accepted)), None)
        if role is None:
            raise ValueError
        datasets = None
        if settings.datasets:
            datasets = tuple(str(one) for one in _list(claims.get(settings.datasets)) if isinstance(one, str))
        return Principal(PREFIX + name, role, datasets)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _seconds(value: object) -> float:
    """A time as JWTs have it. Raises ValueError for what is none, NaN included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 2**53:
        raise ValueError
    return float(value)
