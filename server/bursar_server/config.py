"""Settings of the server: a TOML file in the state directory, overridden by the environment and by the command line.

All values are public. No setting affects a budget, a sensitivity or the noise: those are in the ledger and in the code.
Imports no other room.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from bursar_ledger.checkpoints.stores import parse_place

PREFIX = "BURSAR_SERVER_"
"""Prefix of environment variables, such as BURSAR_SERVER_FIT_WORKERS or, for a table, BURSAR_SERVER_LIMITS__COLUMNS."""


class ConfigError(Exception):
    """Error: the settings cannot be used; one line per problem, each naming the setting."""


def _place(text: str) -> str:
    parse_place(text, Path())
    return text


def _loopback(address: str) -> str:
    host = address.rpartition(":")[0].strip("[]")
    if address and not (host == "localhost" or ipaddress.ip_address(host).is_loopback):
        raise ValueError("must be on loopback, such as 127.0.0.1:9464: it asks for no token")
    return address


def _collector(endpoint: str) -> str:
    scheme, _, rest = endpoint.partition("://")
    if endpoint and scheme != "https" and not (scheme == "http" and _loopback(rest.rstrip("/"))):
        raise ValueError("must begin with https://, or with http:// and be on loopback: spans name analysts and tables")
    return endpoint


def _source(text: str) -> str:
    if "://" in text and not text.startswith("https://"):
        raise ValueError("must be a file or begin with https://")
    return text


_Count = Annotated[int, Field(ge=1, le=1024)]
_Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
_Address = Annotated[str, Field(pattern=r"^([^\s]+:\d{1,5})?$")]
_Source = Annotated[str, AfterValidator(_source)]
_Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RequestLimits(_Table):
    """Limits of one request, checked before the debit. A charged fit is finished even if they are lowered later.

    Attributes:
        components: maximum number of components of a mixture, or clusters of a sketch.
        columns: maximum number of columns of a fit. Some fits take fewer.
        iterations: maximum number of iterations.
        cliques: maximum number of cliques of a Markov random field.
        frequencies: maximum number of frequencies of a sketch.
        fit_seconds: maximum estimated duration of a fit, in seconds. The estimate uses public numbers (rows, columns,
            components, iterations) and `work_per_second`, before anything is debited. Under add_remove_one the number
            of rows is private: if the owner declared none, there is no estimate, and this limit does not apply.
        work_per_second: additions per second assumed for one fit, for `fit_seconds`.
        page_rows: maximum number of rows of a page of releases.
        entry_rows: maximum number of ledger entries that one call of an auditor lists; longer ledgers are listed in
            parts.
    """

    components: Annotated[int, Field(ge=1, le=256)] = 256
    columns: Annotated[int, Field(ge=1, le=128)] = 128
    iterations: Annotated[int, Field(ge=1, le=200)] = 200
    cliques: Annotated[int, Field(ge=1, le=2016)] = 2016
    frequencies: Annotated[int, Field(ge=1, le=2**14)] = 2**14
    fit_seconds: Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False)] = 604_800.0
    work_per_second: Annotated[float, Field(ge=1e3, le=1e15, allow_inf_nan=False)] = 1e9
    page_rows: Annotated[int, Field(ge=1, le=1000)] = 1000
    entry_rows: Annotated[int, Field(ge=1, le=2**31)] = 2**24


class Rates(_Table):
    """Limits on the rate of calls and of failures. Refusals are never debited.

    Attributes:
        calls_per_minute: maximum number of calls of one principal per minute. They may come all at once; further calls
            must wait for some seconds.
        failures: maximum number of calls without a valid token from one address within `lockout_seconds`. Further ones
            are refused for a while, and are neither logged nor counted. Calls with a valid token are always served,
            even from such an address. The same number limits calls that one principal's role forbids; beyond it all
            calls of that principal must wait.
        lockout_seconds: length of the counting period and of a lockout, in seconds.
    """

    calls_per_minute: Annotated[int, Field(ge=1, le=10**6)] = 6000
    failures: Annotated[int, Field(ge=1, le=10**6)] = 100
    lockout_seconds: _Seconds = 60.0


class Tokens(_Table):
    """Bearer tokens that this server issues.

    Attributes:
        days: maximum life of a new token in days, and its life if none is requested. Earlier tokens keep theirs.
    """

    days: Annotated[int, Field(ge=1, le=3650)] = 365


class Tls(_Table):
    """TLS settings beyond the server's own certificate, which is tls/server.pem and tls/server-key.pem.

    Always TLS 1.3 only.

    Attributes:
        client_ca: PEM file of the authority that signs clients' certificates. If set, clients need such a certificate
            and a token. Empty: a token alone. A relative path starts from the state directory.
    """

    client_ca: str = ""


class Oidc(_Table):
    """Tokens of an identity provider (OpenID Connect). Off unless `issuer` is set.

    Attributes:
        issuer: exact value that `iss` must have.
        audience: value that `aud` must contain: the provider's name for this server.
        keys: the provider's public keys (JWKS): a file, read again when it changes, or an address with https://. Empty:
            the issuer's document has their address.
        document: the issuer's document, a file or an address with https://. Empty: the issuer's address with
            /.well-known/openid-configuration.
        algorithms: accepted signature algorithms. Shared secrets and unsigned tokens are never accepted.
        principal: claim with the caller's name. Debits and allowances record it as oidc:NAME.
        role: claim with the caller's role, a word or a list of words.
        analysts: words of the role claim that make an analyst. A token without a word of any role is refused.
        auditors: words of the role claim that make an auditor.
        admins: words of the role claim that make an administrator.
        datasets: claim with the only datasets that the caller may see, or `*` for all. Empty: all datasets. If set,
            tokens without the claim see no dataset, and those without `*` neither audit nor administer.
        leeway_seconds: maximum difference of the two clocks, in seconds.
        refresh_seconds: time for which keys from an address are kept, in seconds. A key with an unknown name fetches
            them earlier, at most once in ten seconds.
        longest_seconds: maximum life of a token from `iat` to `exp`, in seconds.
    """

    issuer: str = ""
    audience: str = ""
    keys: _Source = ""
    document: _Source = ""
    algorithms: Annotated[tuple[_Algorithm, ...], Field(min_length=1)] = ("RS256", "PS256", "ES256", "EdDSA")
    principal: Annotated[str, Field(min_length=1)] = "sub"
    role: Annotated[str, Field(min_length=1)] = "bursar_role"
    analysts: tuple[str, ...] = ("analyst",)
    auditors: tuple[str, ...] = ("auditor",)
    admins: tuple[str, ...] = ()
    datasets: str = ""
    leeway_seconds: Annotated[float, Field(ge=0, le=300, allow_inf_nan=False)] = 30.0
    refresh_seconds: _Seconds = 3600.0
    longest_seconds: _Seconds = 86_400.0

    @model_validator(mode="after")
    def _whole(self) -> Oidc:
        if self.issuer and not self.audience:
            raise ValueError("audience is missing; without it tokens for other services would let their holders in")
        if self.issuer and not (self.keys or self.document or self.issuer.startswith("https://")):
            raise ValueError("expected keys, a document, or an issuer that begins with https://")
        return self


class Metrics(_Table):
    """Metrics of requests and the ledger, and the server's health, over HTTP. Off unless `address` is set.

    Attributes:
        address: host:port on loopback; it serves /metrics for Prometheus, and /live, /ready and /health.
    """

    address: Annotated[_Address, AfterValidator(_loopback)] = ""


class Tracing(_Table):
    """OpenTelemetry spans of requests and debits. Off unless `endpoint` is set.

    Attributes:
        endpoint: address of a collector, such as http://127.0.0.1:4317 (OTLP over gRPC); https:// for another machine.
    """

    endpoint: Annotated[str, AfterValidator(_collector)] = ""


class Checkpoints(_Table):
    """Times and locations of signed checkpoints of the ledger.

    Attributes:
        every: number of entries after which a checkpoint is due; there is one more at the start and at the end.
        places: checkpoint locations: "file:PATH", "git:FOLDER" or "stdout"; relative paths start from the state
            directory.
    """

    every: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    places: tuple[Annotated[str, AfterValidator(_place)], ...] = ("file:checkpoints",)


class Engine(_Table):
    """Machines on which fits read rows. Results do not depend on them.

    Attributes:
        kind: "local": threads of the server's own machine, `threads_per_fit` of them. "dask": the workers of a Dask
            cluster, which read the partitions of the tables on a storage that all machines share. It needs the extra
            bursar[dask], and all settings below.
        device: for kind "local": "torch:cuda" or "cupy", for statistics that can be summed there (the moments of
            FitDPEM and FitSeparatedGMM, the gradients of FitGradientEM, the tables of FitMRF), with the extra
            bursar[gpu] and that library; empty: the CPU.
        scheduler: address of Dask's scheduler, tls://host:port.
        ca: PEM file of the authority that signs the certificates of scheduler, workers and this server. Relative paths
            of `ca`, `cert` and `key` start from the state directory.
        cert: PEM file with this server's certificate in the cluster.
        key: PEM file with that certificate's private key.
        storage: folder of the partitions, an absolute path that is the same on every machine.
        pass_seconds: maximum duration of one pass over the rows in seconds, including retries of lost workers. A fit
            that exceeds it fails, and stays charged.
    """

    kind: Literal["local", "dask"] = "local"
    device: Annotated[str, Field(pattern=r"^[a-z_]*(:[a-z0-9:]+)?$")] = ""
    scheduler: Annotated[str, Field(pattern=r"^(tls://[^\s/]+:\d{1,5})?$")] = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    storage: Annotated[str, Field(pattern=r"^(/.*)?$")] = ""
    pass_seconds: _Seconds = 3600.0

    @model_validator(mode="after")
    def _whole(self) -> Engine:
        missing = [name for name in ("scheduler", "ca", "cert", "key", "storage") if not getattr(self, name)]
        if self.kind == "dask" and missing:
            raise ValueError(f'kind = "dask" needs {", ".join(missing)}, too')
        return self


class Config(_Table):
    """Limits of the server. All depend on public values only.

    Attributes:
        address: host:port to listen on; port 0 picks a free one.
        fit_workers: number of fits that run at the same time.
        queue_length: number of fits that may wait for a worker; further ones are refused before their debit.
        threads_per_fit: number of threads that sum rows for one fit. Results do not depend on it.
        fit_memory_mib: memory in MiB that one fit may allocate; tables that it reads do not count. A fit that needs
            more fails, and stays charged. The limit is far above the needs of fits and guards against accidents.
        fit_wall_seconds: maximum duration of one fit in seconds; then it is killed, and stays charged. At least
            limits.fit_seconds, which refuses before the debit.
        rpc_threads: number of calls that are served at the same time, including those that wait for a fit.
        max_request_bytes: maximum size of a message that a client sends, in bytes.
        max_response_bytes: maximum size of a message that the server sends, in bytes.
        call_seconds: maximum duration of a call in seconds; a fit continues without it.
        calls_per_principal: maximum number of simultaneous calls of one principal, so that one cannot hold all threads.
        fits_per_principal: maximum number of running and waiting fits of one principal, so that one cannot fill the
            queue.
        response_quantum_seconds: responses after a receipt are sent at multiples of this time after the fit begins, in
            seconds, so that timing reveals little.
        shutdown_seconds: time for which calls may continue after SIGTERM, in seconds.
        unfinished_fits: treatment of charged fits that are not finished by then. "finish": the server waits for them.
            "abandon": it ends without them; each is run again under its debit when it is requested again.
        recovery: treatment of a fit that was interrupted after its debit, by a crash or a full disk. "rerun":
            requesting it again runs it again under the same debit; nothing of the first run was ever sent. "lost": it
            is never run again, and a new request is charged; for owners who want at most one draw of noise per debit.
        reflection: whether holders of a token may list the services.
        log_format: "text", or "json" for one JSON object a line.
        lock_memory: whether the server's memory is kept out of the swap (mlockall); tables in use count, too.
        limits: table [limits].
        rates: table [rates].
        tokens: table [tokens].
        tls: table [tls].
        oidc: table [oidc].
        metrics: table [metrics].
        tracing: table [tracing].
        checkpoints: table [checkpoints].
        engine: table [engine].
    """

    address: str = Field(default="127.0.0.1:8443", pattern=r"^[^\s]+:\d{1,5}$")
    fit_workers: _Count = 2
    queue_length: Annotated[int, Field(ge=0, le=1024)] = 16
    threads_per_fit: _Count = Field(default_factory=lambda: max(1, (os.cpu_count() or 1) // 2))
    fit_memory_mib: Annotated[int, Field(ge=256, le=2**24)] = 4096
    fit_wall_seconds: Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False)] = 1_209_600.0
    rpc_threads: _Count = 64
    max_request_bytes: Annotated[int, Field(ge=1024, le=2**26)] = 2**20
    max_response_bytes: Annotated[int, Field(ge=1024, le=2**30)] = 2**26
    call_seconds: _Seconds = 3600.0
    calls_per_principal: _Count = 16
    fits_per_principal: _Count = 8
    response_quantum_seconds: Annotated[float, Field(ge=0.01, le=86_400, allow_inf_nan=False)] = 0.25
    shutdown_seconds: _Seconds = 30.0
    unfinished_fits: Literal["finish", "abandon"] = "finish"
    recovery: Literal["rerun", "lost"] = "rerun"
    reflection: bool = True
    log_format: Literal["text", "json"] = "text"
    lock_memory: bool = False
    limits: RequestLimits = RequestLimits()
    rates: Rates = Rates()
    tokens: Tokens = Tokens()
    tls: Tls = Tls()
    oidc: Oidc = Oidc()
    metrics: Metrics = Metrics()
    tracing: Tracing = Tracing()
    checkpoints: Checkpoints = Checkpoints()
    engine: Engine = Engine()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if (self.unfinished_fits, self.recovery) == ("abandon", "lost"):
            raise ValueError('unfinished_fits = "abandon" with recovery = "lost" would throw away what was paid for')
        if not self.fit_wall_seconds >= self.limits.fit_seconds:
            raise ValueError("fit_wall_seconds is below limits.fit_seconds: fits would be paid for and then killed")
        return self

    @classmethod
    def load(cls, path: Path, **overrides: object) -> Config:
        """Return the settings of a TOML file, the environment and overrides; the last one that has a setting wins.

        That holds within tables, too. Without a file all settings have their defaults, and overrides that are None are
        ignored.

        Raises:
            ConfigError: a setting is unknown or out of range; the message names all such settings and their source.
        """
        try:
            file = tomllib.loads(path.read_text()) if path.exists() else {}
        except (ValueError, RecursionError) as error:  # of syntax, encoding, too many digits, or too many brackets
            raise ConfigError(f"{path.name} is not valid TOML: {error}") from None
        try:
            environment = _environment()
        except SettingsError as error:
            raise ConfigError(f"environment: {error}; tables and lists are written as JSON") from None
        line = {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls.model_validate(_merged(_merged(file, environment), line))
        except ValidationError as error:
            sources = (("command line", line), ("environment", environment), (path.name, file))
            raise ConfigError("\n".join(_problem(sources, problem) for problem in error.errors())) from None


class _Environment(Config, BaseSettings):
    """Same settings, for pydantic to find in the environment; `Config.load` checks the values with the others."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid")


def _environment() -> dict[str, Any]:
    """Return the settings in the environment. Raises ConfigError for a variable of our prefix that is no setting."""
    names = {PREFIX + "__".join(path).upper() for path, _ in settings()}
    tables = {PREFIX + name.upper() for name in Config.model_fields}
    unknown = sorted(
        name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in names | tables
    )
    if unknown:
        raise ConfigError("\n".join(f"environment: {name} is no setting of this version" for name in unknown))
    return EnvSettingsSource(_Environment)()


def settings() -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield every setting: its path, such as ("limits", "columns"), and its default."""
    for name, field in Config.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield from (((name, inner), value) for inner, value in default)
        else:
            yield (name,), default


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _problem(sources: tuple[tuple[str, Mapping[str, Any]], ...], problem: Any) -> str:
    location = tuple(map(str, problem["loc"]))
    where = next((name for name, values in sources if _holds(values, location)), sources[-1][0])
    # Without the value, which may be a secret in the wrong place.
    return f"{where}: {'.'.join(location)}: {problem['msg']}" if location else f"{where}: {problem['msg']}"


def _holds(values: Any, location: tuple[str, ...]) -> bool:
    if not location or not isinstance(values, Mapping):
        return bool(location) or bool(values)
    return location[0] in values and _holds(values[location[0]], location[1:])


def template() -> str:
    """Return a settings file with every setting at its default, commented out."""
    lines = ["# Settings of bursar-server; remove the # to change one. They can lower no protection."]
    lines.append("## What they mean is in docs/configuration.md; bursar-server check says whether they hold together.")
    table = ""
    for path, default in settings():
        if len(path) == 2 and path[0] != table:
            table = path[0]
            lines += [*_COMMENTS.get(table, "\n").splitlines(), f"# [{table}]"]
        if path != ("threads_per_fit",):  # depends on the machine
            lines.append(f"# {path[-1]} = {_toml(default)}")
    return "\n".join(lines) + "\n"


_COMMENTS = {
    "checkpoints": """
## Signed checkpoints of the ledger. A history in the state directory goes back
## in time with the ledger when an old copy of the directory is put back: a file on a second disk, or a git folder that
## is pushed elsewhere, is what catches that. For instance:
##   places = ["file:checkpoints", "file:/mnt/second/bursar-checkpoints", "git:/srv/witness"]
## A new place is begun with: bursar-admin checkpoint write
"""
}


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
