#!/usr/bin/env bash
# A Redis Cluster of three primaries without replicas. `up` prints host:port of the servers; `kill`, `stop` and `cont` are for
# the first one. The servers have BROKER_PORT and the two next ports; those of the cluster's bus are 10 further. See common.sh.
set -euo pipefail
name=redis-cluster
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
first=${BROKER_PORT:-16400}
base=${BROKER_RUN:-${TMPDIR:-/tmp}/sinews-brokers.$(id -u)/redis-cluster-$first}

# Selects a server for the functions of common.sh.
member() { port=$((first + $1)) run=$base/$1; }

launch() {
  mkdir -p "$run"
  start "$program" --bind 127.0.0.1 --port "$port" --dir "$run" --save "" --appendonly yes --cluster-enabled yes \
    --cluster-port $((port + 10)) --cluster-node-timeout 2000
}

answers() { answers_redis; }

# Sends a command to the selected server, and prints the answer.
ask() {
  { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
  printf '%s\r\nQUIT\r\n' "$1" >&3
  timeout 1 cat <&3 || true
  exec 3>&-
}

is_complete() {
  local info
  info=$(ask "CLUSTER INFO") || return 1
  [[ $info == *cluster_state:ok* && $info == *cluster_known_nodes:3* ]]
}

up() {
  fetch_redis
  for each in 0 1 2; do
    member "$each"
    alive && continue
    launch
    wait_until answers
  done
  for each in 0 1 2; do
    member "$each"
    # A server that returns knows its slots.
    is_complete && continue
    ask "CLUSTER ADDSLOTSRANGE $((each * 16384 / 3)) $(((each + 1) * 16384 / 3 - 1))" >/dev/null
    ask "CLUSTER SET-CONFIG-EPOCH $((each + 1))" >/dev/null
    ask "CLUSTER MEET 127.0.0.1 $first $((first + 10))" >/dev/null
  done
  for each in 0 1 2; do
    member "$each"
    wait_until is_complete
  done
  echo "127.0.0.1:$first,127.0.0.1:$((first + 1)),127.0.0.1:$((first + 2))"
}

case "${1:-}" in
  up) up ;;
  down)
    for each in 0 1 2; do
      member "$each"
      end TERM
    done
    rm -rf "$base"
    ;;
  *)
    member 0
    fetch() { fetch_redis; }
    main "$@"
    ;;
esac
