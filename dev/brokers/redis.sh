#!/usr/bin/env bash
# One Redis server that writes each command to its append-only file before it answers. From PATH, or from the
# distribution's package. See common.sh.
set -euo pipefail
name=redis
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
port=${BROKER_PORT:-16379}
run=${BROKER_RUN:-${TMPDIR:-/tmp}/sinews-brokers.$(id -u)/redis-$port}

fetch() { fetch_redis; }

launch() {
  # The output buffer limit of a slow subscriber is small, so that tests reach it.
  start "$program" --bind 127.0.0.1 --port "$port" --dir "$run" --save "" --appendonly yes \
    --appendfsync "${REDIS_FSYNC:-always}" --client-output-buffer-limit "${REDIS_PUBSUB_LIMIT:-pubsub 32mb 8mb 60}"
}

answers() { answers_redis; }

main "$@"
