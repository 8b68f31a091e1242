#!/usr/bin/env bash
# One NATS server with JetStream. From PATH, or from the distribution's package. See common.sh.
set -euo pipefail
name=nats
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
port=${BROKER_PORT:-14222}
run=${BROKER_RUN:-${TMPDIR:-/tmp}/sinews-brokers.$(id -u)/nats-$port}
unpacked=$cache/nats

# Packages install it in usr/sbin or in usr/bin.
find_program() {
  local directory
  program=$(command -v nats-server || true)
  for directory in usr/sbin usr/bin; do
    if [[ -z $program && -x $unpacked/$directory/nats-server ]]; then program=$unpacked/$directory/nats-server; fi
  done
  [[ -n $program ]]
}

fetch() {
  find_program && return
  unpack "$unpacked" nats-server
  find_program || missing "no nats-server (apt-get install nats-server)"
}

launch() { start "$program" --addr 127.0.0.1 --port "$port" --jetstream --store_dir "$run/data"; }

answers() {
  local greeting
  { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
  IFS= read -r -t 1 greeting <&3 || greeting=
  exec 3>&-
  [[ $greeting == INFO* ]] && grep -q 'Server is ready' "$run/log"
}

main "$@"
