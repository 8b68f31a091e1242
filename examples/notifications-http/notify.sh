#!/usr/bin/env bash
# Notifies a user: notify.sh USER TEXT [KEY]. With a key, a repeated call publishes nothing.
set -euo pipefail
url=${REALTIME_URL:-http://127.0.0.1:8080}
# A text as JSON.
json() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  printf '"%s"' "${text//$'\t'/\\t}"
}
body="{\"topic\":$(json "notifications.$1"),\"data\":{\"text\":$(json "$2")}"
if [[ -n ${3:-} ]]; then body+=",\"idempotency_key\":$(json "$3")"; fi
curl --silent --show-error --fail-with-body --max-time 5 --retry 2 --retry-connrefused \
  -H "Authorization: Bearer $SINEWS_API_KEY" --data "$body}" "$url/api/v1/publish"
