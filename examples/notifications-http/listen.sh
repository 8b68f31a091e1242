#!/usr/bin/env bash
# Prints the notifications of a user, the last ten first: listen.sh USER.
set -euo pipefail
url=${REALTIME_URL:-http://127.0.0.1:8080}
exec curl --silent --show-error --no-buffer --retry 5 --retry-connrefused -H 'Accept: application/x-ndjson' \
  -H "Authorization: Bearer $("$(dirname "$0")/token.sh" "$1")" "$url/topics/notifications.$1?last=10"
