#!/bin/sh
# Ask bursar with curl: sh tour.sh DATASET COLUMN COLUMN RHO (docs/howto-json.md says how to run it).
set -eu
# The token goes through a pipe: everybody on the machine could read it among the arguments of a program.
ask() {
    printf 'Authorization: Bearer %s' "$BURSAR_TOKEN" | curl --silent --show-error --fail-with-body --no-buffer \
        --cacert "$BURSAR_CA" --header @- --header 'Content-Type: application/json' \
        --data "$2" "$BURSAR_GATEWAY/bursar.v1.$1"
}
id="curl-$(date +%s)-$$"
fit='"dataset": "'$1'", "columns": ["'$2'", "'$3'"], "n_components": 2'
ask CatalogService/ListDatasets '{}'
ask FitService/Preview '{"dpem": {'"$fit"', "spend": {"rho": '"$4"'}}}'
ask FitService/FitDPEM '{"request_id": "'"$id"'", '"$fit"', "spend": {"rho": '"$4"'}}'
ask CatalogService/ListReleases '{}'
ask FitService/FitDPEM '{"request_id": "'"$id-b"'", '"$fit"', "spend": {"rho": 1000}}' || echo "refused: curl ends with $?"
