#!/usr/bin/env bash
# One Redis server that writes each command to its append-only file before it answers. From PATH, or from the
# distribution's package. See common.sh.
set -euo pipefail
name=redis
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
port=${BROKER_PORT:-16379}
run=${BROKER_RUN:-${TMPDIR:-/tmp}/sinews-brokers.$(id -u)/redis-$port}
unpacked=$cache/redis

fetch() {
  program=$(command -v redis-server || true)
  [[ -n $program ]] && return
  program=$unpacked/usr/bin/redis-server
  local libraries=("$unpacked"/usr/lib/*-linux-*)
  export LD_LIBRARY_PATH=${libraries[0]}
  if [[ ! -x $program ]]; then
    unpack "$unpacked" redis-server redis-tools libjemalloc2 liblua5.1-0 liblzf1 lua-cjson lua-bitop libatomic1
    libraries=("$unpacked"/usr/lib/*-linux-*)
    LD_LIBRARY_PATH=${libraries[0]}
  fi
  "$program" --version >/dev/null 2>&1 || missing "no redis-server (apt-get install redis-server)"
}

launch() {
  # The output buffer limit of a slow subscriber is small, so that tests reach it.
  start "$program" --bind 127.0.0.1 --port "$port" --dir "$run" --save "" --appendonly yes \
    --appendfsync "${REDIS_FSYNC:-always}" --client-output-buffer-limit "${REDIS_PUBSUB_LIMIT:-pubsub 32mb 8mb 60}"
}

# It listens before it has loaded its file, and answers with an error until then.
answers() {
  local reply
  { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
  printf 'PING\r\n' >&3
  IFS= read -r -t 1 reply <&3 || reply=
  exec 3>&-
  [[ $reply == +PONG* ]]
}

main "$@"
