"""The server's settings: a TOML file in the state directory, the environment above it, the command line above both.

Public values only. Nothing here reaches a budget, a sensitivity or the noise: those are in the ledger and in the code.
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

from bursar_ledger.checkpoints import parse_place

PREFIX = "BURSAR_SERVER_"
"""Of environment variables: BURSAR_SERVER_FIT_WORKERS, and BURSAR_SERVER_LIMITS__COLUMNS for a setting of a table."""


class ConfigError(Exception):
    """The settings cannot be used; one line per problem, each naming the setting."""


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
    """What one request may ask for. Checked before the debit; what was paid for is finished whatever they are later.

    Attributes:
        components: most components of a mixture, clusters of a sketch.
        columns: most columns of a fit. Some fits take fewer.
        iterations: most iterations.
        cliques: most cliques of a Markov random field.
        frequencies: most frequencies of a sketch.
        fit_seconds: longest that a fit may take, reckoned from public numbers (rows, columns, components, iterations)
            and `work_per_second` before anything is debited. The count of rows is private under add_remove_one: where
            the owner declared none, nothing can be reckoned, and this limit holds nobody back.
        work_per_second: additions a second that one fit is taken to make, for `fit_seconds`.
        page_rows: most rows of a page of releases.
        entry_rows: most entries of the ledger that one call of an auditor lists; longer ledgers are asked for in parts.
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
    """How often somebody may call, and how often somebody may fail to get in. Refusals are never debited.

    Attributes:
        calls_per_minute: of one principal. A minute's worth may come at once; who is above waits for some seconds.
        failures: calls without a good token that one address may make within `lockout_seconds`, and calls that one
            principal's role forbids; then neither is heard until the time is over, good token or not.
        lockout_seconds: how long.
    """

    calls_per_minute: Annotated[int, Field(ge=1, le=10**6)] = 6000
    failures: Annotated[int, Field(ge=1, le=10**6)] = 100
    lockout_seconds: _Seconds = 60.0


class Tokens(_Table):
    """Bearer tokens that this server issues.

    Attributes:
        days: longest life of a new token, and its life where none is asked for. Tokens that were issued before keep
            theirs.
    """

    days: Annotated[int, Field(ge=1, le=3650)] = 365


class Tls(_Table):
    """TLS beyond the server's own certificate, which is tls/server.pem and tls/server-key.pem. TLS 1.3 only, always.

    Attributes:
        client_ca: PEM file of the authority that signs clients' certificates; then only those are let in, and they
            need a token, too. Empty: tokens alone. A relative path starts from the state directory.
    """

    client_ca: str = ""


class Oidc(_Table):
    """Tokens of an identity provider (OpenID Connect). Off unless `issuer` is set.

    Attributes:
        issuer: what `iss` must be, word by word.
        audience: what `aud` must hold: the name that the provider knows this server by.
        keys: the provider's public keys (JWKS): a file, read again when it changes, or an address with https://.
            Empty: the document of the issuer says where they are.
        document: the issuer's document, a file or an address with https://. Empty: the issuer's address with
            /.well-known/openid-configuration.
        algorithms: that a signature may have. Never a shared secret, never none.
        principal: the claim that names who calls. Debits and allowances have it as oidc:NAME.
        role: the claim, a word or a list of words, that says what he may do.
        analysts: words that make an analyst; likewise auditors and admins. Without one of them nobody gets in.
        auditors: words that make an auditor.
        admins: words that make an administrator.
        datasets: the claim with the only datasets that he may see. Empty: all. If it is set, who has no such claim sees
            none.
        leeway_seconds: how far the two clocks may be apart.
        refresh_seconds: how long keys are kept that came from an address; an unknown key's name fetches them earlier,
            once in ten seconds at most.
        longest_seconds: longest life of a token, from `iat` to `exp`.
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
    """Numbers about requests and the ledger, and the state of the server, over HTTP. Off unless `address` is set.

    Attributes:
        address: host:port on loopback; it has /metrics for Prometheus, and /live, /ready and /health.
    """

    address: Annotated[_Address, AfterValidator(_loopback)] = ""


class Tracing(_Table):
    """OpenTelemetry spans of requests and debits. Off unless `endpoint` is set.

    Attributes:
        endpoint: of a collector, such as http://127.0.0.1:4317 (OTLP over gRPC); https:// for another machine.
    """

    endpoint: Annotated[str, AfterValidator(_collector)] = ""


class Checkpoints(_Table):
    """When and where signed checkpoints of the ledger are written.

    Attributes:
        every: a checkpoint is due after this many entries; there is one more at the start and at the end.
        places: "file:PATH", "git:FOLDER" or "stdout"; relative paths start from the state directory.
    """

    every: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    places: tuple[Annotated[str, AfterValidator(_place)], ...] = ("file:checkpoints",)


class Engine(_Table):
    """Where fits read rows. Results do not depend on it.

    Attributes:
        kind: "local": threads of the server's own machine, `threads_per_fit` of them. "dask": the workers of a Dask
            cluster, which read the partitions of the tables on a storage that all machines share. It needs the extra
            bursar[dask], and all settings below.
        device: of kind "local": "torch:cuda" or "cupy", for statistics that can be summed there (the moments of FitDPEM
            and FitSeparatedGMM, the gradients of FitGradientEM, the tables of FitMRF), with the extra bursar[gpu] and
            that library; empty: the processor.
        scheduler: address of Dask's scheduler, tls://host:port.
        ca: PEM file of the authority that signs the certificates of scheduler, workers and this server. Relative paths
            start from the state directory, likewise for the next two.
        cert: PEM file with this server's certificate in the cluster.
        key: PEM file with that certificate's key.
        storage: folder of the partitions, an absolute path that is the same on every machine.
        pass_seconds: longest that one pass over the rows may take, lost workers included. A fit that meets it fails,
            and stays paid for.
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
    """Limits of the server. Every one depends on public values only.

    Attributes:
        address: host:port to listen on; port 0 picks a free one.
        fit_workers: fits that run at the same time.
        queue_length: fits that may wait for a worker; one more is refused before its debit.
        threads_per_fit: threads that sum rows for one fit. Results do not depend on it.
        fit_memory_mib: MiB that one fit may allocate; tables that it reads do not count. One that needs more fails, and
            stays paid for: far above what fits need, this is for accidents.
        fit_wall_seconds: longest that one fit may run; then it is killed, and stays paid for. At least
            limits.fit_seconds, which refuses before anything is paid.
        rpc_threads: calls that are served at the same time, those that wait for a fit included.
        max_request_bytes: largest message that a client may send.
        max_response_bytes: largest message that the server sends.
        call_seconds: longest a call may last; a fit goes on without it.
        calls_per_principal: calls that one principal may have under way, so that nobody holds every thread.
        fits_per_principal: fits of one principal that may run or wait, so that nobody holds every place.
        response_quantum_seconds: what follows a receipt leaves at multiples of this after the debit, so that time says
            less.
        shutdown_seconds: how long calls may go on after SIGTERM.
        unfinished_fits: what becomes of fits that were paid for and are not done by then. "finish": the server waits
            for them. "abandon": it ends without them; each is run again, under its debit, when it is asked for again.
        recovery: what becomes of a fit that was debited and then cut off, by a crash or by a full disk. "rerun": asking
            again runs it again under the same debit; nothing of the first time was ever sent. "lost": it is never run
            again, whoever asked pays anew; for owners who want one draw of noise at most of every debit.
        reflection: whether holders of a token may ask which services there are.
        log_format: "text", or "json" for one JSON object a line.
        lock_memory: whether the server's memory is kept out of the swap (mlockall); tables that are in use count, too.
        limits: the table [limits].
        rates: the table [rates].
        tokens: the table [tokens].
        tls: the table [tls].
        oidc: the table [oidc].
        metrics: the table [metrics].
        tracing: the table [tracing].
        checkpoints: the table [checkpoints].
        engine: the table [engine].
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
        """Settings of a TOML file (all defaults if there is none), the environment, and overrides that are not None.

        The last of them that has a setting wins, within tables, too.

        Raises ConfigError naming every setting that is unknown or out of range, and where it is from.
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
    """The same settings, for the library to find in the environment; its values are checked with the others."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid")


def _environment() -> dict[str, Any]:
    """What the environment sets. Raises ConfigError for a variable of our prefix that is no setting."""
    names = {PREFIX + "__".join(path).upper() for path, _ in settings()}
    tables = {PREFIX + name.upper() for name in Config.model_fields}
    unknown = sorted(
        name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in names | tables
    )
    if unknown:
        raise ConfigError("\n".join(f"environment: {name} is no setting of this version" for name in unknown))
    return EnvSettingsSource(_Environment)()


def settings() -> Iterator[tuple[tuple[str, ...], object]]:
    """Every setting: its path, such as ("limits", "columns"), and its default."""
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
    # Without the value: it may be a secret that was put into the wrong place.
    return f"{where}: {'.'.join(location)}: {problem['msg']}" if location else f"{where}: {problem['msg']}"


def _holds(values: Any, location: tuple[str, ...]) -> bool:
    if not location or not isinstance(values, Mapping):
        return bool(location) or bool(values)
    return location[0] in values and _holds(values[location[0]], location[1:])


def template() -> str:
    """A settings file with every setting at its default, commented out."""
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
