#!/usr/bin/env bash
# NATS servers with JetStream: one, or a cluster of BROKER_NODES on successive ports. `up` prints all addresses, separated
# by commas. The other subcommands take a node's number (1 is the first), and otherwise act on all. BROKER_CONFIG is an
# additional configuration file. See common.sh.
#
# Topic stores need 2.11. A server on PATH that is older, or none, is replaced by one that Go builds; without Go it is the
# distribution's, and a line says what is missing.
set -euo pipefail
name=nats
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
port=${BROKER_PORT:-14222}
run=${BROKER_RUN:-${TMPDIR:-/tmp}/sinews-brokers.$(id -u)/nats-$port}
nodes=${BROKER_NODES:-1}
unpacked=$cache/nats
version=v2.15.3
# Distance between a node's port for clients and the one for other nodes.
route=1000
arguments=()

is_current() {
  local major minor
  IFS=. read -r major minor _ < <("$1" --version | sed 's/.*v//')
  ((major > 2 || (major == 2 && minor >= 11)))
}

# Finds a current server or, with the argument `any`, one of any version.
find_program() {
  local candidate
  # Packages install it in usr/sbin or in usr/bin.
  for candidate in "$(command -v nats-server || true)" "$unpacked"/{bin,usr/sbin,usr/bin}/nats-server; do
    if [[ -x $candidate ]] && { [[ ${1:-} == any ]] || is_current "$candidate"; }; then
      program=$candidate
      return
    fi
  done
  return 1
}

build() {
  have go || { echo "$name: no go, which builds a current nats-server" >&2; return; }
  mkdir -p "$unpacked"
  GOBIN=$unpacked/bin GOFLAGS=-mod=mod timeout 600 go install "github.com/nats-io/nats-server/v2@$version" \
    >"$unpacked/log" 2>&1 || { tail -n 1 "$unpacked/log" | sed "s/^/$name: go: /" >&2; }
}

fetch() {
  find_program && return
  build
  find_program && return
  find_program any || unpack "$unpacked" nats-server
  find_program any || missing "no nats-server (apt-get install nats-server)"
  echo "$name: $("$program" --version) is too old for topic stores, which need 2.11" >&2
}

launch() {
  start "$program" --addr 127.0.0.1 --port "$port" --jetstream --store_dir "$run/data" "${arguments[@]}" \
    ${BROKER_CONFIG:+--config "$BROKER_CONFIG"}
}

answers() {
  local greeting
  { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
  IFS= read -r -t 1 greeting <&3 || greeting=
  exec 3>&-
  [[ $greeting == INFO* ]] && grep -q 'Server is ready' "$run/log"
}

# Runs a subcommand for one node of the cluster.
node() {
  local number=$1 routes='' each
  shift
  for ((each = 0; each < nodes; each++)); do routes+="${routes:+,}nats://127.0.0.1:$((port + route + each))"; done
  (
    port=$((port + number - 1)) run=$run/$number
    arguments=(--name "n$number" --cluster_name sinews --cluster "nats://127.0.0.1:$((port + route))" --routes "$routes")
    main "$@"
  )
}

# The servers have elected the leader that creates streams.
has_leader() { grep -qs 'JetStream cluster new metadata leader\|Self is new JetStream cluster metadata leader' "$run"/*/log; }

cluster() {
  local verb=$1 number addresses=''
  if [[ $verb == up ]]; then fetch; fi
  if [[ -n ${2:-} ]]; then
    node "$2" "$verb"
    return
  fi
  for ((number = 1; number <= nodes; number++)); do
    addresses+="${addresses:+,}$(node "$number" "$verb")"
  done
  case $verb in
    up)
      for ((turn = 0; turn < ready_seconds * 20; turn++)); do
        if has_leader; then
          echo "$addresses"
          return
        fi
        sleep 0.05
      done
      failed "no leader within $ready_seconds s, see $run/*/log"
      ;;
    down) rm -rf "$run" ;;
    status) echo "$addresses" ;;
  esac
}

if ((nodes > 1)) && [[ ${1:-} =~ ^(up|down|kill|stop|cont|status)$ ]]; then cluster "$@"; else main "$@"; fi
