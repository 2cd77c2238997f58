# The server's image. The state directory (ledger, keys, certificates, tables) is a volume: nothing of it is in the image.
#
#   docker build -t bursar .
#   docker run --rm -v bursar-state:/var/lib/bursar --entrypoint bursar-admin bursar init --state /var/lib/bursar
#   docker run -v bursar-state:/var/lib/bursar -p 8443:8443 bursar

FROM python:3.11-slim AS build
WORKDIR /src
COPY constraints.txt pyproject.toml README.md ./
COPY client client
COPY server server
COPY ledger ledger
COPY proto proto
# Installed from the wheel's path: by its name, pip would also look for it elsewhere.
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /dist . \
    && python -m venv /opt/bursar \
    && /opt/bursar/bin/python -m pip install --no-cache-dir --constraint constraints.txt "$(echo /dist/bursar-*.whl)[server,oidc,metrics,tracing,audit]"

FROM python:3.11-slim
# Made before it becomes a volume, so that a new volume belongs to the server's user.
RUN useradd --system --uid 10001 --user-group --home-dir /var/lib/bursar --shell /usr/sbin/nologin bursar \
    && install --directory --owner=bursar --group=bursar --mode=0700 /var/lib/bursar /var/cache/bursar
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
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["bursar-server", "health", "--address", "127.0.0.1:8443", "--ca", "/var/lib/bursar/tls/ca.pem"]
ENTRYPOINT ["bursar-server"]
CMD ["run", "--address", "0.0.0.0:8443"]
