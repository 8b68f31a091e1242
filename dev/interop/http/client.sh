#!/usr/bin/env bash
# curl, and a bare socket where curl cannot send the bytes, against the server: client.sh BASE LIMITED
# Each check prints `ok NAME` or `FAIL NAME: why`.
set -u
base=${1/ws:/http:}
limited=${2/ws:/http:}
authority=${base#http://}
any_case=-i
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
body=$work/body

# Head and body of the answer, without curl's progress.
ask() { curl --silent --show-error --include --max-time 120 "$@" 2>&1; }

# Prints the server's answer to these octets until it closes the connection or falls silent.
raw() {
  exec 3<>"/dev/tcp/${authority%:*}/${authority#*:}" || return
  printf '%b' "$1" >&3
  timeout 60 cat <&3 | tr -d '\0'
  exec 3>&-
}

check 'GET /' '^HTTP/1.1 200 .*content-type: text/html' "$(ask "$base/")"
check 'GET /healthz' '^HTTP/1.1 200 ' "$(ask "$base/healthz")"
check 'HEAD /healthz' '^HTTP/1.1 200 .*content-length: ' "$(ask --head "$base/healthz")"
check 'unknown path' '^HTTP/1.1 404 ' "$(ask "$base/no/such/page")"
check 'wrong method' '^HTTP/1.1 405 .*allow: [^ ]*GET' "$(ask --request DELETE "$base/healthz")"
check 'wrong method on a topic' '^HTTP/1.1 405 .*allow: .*POST' "$(ask --request DELETE "$base/topics/curl")"
check 'no upgrade where one is needed' '^HTTP/1.1 426 .*upgrade: websocket' "$(ask "$base/echo")"
check 'publish without subscribers' '^HTTP/1.1 200 .*application/json.*"subscribers": ?0' \
  "$(ask --data news "$base/topics/curl")"
check 'query on a path' '^HTTP/1.1 200 ' "$(ask "$base/healthz?x=1&y=%20")"

head --bytes 1500000 /dev/zero | tr '\0' a >"$body"
check 'body below the limit' 'HTTP/1.1 200 .*"subscribers"' \
  "$(ask --data-binary "@$body" "$limited/topics/curl")"
check 'chunked body below the limit' 'HTTP/1.1 200 .*"subscribers"' \
  "$(ask --header 'Transfer-Encoding: chunked' --data-binary "@$body" "$limited/topics/curl")"
head --bytes 3000000 /dev/zero | tr '\0' a >"$body"
check 'body over the limit' 'HTTP/1.1 413 ' "$(ask --data-binary "@$body" "$limited/topics/curl")"
check 'chunked body over the limit' 'HTTP/1.1 413 .*connection: close' \
  "$(ask --header 'Transfer-Encoding: chunked' --data-binary "@$body" "$limited/topics/curl")"

check 'two requests, one connection' '^1 0$' "$(curl --silent --max-time 120 --write-out '%{num_connects} ' \
  --output /dev/null "$base/healthz" --output /dev/null "$base/healthz")"
# Prints the answer to a subscriber of `curl-events`. Publishes two messages, and ends curl at the second.
listen() {
  while IFS= read -r line; do
    echo "$line"
    case $line in
      *'"op":"ack"'*) for text in $'two\n\nlines' last; do
        curl --silent --output "$body" --data-binary "$text" "$base/topics/curl-events"
      done ;;
      *last*) break ;;
    esac
  done < <(exec curl --silent --no-buffer --include --max-time 120 "$@")
  kill $!
}
check 'events' '^HTTP/1.1 200 .*text/event-stream.*event: subscribed .*data: two data:  data: lines  data: last' \
  "$(listen "$base/topics/curl-events")"
check 'events by HTTP/1.0' '^HTTP/1.1 200 .*Connection: close .*data: two data:  data: lines  data: last' \
  "$(listen --http1.0 "$base/topics/curl-events")"
check 'lines of JSON' '"op":"message","topic":"curl-events","data":"two.n.nlines"} .*"data":"last"}' \
  "$(listen --header 'Accept: application/x-ndjson' "$base/topics/curl-events")"
check 'a long poll without messages' '^HTTP/1.1 200 .*"messages":.*"cursor":""} 1 0 *$' \
  "$(curl --silent --max-time 120 --header 'Accept: application/json' --write-out '%{num_connects} ' --include \
    "$base/topics/curl-events?wait=0" --next --silent --write-out '%{num_connects} ' --output /dev/null "$base/healthz")"
check 'no such format' '^HTTP/1.1 406 ' "$(ask --header 'Accept: image/png' "$base/topics/curl-events")"

first="GET /healthz HTTP/1.1\r\nHost: $authority\r\n\r\n"
last="GET /healthz HTTP/1.1\r\nHost: $authority\r\nConnection: close\r\n\r\n"
post="POST /topics/curl HTTP/1.1\r\nHost: $authority\r\nContent-Length: 4\r\n\r\nnews"
check 'three requests in one write' '^HTTP/1.1 200 .*HTTP/1.1 200 .*subscribers.*HTTP/1.1 200 ' \
  "$(raw "$first$post$last")"
check 'HTTP/1.0' '^HTTP/1.[01] 200 ' "$(raw 'GET /healthz HTTP/1.0\r\n\r\n')"
check 'no Host' '^HTTP/1.1 400 ' "$(raw 'GET /healthz HTTP/1.1\r\n\r\n')"
check 'no HTTP' '^HTTP/1.1 400 ' "$(raw 'hello\r\n\r\n')"
check 'two lengths' '^HTTP/1.1 400 ' \
  "$(raw "POST /topics/curl HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nnews")"
# A proxy in front of the server may have used the other header (RFC 9112 section 6.1).
both='Content-Length: 4\r\nTransfer-Encoding: chunked\r\n'
check 'a length and chunks' '^HTTP/1.1 400 .*connection: close' \
  "$(raw "POST /topics/curl HTTP/1.1\r\nHost: x\r\n$both\r\n0\r\n\r\n$last")"
check 'head too large' 'HTTP/1.1 431 ' "$(ask --header "X-Long: $(printf 'x%.0s' {1..100000})" "$base/healthz")"

upgrade='Connection: Upgrade\r\nUpgrade: websocket\r\n'
key='Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n'
version='Sec-WebSocket-Version: 13\r\n'
hello="GET /echo HTTP/1.1\r\nHost: $authority\r\n"
# Close 1000 under a mask of zeros: the server answers it and ends the connection.
bye='\x88\x82\x00\x00\x00\x00\x03\xe8'
check 'upgrade' '^HTTP/1.1 101 .*Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK\+xOo=' \
  "$(raw "$hello$upgrade$key$version\r\n$bye" | tr -cd '[:print:][:space:]')"
check 'upgrade with another version' '^HTTP/1.1 426 .*Sec-WebSocket-Version: 13' \
  "$(raw "$hello$upgrade${key}Sec-WebSocket-Version: 12\r\n\r\n")"
check 'upgrade without a key' '^HTTP/1.1 400 ' "$(raw "$hello$upgrade$version\r\n")"
check 'upgrade with a key of no 16 octets' '^HTTP/1.1 400 ' \
  "$(raw "$hello$upgrade${version}Sec-WebSocket-Key: aGVsbG8=\r\n\r\n")"
check 'upgrade of an unknown path' '^HTTP/1.1 404 ' "$(ask --header 'Connection: Upgrade' \
  --header 'Upgrade: websocket' --header 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' \
  --header 'Sec-WebSocket-Version: 13' "$base/nowhere")"
exit "$failed"
