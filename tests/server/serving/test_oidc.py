"""Tokens of an identity provider: what is let in, and everything that is not. No network: keys come from functions."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bursar_ledger import Role
from bursar_proto.v1 import catalog_pb2
from bursar_server import log
from bursar_server.access import oidc
from bursar_server.access.auth import (
    METHOD_ROLES,
    ForbiddenError,
    KeysUnavailableError,
    Principal,
    UnauthenticatedError,
    authorise,
)
from bursar_server.access.oidc import OidcTokens, ProviderKeys
from bursar_server.config import Config, ConfigError, Oidc
from tests.each import each
from tests.server.serving.identity import (
    CLAIMS,
    EC,
    ED,
    ISSUER,
    KEYS,
    NOW,
    RSA,
    SETTINGS,
    described,
    key_set,
    signed,
    tokens,
)

if TYPE_CHECKING:
    from tests.server.serving.conftest import Refusal, Serve

_OTHER = ec.generate_private_key(ec.SECP256R1())


@pytest.mark.parametrize(("key", "algorithm", "kid"), [(EC, "ES256", "ec"), (RSA, "RS256", "rsa"), (ED, "EdDSA", "ed")])
def test_a_good_token_lets_its_holder_in(key: Any, algorithm: str, kid: str) -> None:
    """The name is one that no token of this server's own can have."""
    assert tokens().principal(signed(key, algorithm, kid)) == Principal("oidc:ann@example.org", Role.ANALYST)


@each(
    "changes",
    [
        {"iss": "https://login.example.org/hospital/"},
        {"iss": None},
        {"aud": "another-service"},
        {"aud": None},
        {"aud": ["another-service"]},
        {"exp": NOW - 31},
        {"exp": None},
        {"exp": "soon"},
        {"exp": float("inf")},
        {"exp": NOW + 86_400},  # lives longer than tokens may
        {"iat": NOW + 31},
        {"iat": None},
        {"nbf": NOW + 31},
        {"nbf": "now"},
        {"sub": None},
        {"sub": ""},
        {"sub": "ann\nadmin"},
        {"sub": "oidc:ann"},
        {"sub": "x" * 200},
        {"bursar_role": None},
        {"bursar_role": "superuser"},
        {"bursar_role": "admin"},  # nobody is an administrator unless the settings name a word for it
        {"bursar_role": {"analyst": True}},
        {"bursar_role": []},
    ],
)
def test_a_wrong_claim_keeps_its_holder_out(changes: dict[str, Any]) -> None:
    """Every claim is checked, and one text answers whatever was wrong."""
    with pytest.raises(UnauthenticatedError, match="not accepted"):
        tokens().principal(signed(**changes))


@pytest.mark.parametrize("changes", [{"exp": NOW - 29}, {"nbf": NOW + 29}, {"iat": NOW + 29}, {"aud": ["x", "bursar"]}])
def test_clocks_may_be_a_little_apart(changes: dict[str, Any]) -> None:
    """The leeway covers it; and a list of audiences may hold us."""
    assert tokens().principal(signed(**changes)).name == "oidc:ann@example.org"


def _unsigned() -> str:
    return jwt.encode(CLAIMS, "", algorithm="none", headers={"kid": "ec"})


def _with_the_public_key_as_a_secret() -> str:
    # The classical confusion: what everybody knows, used as an HMAC's secret. PyJWT refuses to make it, so by hand.
    public = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    head = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": "rsa"}).encode()).rstrip(b"=")
    body = base64.urlsafe_b64encode(json.dumps(CLAIMS).encode()).rstrip(b"=")
    tag = base64.urlsafe_b64encode(hmac.digest(public, head + b"." + body, hashlib.sha256)).rstrip(b"=")
    return b".".join((head, body, tag)).decode()


def _with_its_own_key() -> str:
    own = described(_OTHER, "ec", "ES256")
    return jwt.encode(CLAIMS, _OTHER, algorithm="ES256", headers={"kid": "ec", "jwk": own})


FORGERIES: dict[str, Callable[[], str]] = {
    "unsigned": _unsigned,
    "confused": _with_the_public_key_as_a_secret,
    "own key": _with_its_own_key,
    "another's signature": lambda: signed(_OTHER),
    "a key of another name": lambda: signed(EC, kid="rsa"),
    "an unknown key": lambda: signed(EC, kid="nobody"),
    "no key's name": lambda: signed(EC, kid=None),
    "an algorithm that is not on the list": lambda: signed(RSA, "RS512", "rsa"),
    "a critical header": lambda: jwt.encode(CLAIMS, EC, algorithm="ES256", headers={"kid": "ec", "crit": ["b64"]}),
    "cut": lambda: signed()[:-10],
    "changed": lambda: ".".join([signed().split(".")[0], signed(sub="eve").split(".")[1], signed().split(".")[2]]),
    "nonsense": lambda: "a.b.c",
    "empty": lambda: "",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_token_keeps_its_holder_out(name: str) -> None:
    """Every signer but the provider's key of that name and kind is refused."""
    with pytest.raises(UnauthenticatedError, match="not accepted"):
        tokens().principal(FORGERIES[name]())


@pytest.mark.parametrize("odd", [[[]], None, 7, {"kid": "x", "kty": "EC", "x": 7}, {"kid": "x", "alg": [], "kty": []}])
def test_what_is_no_key_does_not_hide_those_that_are(odd: Any) -> None:
    """The provider's list has something odd in it, in front of a good key; found by fuzzing."""
    assert tokens(keys=key_set(odd, described(EC, "ec", "ES256"))).principal(signed()).role is Role.ANALYST


def test_a_shared_secret_among_the_keys_is_not_used() -> None:
    """A checker of such a signature could also make it."""
    secret = {"kty": "oct", "kid": "s", "k": base64.urlsafe_b64encode(b"s" * 32).decode(), "alg": "HS256"}
    with pytest.raises(UnauthenticatedError):
        tokens(keys=key_set(secret)).principal(signed(b"s" * 32, "HS256", "s"))


def test_roles_and_datasets_come_from_claims_that_the_settings_name() -> None:
    """A list of words will do; of two roles the lesser one; who has no list of datasets sees none."""
    settings = SETTINGS.model_copy(
        update={"role": "groups", "analysts": ("research",), "admins": ("it",), "datasets": "tables"}
    )
    told = tokens(settings).principal(signed(groups=["x", "it", "research"], tables=["people", 3]))
    assert told == Principal("oidc:ann@example.org", Role.ANALYST, ("people",))
    assert tokens(settings).principal(signed(groups=["it"])) == Principal("oidc:ann@example.org", Role.ADMIN, ())


def test_every_dataset_has_a_word_of_its_own() -> None:
    """Auditors and administrators need it where the setting limits tokens."""
    settings = SETTINGS.model_copy(update={"datasets": "tables"})
    assert tokens(settings).principal(signed(tables=["people", "*"])).datasets is None


@pytest.mark.parametrize("role", [Role.AUDITOR, Role.ADMIN])
@pytest.mark.parametrize("datasets", [(), ("people",)])
def test_a_limited_token_gets_no_whole_ledger(role: Role, datasets: tuple[str, ...]) -> None:
    """Entries name every dataset, and an administrator could issue a token without the limit."""
    limited, whole = Principal("oidc:ann", role, datasets), Principal("oidc:ann", role)
    for method, roles in METHOD_ROLES.items():
        if role not in roles:
            continue
        authorise(method, whole)
        if method.startswith(("/bursar.v1.AuditService/", "/bursar.v1.AdminService/")):
            with pytest.raises(ForbiddenError, match="limited to some datasets"):
                authorise(method, limited)
        else:
            authorise(method, limited)


class Provider:
    """Publishes keys, and counts how often it is asked."""

    def __init__(self) -> None:
        self.keys = key_set(described(EC, "old", "ES256"))
        self.issuer = ISSUER
        self.asked: list[str] = []
        self.down = False
        self.now = 0.0

    def fetch(self, address: str) -> bytes:
        """Return what is at an address."""
        self.asked.append(address)
        if self.down:
            raise KeysUnavailableError("down")
        if address.endswith("openid-configuration"):
            return json.dumps({"issuer": self.issuer, "jwks_uri": "https://login.example.org/k"}).encode()
        return self.keys

    def of(self, settings: Oidc = SETTINGS) -> ProviderKeys:
        """Its keys, as a server keeps them."""
        return ProviderKeys(settings, self.fetch, lambda: self.now, events=log.Events())


def test_keys_are_found_through_the_issuers_document() -> None:
    """Asked once; then kept for as long as the settings say."""
    provider = Provider()
    keys = provider.of()
    for _ in range(3):
        assert keys.key("old") is not None
    assert provider.asked == [f"{ISSUER}/.well-known/openid-configuration", "https://login.example.org/k"]
    provider.now += SETTINGS.refresh_seconds + 1
    assert keys.key("old") is not None
    assert len(provider.asked) == 4


def test_a_document_of_another_issuer_gives_no_keys() -> None:
    """It would name that one's keys."""
    provider = Provider()
    provider.issuer = "https://elsewhere.example.org"
    with pytest.raises(KeysUnavailableError):
        provider.of().key("old")


def test_keys_that_change_are_found_by_their_new_name() -> None:
    """They are found at once, but made-up names do not cause questions all the time; a removed key is gone."""
    provider = Provider()
    keys = provider.of()
    assert keys.key("old") is not None
    provider.keys = key_set(described(_OTHER, "new", "ES256"))
    provider.now += 11
    assert keys.key("new") is not None
    assert keys.key("old") is None
    asked = len(provider.asked)
    for name in ("a", "b", "c"):
        assert keys.key(name) is None
    assert len(provider.asked) == asked


def test_old_keys_stay_in_force_while_the_provider_is_down() -> None:
    """And a provider that never answered is said to be away, not the token to be bad."""
    provider = Provider()
    keys = provider.of()
    assert keys.key("old") is not None
    provider.down, provider.now = True, SETTINGS.refresh_seconds + 1
    assert keys.key("old") is not None
    never = Provider()
    never.down = True
    with pytest.raises(KeysUnavailableError):
        OidcTokens(SETTINGS, never.of().key, lambda: NOW, events=log.Events()).principal(signed(kid="old"))


def test_a_file_of_keys_needs_no_network(tmp_path: Path) -> None:
    """It is read again when a key's name is not in it."""
    file = tmp_path / "keys.json"
    file.write_bytes(KEYS)
    now = [0.0]
    keys = ProviderKeys(SETTINGS.model_copy(update={"keys": str(file)}), now=lambda: now[0], events=log.Events())
    assert keys.key("ec") is not None
    file.write_bytes(key_set(described(_OTHER, "new", "ES256")))
    now[0] = 11.0
    assert keys.key("new") is not None


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"keys": 3}', b'{"keys": [{"kid": 3}]}', b"x" * 2**21])
def test_what_is_no_list_of_keys_lets_nobody_in(tmp_path: Path, content: bytes) -> None:
    """Nor does it raise anything that would be an incident."""
    file = tmp_path / "keys.json"
    file.write_bytes(content)
    settings = SETTINGS.model_copy(update={"keys": str(file)})
    with pytest.raises((UnauthenticatedError, KeysUnavailableError)):
        OidcTokens(
            settings, ProviderKeys(settings, events=log.Events()).key, lambda: NOW, events=log.Events()
        ).principal(signed())


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('issuer = "https://a"', "audience"),
        ('issuer = "http://a"\naudience = "b"', "https"),
        ('keys = "http://a/keys"', "keys"),
        ('algorithms = ["HS256"]', "algorithms"),
        ('algorithms = ["none"]', "algorithms"),
        ("algorithms = []", "algorithms"),
    ],
)
def test_settings_that_would_let_anybody_in_are_refused(tmp_path: Path, text: str, named: str) -> None:
    """A provider without an audience, an address in the clear, a shared secret."""
    (tmp_path / "config.toml").write_text(f"[oidc]\n{text}\n")
    with pytest.raises(ConfigError, match=named):
        Config.load(tmp_path / "config.toml")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setattr(oidc, "jwt", None)
    with pytest.raises(oidc.OidcError, match=r"bursar\[server,oidc\]"):
        OidcTokens(SETTINGS, events=log.Events())


def test_refusals_leave_nothing_of_a_token_in_the_log(
    serve: Serve, tmp_path: Path, refused: Callable[[Callable[[], object]], Refusal], caplog: pytest.LogCaptureFixture
) -> None:
    """The kind of the error only."""
    caplog.set_level("INFO", "bursar.server")
    call = _served_with_a_provider(serve, tmp_path)
    token = signed(sub="SECRET\n", aud="x")
    refusal = refused(lambda: call(token))
    assert "oidc_refused" in caplog.text
    assert not any(part in caplog.text + refusal.everything for part in ("SECRET", *token.split(".")))


def _served_with_a_provider(serve: Serve, folder: Path, **config: Any) -> Callable[[str], bytes]:
    """Start a server that takes the provider's tokens; returns a call that lists datasets with a token."""
    (folder / "keys.json").write_bytes(KEYS)
    served = serve(oidc={"issuer": ISSUER, "audience": "bursar", "keys": str(folder / "keys.json")}, **config)
    ask: Any = served.channel.unary_unary("/bursar.v1.CatalogService/ListDatasets")
    return lambda token: ask(b"", metadata=(("authorization", f"Bearer {token}"),))


def test_forged_tokens_lock_no_good_one_out(
    serve: Serve, tmp_path: Path, refused: Callable[[Callable[[], object]], Refusal]
) -> None:
    """Neither one that was seen before nor a new one, however many forgeries came from the same address."""
    call = _served_with_a_provider(serve, tmp_path, rates={"failures": 3, "lockout_seconds": 1000.0})
    now = time.time()
    for _ in range(3):
        assert refused(lambda: call(signed(_OTHER, iat=now - 1, exp=now + 60))).code is grpc.StatusCode.UNAUTHENTICATED
    assert refused(lambda: call(signed(_OTHER, iat=now - 1, exp=now + 60))).reason == "ADDRESS_LOCKED_OUT"
    assert call(signed(iat=now - 1, exp=now + 60))


def test_signatures_are_verified_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers' tokens keep one CPU busy at most."""
    both, at_once = threading.Barrier(2), []
    decode = jwt.decode

    def meeting(*arguments: Any, **options: Any) -> Any:
        try:
            both.wait(0.2)  # succeeds only if two are in here
        except threading.BrokenBarrierError:
            return decode(*arguments, **options)
        at_once.append(1)
        return decode(*arguments, **options)

    monkeypatch.setattr(jwt, "decode", meeting)
    made = tokens()
    threads = [threading.Thread(target=made.principal, args=(signed(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not at_once


def test_a_slow_provider_holds_up_the_call_that_asks_and_no_other() -> None:
    """A made-up key's name makes the server ask; meanwhile good tokens are taken, and other names are not judged."""
    provider, slow, asked = Provider(), threading.Event(), threading.Event()
    keys = provider.of()
    assert keys.key("old") is not None
    provider.now += 11
    fetch = keys._fetch

    def slowly(address: str) -> bytes:
        asked.set()
        slow.wait()
        return fetch(address)

    keys._fetch = slowly
    found: list[Any] = []
    stranger = threading.Thread(target=lambda: found.append(keys.key("made up")))
    stranger.start()
    asked.wait()
    try:
        provider.now += 11
        assert keys.key("old") is not None
        with pytest.raises(KeysUnavailableError):
            keys.key("new")
    finally:
        slow.set()
        stranger.join()
    assert found == [None]


def test_a_server_takes_both_kinds_of_tokens(
    serve: Serve, tmp_path: Path, refused: Callable[[Callable[[], object]], Refusal]
) -> None:
    """The provider's beside its own; what looks like its own is never asked of the provider."""
    (tmp_path / "keys.json").write_bytes(KEYS)
    provider = {"issuer": ISSUER, "audience": "bursar", "keys": str(tmp_path / "keys.json")}
    served = serve(oidc=provider)
    now = time.time()
    call: Any = served.channel.unary_unary("/bursar.v1.CatalogService/ListDatasets")
    good = signed(iat=now - 1, exp=now + 60)
    answer = call(b"", metadata=(("authorization", f"Bearer {good}"),))
    assert [one.name for one in catalog_pb2.ListDatasetsResponse.FromString(answer).datasets] == ["people"]
    assert call(b"", metadata=served.bearer())
    for bad in (signed(exp=now - 60, iat=now - 120), "bursar_analyst_" + "x" * 20, "x"):
        refusal = refused(lambda bad=bad: call(b"", metadata=(("authorization", f"Bearer {bad}"),)))  # type: ignore[misc]
        assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
