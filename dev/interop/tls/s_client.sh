#!/usr/bin/env bash
# openssl s_client, with the handshake and the frames typed by hand, against a TLS server: s_client.sh PORT FOLDER
# The folder has the certificate of the server. Each check prints `ok NAME` or `FAIL NAME: why`.
set -u
port=$1
folder=$2
failed=0

# check NAME WANTED TEXT
check() {
  if [ "$2" = "$3" ]; then
    echo "ok $1"
  else
    failed=1
    echo "FAIL $1: '${3:0:300}' in place of '$2'"
  fi
}

upgrade="GET /echo HTTP/1.1\r\nHost: localhost:$port\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
upgrade+='Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n'
# The masked Hello of RFC 6455 section 5.7, in one frame and with a ping between two fragments; Close 1000.
hello='\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58'
fragments='\x01\x83\x37\xfa\x21\x3d\x7f\x9f\x4d\x89\x82\x00\x00\x00\x00hi\x80\x82\x37\xfa\x21\x3d\x5b\x95'
bye='\x88\x82\x00\x00\x00\x00\x03\xe8'
# The expected unmasked answer, as octets.
hello_back='81 05 48 65 6c 6c 6f'
pong_back='8a 02 68 69'
bye_back='88 02 03 e8'

connect() {
  openssl s_client "$@" -quiet -connect "localhost:$port" -servername localhost -alpn http/1.1 \
    -CAfile "$folder/certificate.pem" -verify_return_error 2>"$errors"
}

octets() { od -An -v -tx1 | tr -s ' \n' ' ' | sed 's/^ //; s/ $//'; }

errors=$(mktemp)
answer=$(mktemp)
trap 'rm -f "$errors" "$answer"' EXIT

for version in tls1_2 tls1_3; do
  # All at once: the frames follow the request in one TLS record.
  printf '%b' "$upgrade$hello$fragments$bye" | timeout 60 bash -c "$(declare -f connect); port=$port folder='$folder' \
    errors='$errors' connect -$version" >"$answer"
  check "$version: status" 'HTTP/1.1 101' "$(head --bytes 12 "$answer")"
  check "$version: accept" 's3pPLMBiTxaQ9kYGzzhZRbK+xOo=' \
    "$(tr -d '\r' <"$answer" | sed -n 's/^sec-websocket-accept: //Ip' | head -1)"
  check "$version: frames in one piece" "$hello_back $pong_back $hello_back $bye_back" \
    "$(tail --bytes 22 "$answer" | octets)"

  # One after the other: each answer is awaited.
  coproc peer { connect "-$version"; }
  # Subshells do not inherit the descriptors of a coprocess, only copies of them.
  exec {from}<&"${peer[0]}" {to}>&"${peer[1]}"
  pid=$peer_PID
  printf '%b' "$upgrade" >&"$to"
  while IFS= read -r -t 60 line <&"$from" && [ "$line" != $'\r' ]; do :; done
  printf '%b' "$hello" >&"$to"
  check "$version: a frame" "$hello_back" "$(timeout 60 head --bytes 7 <&"$from" | octets)"
  printf '%b' "$bye" >&"$to"
  check "$version: close" "$bye_back" "$(timeout 60 cat <&"$from" | octets)"
  exec {from}<&- {to}>&-
  wait "$pid" 2>/dev/null
done
exit "$failed"
