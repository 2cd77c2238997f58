"""A provider of identities: its keys, and the tokens that it signs."""

from __future__ import annotations

import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from bursar_server import log
from bursar_server.access.oidc import OidcTokens, ProviderKeys
from bursar_server.config import Oidc

NOW = 1_800_000_000.0


ISSUER = "https://login.example.org/hospital"


SETTINGS = Oidc(issuer=ISSUER, audience="bursar")


RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)


EC = ec.generate_private_key(ec.SECP256R1())


ED = ed25519.Ed25519PrivateKey.generate()


CLAIMS = {
    "iss": ISSUER,
    "aud": "bursar",
    "sub": "ann@example.org",
    "iat": NOW - 60,
    "exp": NOW + 600,
    "bursar_role": "analyst",
}


def described(key: Any, kid: str, algorithm: str) -> dict[str, Any]:
    """A public key as a provider publishes it."""
    kinds = {"RS": jwt.algorithms.RSAAlgorithm, "PS": jwt.algorithms.RSAAlgorithm, "ES": jwt.algorithms.ECAlgorithm}
    maker: Any = kinds.get(algorithm[:2], jwt.algorithms.OKPAlgorithm)
    return {**maker.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig", "alg": algorithm}


def key_set(*keys: dict[str, Any]) -> bytes:
    """A list of keys."""
    return json.dumps({"keys": keys}).encode()


KEYS = key_set(described(EC, "ec", "ES256"), described(RSA, "rsa", "RS256"), described(ED, "ed", "EdDSA"))


def signed(key: Any = EC, algorithm: str = "ES256", kid: str | None = "ec", **changes: Any) -> str:
    """A token with some claims changed; None takes one away."""
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    return jwt.encode(claims, key, algorithm=algorithm, headers={} if kid is None else {"kid": kid})


def tokens(settings: Oidc = SETTINGS, keys: bytes = KEYS, now: float = NOW) -> OidcTokens:
    """Return tokens of a provider whose keys are given."""
    given = settings.model_copy(update={"keys": "https://login.example.org/keys"})
    return OidcTokens(
        settings, ProviderKeys(given, lambda _: keys, events=log.Events()).key, lambda: now, events=log.Events()
    )
