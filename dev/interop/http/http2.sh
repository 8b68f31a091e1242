#!/usr/bin/env bash
# curl, nghttp and h2load over HTTP/2 against a server that echoes bodies and has a file of 1,000 bytes: http2.sh BASE
# TLS_BASE DIRECTORY, as suite.sh. Each check prints `ok NAME`, `FAIL NAME: why` or `skipped NAME: why`.
set -u
base=$1
tls=$2
directory=$3
file=$directory/files/t1.html
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

head --bytes 900000 /dev/urandom >"$work/body"
head --bytes 3000000 /dev/zero >"$work/large"

# curl_over NAME BASE OPTION...
curl_over() {
  local name=$1 base=$2
  shift 2
  local options=("$@")
  run() { curl --silent --show-error --max-time 120 "${options[@]}" "$@" 2>&1; }
  check "$name: GET" '^HTTP/2 200 .*content-length: 1000' "$(run --include "$base/files/t1.html")"
  run --output "$work/out" "$base/files/t1.html"
  same "$name: GET, its body" "$work/out" "$file"
  check "$name: HEAD" '^HTTP/2 200 .*content-length: 1000 ' "$(run --head "$base/files/t1.html")"
  check "$name: the version" '^2 200$' \
    "$(run --output /dev/null --write-out '%{http_version} %{http_code}' "$base/echo")"
  run --data-binary "@$work/body" --output "$work/out" "$base/echo"
  same "$name: POST beyond the windows" "$work/out" "$work/body"
  run --upload-file - --output "$work/out" "$base/echo" <"$work/body"
  same "$name: PUT of a stream" "$work/out" "$work/body"
  check "$name: 100-continue" '< HTTP/2 100 .*< HTTP/2 200 ' \
    "$(run --verbose --expect100-timeout 60 --header 'Expect: 100-continue' --data-binary "@$work/body" --output "$work/out" "$base/echo")"
  same "$name: 100-continue, its body" "$work/out" "$work/body"
  check "$name: the first bytes" '^HTTP/2 206 .*content-range: bytes 0-8/1000.* X000XXXXX$' \
    "$(run --include --range 0-8 "$base/files/t1.html")"
  check "$name: in gzip" '< content-encoding: gzip' \
    "$(run --verbose --compressed --output "$work/out" "$base/files/t1.html")"
  same "$name: in gzip, unpacked" "$work/out" "$file"
  check "$name: a head too large" 'HTTP/2 431 ' \
    "$(run --include --header "X-Long: $(printf 'x%.0s' {1..40000})" "$base/echo")"
  # curl 7.88 cannot use a connection again after prior knowledge, with nginx neither.
  [[ $base == http:* ]] && return
  local many=()
  for number in $(seq 30); do many+=(--output "$work/parallel$number" "$base/files/t1.html?$number"); done
  check "$name: thirty requests, one connection" '^1(0){29}$' "$(run --write-out '%{num_connects}' "${many[@]}")"
  check "$name: thirty streams at a time" '(^|[^0-9])(200 ){29}200$' \
    "$(run --parallel --parallel-max 30 --write-out '%{http_code} ' "${many[@]}")"
  same "$name: the last of them" "$work/parallel30" "$file"
}

curl_over 'curl, prior knowledge' "$base" --http2-prior-knowledge
curl_over 'curl, ALPN' "$tls" --http2 --cacert "$directory/certificate.pem"
check 'curl, an upgrade to HTTP/2, which stays HTTP/1.1' '^1.1 200$' \
  "$(curl --silent --max-time 120 --http2 --output /dev/null --write-out '%{http_version} %{http_code}' "$base/echo")"

if command -v nghttp >/dev/null; then
  for at in "$base" "$tls"; do
    name=nghttp
    [[ $at == https:* ]] && name='nghttp, TLS'
    nghttp --timeout=60s --no-verify-peer "$at/files/t1.html" >"$work/out" 2>"$work/log"
    same "$name: GET" "$work/out" "$file"
    nghttp --timeout=60s --no-verify-peer --data="$work/body" "$at/echo" >"$work/out" 2>"$work/log"
    same "$name: POST beyond the windows" "$work/out" "$work/body"
    check "$name: padding and trailers" 'recv \(stream_id=[0-9]+\) :status: 200' \
      "$(nghttp --timeout=60s --no-verify-peer --verbose --null-out --padding=200 --trailer='x-end: 1' \
        --data="$file" "$at/echo" 2>&1)"
    # curl 7.88 fails when an answer ends before the body of its request, from nginx too.
    check "$name: a body over the limit" 'recv \(stream_id=[0-9]+\) :status: 413' \
      "$(nghttp --timeout=60s --no-verify-peer --verbose --null-out --data="$work/large" "$at/echo" 2>&1)"
    check "$name: an unwanted body" 'recv \(stream_id=[0-9]+\) :status: 405' \
      "$(nghttp --timeout=60s --no-verify-peer --verbose --null-out --data="$work/body" "$at/only-get" 2>&1)"
    # Of 18 KiB, beyond the limit of a head.
    check "$name: CONTINUATION" 'recv \(stream_id=[0-9]+\) :status: 431' \
      "$(nghttp --timeout=60s --no-verify-peer --verbose --null-out --continuation "$at/echo" 2>&1)"
    check "$name: windows of 2 KiB" 'recv \(stream_id=[0-9]+\) :status: 200.*END_STREAM' \
      "$(nghttp --timeout=60s --no-verify-peer --verbose --null-out --window-bits=11 --connection-window-bits=16 \
        --data="$work/body" "$at/echo" 2>&1)"
  done
else
  echo 'skipped nghttp: apt-get install nghttp2-client'
fi

if command -v h2load >/dev/null; then
  done_all() { echo "requests: $1 total, $1 started, $1 done, $1 succeeded, 0 failed, 0 errored, 0 timeout"; }
  check 'h2load, 100 streams' "$(done_all 20000)" \
    "$(h2load --requests=20000 --clients=4 --max-concurrent-streams=100 "$base/files/t1.html" 2>&1)"
  check 'h2load, bodies over TLS' "$(done_all 500)" \
    "$(h2load --requests=500 --clients=2 --max-concurrent-streams=20 --data="$work/body" "$tls/echo" 2>&1)"
  check 'h2load, windows of 2 KiB' "$(done_all 2000)" \
    "$(h2load --requests=2000 --clients=2 --max-concurrent-streams=50 --window-bits=11 --connection-window-bits=16 \
      "$base/files/t1.html" 2>&1)"
else
  echo 'skipped h2load: apt-get install nghttp2-client'
fi
exit "$failed"
