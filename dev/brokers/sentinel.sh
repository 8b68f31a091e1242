#!/usr/bin/env bash
# A Redis primary, its replica, and three sentinels, which know the service `main` and promote the replica within
# seconds. `up` prints host:port of the sentinels; `kill`, `stop` and `cont` are for the server that was the primary at
# first. The servers have BROKER_PORT and the next port, the sentinels the three ports behind them. See common.sh.
set -euo pipefail
name=sentinel
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
first=${BROKER_PORT:-16390}
base=${BROKER_RUN:-${TMPDIR:-/tmp}/sinews-brokers.$(id -u)/sentinel-$first}
members=(primary replica sentinel-1 sentinel-2 sentinel-3)

# Selects a member for the functions of common.sh.
member() {
  local index
  for index in "${!members[@]}"; do
    if [[ ${members[$index]} == "$1" ]]; then port=$((first + index)) run=$base/$1; fi
  done
}

launch_server() {
  # Sentinel rewrites the file: a server that returns keeps its role.
  [[ -f $run/redis.conf ]] || {
    printf '%s\n' "port $port" "bind 127.0.0.1" "dir $run" 'save ""' "appendonly no" "repl-diskless-sync-delay 0"
    if [[ $1 == replica ]]; then echo "replicaof 127.0.0.1 $first"; fi
  } >"$run/redis.conf"
  start "$program" "$run/redis.conf"
}

launch_sentinel() {
  [[ -f $run/redis.conf ]] || printf '%s\n' "port $port" "bind 127.0.0.1" "dir $run" \
    "sentinel monitor main 127.0.0.1 $first 2" "sentinel down-after-milliseconds main 1000" \
    "sentinel failover-timeout main 5000" >"$run/redis.conf"
  start "$program" "$run/redis.conf" --sentinel
}

# A sentinel can promote the replica only once it knows both, and the other sentinels.
knows_all() {
  local reply=
  { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
  printf 'INFO sentinel\r\nQUIT\r\n' >&3
  reply=$(timeout 1 cat <&3 || true)
  exec 3>&-
  [[ $reply == *status=ok*slaves=1,sentinels=3* ]]
}

up() {
  fetch_redis
  for each in "${members[@]}"; do
    member "$each"
    alive && continue
    mkdir -p "$run"
    case $each in
      sentinel-*) launch_sentinel ;;
      *) launch_server "$each" ;;
    esac
    wait_until answers_redis
  done
  for each in "${members[@]:2}"; do
    member "$each"
    wait_until knows_all
  done
  echo "127.0.0.1:$((first + 2)),127.0.0.1:$((first + 3)),127.0.0.1:$((first + 4))"
}

case "${1:-}" in
  up) up ;;
  down)
    for each in "${members[@]}"; do
      member "$each"
      end TERM
    done
    rm -rf "$base"
    ;;
  *)
    member primary
    fetch() { fetch_redis; }
    main "$@"
    ;;
esac
