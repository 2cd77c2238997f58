# The server's image. The state directory (ledger, keys, certificates, tables) is a volume: nothing of it is in the image.
#
#   docker build --build-arg BASE=python:3.11-slim@sha256:... -t bursar .
#   docker run --rm -v bursar-state:/var/lib/bursar --entrypoint bursar-admin bursar init --state /var/lib/bursar
#   docker run -v bursar-state:/var/lib/bursar -p 8443:8443 bursar

# The base image, by its digest. There is no default: which one is good is for whoever builds to find out, and a tag alone
# may be another image tomorrow. docs/operations.md says how to get and how to renew it.
ARG BASE
FROM ${BASE} AS build
ARG BASE
RUN printf '%s\n' "$BASE" | grep -Eqx '[^@[:space:]]+@sha256:[0-9a-f]{64}' \
    || { echo "BASE is '$BASE', expected NAME@sha256: and 64 hexadecimal digits; see docs/operations.md" >&2; exit 1; }
WORKDIR /src
COPY deploy/build.lock deploy/requirements.lock pyproject.toml README.md ./
COPY client client
COPY models models
COPY server server
COPY ledger ledger
COPY proto proto
# Every file from an index has the hash that is in a lock (deploy/lock.py); then nothing more is taken from anywhere.
RUN python -m venv /opt/build \
    && /opt/build/bin/python -m pip install --no-cache-dir --only-binary=:all: --require-hashes -r build.lock \
    && /opt/build/bin/python -m pip wheel --no-cache-dir --no-build-isolation --no-deps --no-index --wheel-dir /dist . \
    && python -m venv /opt/bursar \
    && /opt/bursar/bin/python -m pip install --no-cache-dir --only-binary=:all: --require-hashes -r requirements.lock \
    && /opt/bursar/bin/python -m pip install --no-cache-dir --no-deps --no-index /dist/bursar-*.whl

FROM ${BASE}
# Made before they become volumes, so that a new volume belongs to the server's user.
RUN useradd --system --uid 10001 --user-group --home-dir /var/lib/bursar --shell /usr/sbin/nologin bursar \
    && install --directory --owner=bursar --group=bursar --mode=0700 /var/lib/bursar /var/lib/bursar-checkpoints /var/cache/bursar
COPY --from=build /opt/bursar /opt/bursar
# Kernels are compiled when the server starts; their cache is no part of the state.
ENV PATH=/opt/bursar/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=/var/cache/bursar \
    BURSAR_STATE=/var/lib/bursar
USER 10001:10001
WORKDIR /var/lib/bursar
VOLUME ["/var/lib/bursar"]
EXPOSE 8443
STOPSIGNAL SIGTERM
# As long as a start may take: failures before the first success do not count until then, and a success ends it.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30m --retries=3 \
    CMD ["bursar-server", "health", "--address", "127.0.0.1:8443", "--ca", "/var/lib/bursar/tls/ca.pem"]
ENTRYPOINT ["bursar-server"]
CMD ["run", "--address", "0.0.0.0:8443"]
