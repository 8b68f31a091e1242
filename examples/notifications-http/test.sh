#!/usr/bin/env bash
# Tests the tutorial: `SINEWS=path/to/sinews bash test.sh`. Prints `ok NAME`, `skipped NAME: why` or `FAIL NAME: why`.
set -euo pipefail
cd "$(dirname "$0")"
program=${SINEWS:-sinews}
folder=$(mktemp --directory)
processes=()
trap 'kill "${processes[@]}" 2>/dev/null || true; wait; rm -r "$folder"' EXIT
failed=0

check() {
  local name="http: $1"
  shift
  if "$@" >"$folder/output" 2>&1; then echo "ok $name"; else
    failed=1
    echo "FAIL $name: $(tail --lines=3 "$folder/output" | tr '\n' ' ')"
  fi
}

need() { command -v "$1" >/dev/null || { echo "skipped http: no $1 (apt-get install $1)"; exit 0; }; }
need openssl

# Waits until a file has a line that matches, at most 60 s.
wait_for() {
  for ((tenths = 0; tenths < 600; tenths++)); do
    if grep --quiet "$2" "$1"; then return; fi
    sleep 0.1
  done
  echo "no $2 in $(cat "$1")"
  return 1
}

unset SINEWS
SINEWS_API_KEY=$(openssl rand -hex 32)
SINEWS_AUTH_SECRET=$(openssl rand -hex 32)
export SINEWS_API_KEY SINEWS_AUTH_SECRET
"$program" serve --config sinews.toml --listen 127.0.0.1:0 --threads 1 >"$folder/server" 2>&1 &
processes+=($!)
wait_for "$folder/server" 'Ctrl-C stops'
REALTIME_URL=$(grep --only-matching --max-count=1 'http://127.0.0.1:[0-9]*' "$folder/server")
export REALTIME_URL

# Each function ends at its first failure: `set -e` has no effect in the condition of `check`.
published_text_is_read() {
  ./listen.sh anna >"$folder/anna" 2>&1 &
  processes+=($!)
  wait_for "$folder/anna" '"op":"ack"' || return
  ./notify.sh anna $'Order "7"\nC:\\orders' || return
  wait_for "$folder/anna" 'Order \\"7\\"\\nC:\\\\orders'
}

key_publishes_once() {
  ./notify.sh ben 'once' event-1 || return
  ./notify.sh ben 'once' event-1 | grep '"repeated":true' || return
  ./notify.sh ben 'last' || return
  ./listen.sh ben >"$folder/ben" 2>&1 &
  processes+=($!)
  wait_for "$folder/ben" '"last"' || return
  [[ $(grep --count '"once"' "$folder/ben") == 1 ]]
}

other_topics_are_rejected() {
  is_status 403 -H "Authorization: Bearer $(./token.sh anna)" "$REALTIME_URL/topics/notifications.ben" || return
  is_status 401 "$REALTIME_URL/topics/notifications.ben" || return
  is_status 403 -d forged "$REALTIME_URL/topics/notifications.ben"
}

is_status() {
  local wanted=$1 found
  shift
  found=$(curl --silent --output "$folder/body" --max-time 60 --write-out '%{http_code}' "$@")
  [[ $found == "$wanted" ]] || { echo "status $found in place of $wanted: $*"; return 1; }
}

ruby_publishes() { ruby notify.rb anna 'from Ruby' && wait_for "$folder/anna" 'from Ruby'; }

check "a published notification is read by curl" published_text_is_read
check "a repeated call with a key publishes once" key_publishes_once
check "topics of other users are rejected" other_topics_are_rejected
if command -v ruby >/dev/null; then
  check "Ruby publishes" ruby_publishes
else
  echo "skipped http: Ruby publishes: no ruby (apt-get install ruby)"
fi
exit $failed
