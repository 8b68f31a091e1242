#!/usr/bin/env bash
# Starts NATS, three nodes and nginx, and stops them on Ctrl-C. Their logs are in run/.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p run
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
trap exit INT TERM
for program in nats-server sinews curl; do
  command -v "$program" >/dev/null || { echo "no $program on PATH" >&2; exit 1; }
done

nats-server --addr 127.0.0.1 --port 4222 >run/nats.log 2>&1 &

for port in 8081 8082 8083; do
  sinews serve --config sinews.toml --listen "127.0.0.1:$port" --cluster-node-name "node-$port" >"run/node-$port.log" 2>&1 &
  echo $! >"run/node-$port.pid"
done

if command -v nginx >/dev/null; then
  nginx -p "$PWD" -c nginx.conf -e run/nginx.log -g 'daemon off;' >>run/nginx.log 2>&1 &
else
  echo "no nginx (apt-get install nginx): use the nodes themselves"
fi

# A node is ready when it is connected to the other nodes' broker.
for port in 8081 8082 8083; do
  for ((tenths = 0; tenths < 600; tenths++)); do
    # Another program may have the port, and answer there.
    kill -0 "$(cat "run/node-$port.pid")" 2>/dev/null || break
    if curl --silent --fail --output /dev/null "http://127.0.0.1:$port/readyz"; then continue 2; fi
    sleep 0.1
  done
  echo "the node at port $port is not ready:"
  tail "run/node-$port.log"
  exit 1
done
echo "nodes at the ports 8081, 8082 and 8083; nginx at http://127.0.0.1:8080/"
wait
