#!/usr/bin/env bash
# curl against a server that echoes bodies and has a file of 1,000 bytes: suite.sh BASE TLS_BASE DIRECTORY, where the
# directory holds files/t1.html, certificate.pem and socket. Each check prints `ok NAME` or `FAIL NAME: why`.
set -u
base=$1
tls=$2
directory=$3
file=$directory/files/t1.html
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

run() { curl --silent --show-error --max-time 120 "$@" 2>&1; }
# Head and body of the answer.
ask() { run --include "$@"; }
# Prints the heads of both sides, without the bodies.
talk() { run --verbose --output "$work/out" "$@"; }

head --bytes 900000 /dev/urandom >"$work/body"
head --bytes 3000000 /dev/zero >"$work/large"
: >"$work/empty"

check 'GET' '^HTTP/1.1 200 .*[Dd]ate: .*[Cc]ontent-[Ll]ength: 1000' "$(ask "$base/files/t1.html")"
run --output "$work/out" "$base/files/t1.html"
same 'GET, its body' "$work/out" "$file"
check 'HEAD' '^HTTP/1.1 200 .*Content-Length: 1000$' "$(run --head "$base/files/t1.html")"
check 'OPTIONS of the server' '^HTTP/1.1 204 .*Allow: ' "$(ask --request OPTIONS --request-target '*' "$base")"
run --data-binary "@$work/body" --output "$work/out" "$base/echo"
same 'POST' "$work/out" "$work/body"
run --header 'Transfer-Encoding: chunked' --data-binary "@$work/body" --output "$work/out" "$base/echo"
same 'POST in chunks' "$work/out" "$work/body"
run --data-binary "@$work/empty" --output "$work/out" "$base/echo"
same 'POST of nothing' "$work/out" "$work/empty"
run --header 'Transfer-Encoding: chunked' --data-binary "@$work/empty" --output "$work/out" "$base/echo"
same 'POST of nothing in chunks' "$work/out" "$work/empty"
run --upload-file "$work/body" --output "$work/out" "$base/echo"
same 'PUT' "$work/out" "$work/body"
run --upload-file - --output "$work/out" "$base/echo" <"$work/body"
same 'PUT of a stream' "$work/out" "$work/body"
check 'a form of parts' '^HTTP/1.1 200 .*name="a".*value' "$(ask --form 'a=value' --form "b=@$file" "$base/echo")"
check 'a body over the limit' 'HTTP/1.1 413 ' "$(ask --data-binary "@$work/large" "$base/echo")"
check 'chunks over the limit' 'HTTP/1.1 413 ' \
  "$(ask --header 'Transfer-Encoding: chunked' --data-binary "@$work/large" "$base/echo")"

check '100-continue for a body' '> Expect: 100-continue.*< HTTP/1.1 100 Continue.*< HTTP/1.1 200 ' \
  "$(talk --expect100-timeout 60 --header 'Expect: 100-continue' --data-binary "@$work/body" "$base/echo")"
same '100-continue for a body: the body arrives' "$work/out" "$work/body"
check 'no 100-continue for a body over the limit' '^[^4]*HTTP/1.1 413 ' \
  "$(ask --expect100-timeout 60 --header 'Expect: 100-continue' --data-binary "@$work/large" "$base/echo")"
check 'no 100-continue for an unwanted body' '^HTTP/1.1 405 ' \
  "$(ask --expect100-timeout 60 --header 'Expect: 100-continue' --data-binary "@$work/body" "$base/only-get")"

check 'the first bytes' '^HTTP/1.1 206 .*[Cc]ontent-[Rr]ange: bytes 0-8/1000.* X000XXXXX$' \
  "$(ask --range 0-8 "$base/files/t1.html")"
check 'the last bytes' '^HTTP/1.1 206 .*[Cc]ontent-[Rr]ange: bytes 990-999/1000.* X099XXXXXX$' \
  "$(ask --range -10 "$base/files/t1.html")"
check 'several ranges' '^HTTP/1.1 200 ' "$(ask --range 0-1,5-6 "$base/files/t1.html")"
check 'a range behind the end' '^HTTP/1.1 416 .*[Cc]ontent-[Rr]ange: bytes \*/1000' \
  "$(ask --range 5000- "$base/files/t1.html")"
head --bytes 400 "$file" >"$work/resumed"
run --continue-at - --output "$work/resumed" "$base/files/t1.html"
same 'a download that goes on' "$work/resumed" "$file"

run --etag-save "$work/etag" --remote-time --output "$work/t1.html" "$base/files/t1.html"
same 'with its tag and its time' "$work/t1.html" "$file"
check 'the tag kept' '^304 0$' "$(run --etag-compare "$work/etag" --output "$work/out" \
  --write-out '%{http_code} %{size_download}' "$base/files/t1.html")"
check 'the time kept' '^304 0$' "$(run --time-cond "$work/t1.html" --output "$work/out" \
  --write-out '%{http_code} %{size_download}' "$base/files/t1.html")"
touch --date '1999-01-01' "$work/t1.html"
check 'an older time' '^200 1000$' "$(run --time-cond "$work/t1.html" --output "$work/out" \
  --write-out '%{http_code} %{size_download}' "$base/files/t1.html")"

check 'in gzip' '< [Cc]ontent-[Ee]ncoding: gzip' "$(talk --compressed "$base/files/t1.html")"
same 'in gzip, unpacked' "$work/out" "$file"
check 'in gzip, smaller' '^[1-9][0-9]?[0-9]?$' \
  "$(run --header 'Accept-Encoding: gzip' --output "$work/out" --write-out '%{size_download}' "$base/files/t1.html")"
check 'in nothing else' '^HTTP/1.1 200 .*[Cc]ontent-[Ll]ength: 1000' \
  "$(ask --header 'Accept-Encoding: zstd, x' "$base/files/t1.html")"

check 'HTTP/1.0' '> GET /echo HTTP/1.0.*< HTTP/1.1 200 .*< Connection: close' "$(talk --http1.0 "$base/echo")"
check 'HTTP/1.0 that goes on' '^1 0 0$' "$(run --http1.0 --header 'Connection: keep-alive' \
  --write-out '%{num_connects} ' --output /dev/null "$base/a" --output /dev/null "$base/b" \
  --output /dev/null "$base/c")"
many=()
for number in $(seq 20); do many+=(--output /dev/null "$base/files/t1.html?$number"); done
check 'twenty requests, one connection' '^1(0){19}$' "$(run --write-out '%{num_connects}' "${many[@]}")"
check 'a request behind each kind of answer' '^200 1 404 0 405 0 204 0 200 0$' \
  "$(run --write-out '%{http_code} %{num_connects} ' --output /dev/null "$base/a" \
    --next --silent --write-out '%{http_code} %{num_connects} ' --output /dev/null "$base/files/none" \
    --next --silent --write-out '%{http_code} %{num_connects} ' --output /dev/null --data x "$base/only-get" \
    --next --silent --write-out '%{http_code} %{num_connects} ' --output /dev/null --request OPTIONS "$base/only-get" \
    --next --silent --write-out '%{http_code} %{num_connects} ' --output /dev/null --data x "$base/a")"
check 'close' '< Connection: close' "$(talk --header 'Connection: close' "$base/echo")"
check 'an upgrade to HTTP/2, which stays HTTP/1.1' '^1.1 200$' \
  "$(run --http2 --output /dev/null --write-out '%{http_version} %{http_code}' "$base/echo")"
check 'HTTP/2 without asking' '^000$' \
  "$(run --http2-prior-knowledge --output /dev/null --write-out '%{http_code}' "$base/echo" | tail --bytes 3)"
parallel=()
for number in $(seq 30); do parallel+=(--output "$work/parallel$number" "$base/files/t1.html"); done
check 'thirty at a time' '(^|[^0-9])(200 ){29}200$' \
  "$(run --parallel --parallel-max 30 --write-out '%{http_code} ' "${parallel[@]}")"

check 'a path as it is' '^HTTP/1.1 404 ' "$(ask --path-as-is "$base/files/../certificate.pem")"
check 'a path as it is, encoded' '^HTTP/1.1 404 ' "$(ask --path-as-is "$base/files/%2e%2e/key.pem")"
check 'a directory without its slash' '^HTTP/1.1 (301|308) .*[Ll]ocation: /files/' "$(ask "$base/files")"
check 'through a proxy, the absolute form' '> GET http://elsewhere.example/files/t1.html HTTP/1.1.*< HTTP/1.1 200 ' \
  "$(talk --proxy "$base" http://elsewhere.example/files/t1.html)"
check 'no proxy for tunnels' '< HTTP/1.1 404 ' "$(talk --proxytunnel --proxy "$base" http://elsewhere.example/)"
check 'a head too large' '^HTTP/1.1 431 ' "$(ask --header "X-Long: $(printf 'x%.0s' {1..40000})" "$base/echo")"

socket=(--unix-socket "$directory/socket")
check 'Unix socket' '^HTTP/1.1 200 .*1000' "$(ask "${socket[@]}" http://localhost/files/t1.html)"
run "${socket[@]}" --data-binary "@$work/body" --output "$work/out" http://localhost/echo
same 'Unix socket, a body' "$work/out" "$work/body"
check 'Unix socket, one connection' '^1 0$' "$(run "${socket[@]}" --write-out '%{num_connects} ' \
  --output /dev/null http://localhost/a --output /dev/null http://localhost/b)"

trust=(--cacert "$directory/certificate.pem")
check 'TLS' '^HTTP/1.1 200 .*1000' "$(ask "${trust[@]}" "$tls/files/t1.html")"
check 'TLS 1.2' 'TLSv1.2.*< HTTP/1.1 200 ' "$(talk "${trust[@]}" --tls-max 1.2 "$tls/echo")"
check 'TLS 1.3' 'TLSv1.3.*< HTTP/1.1 200 ' "$(talk "${trust[@]}" --tlsv1.3 "$tls/echo")"
run "${trust[@]}" --data-binary "@$work/body" --output "$work/out" "$tls/echo"
same 'TLS, a body' "$work/out" "$work/body"
run "${trust[@]}" --header 'Transfer-Encoding: chunked' --data-binary "@$work/body" --output "$work/out" "$tls/echo"
same 'TLS, a body in chunks' "$work/out" "$work/body"
check 'TLS, one connection' '^1 0 0$' "$(run "${trust[@]}" --write-out '%{num_connects} ' \
  --output /dev/null "$tls/a" --output /dev/null "$tls/b" --output /dev/null "$tls/c")"
check 'TLS, HTTP/1.1 by ALPN' 'ALPN: server accepted http/1.1|ALPN, server accepted to use http/1.1' \
  "$(talk "${trust[@]}" --http2 "$tls/echo")"
check 'TLS, leave to send a body' '< HTTP/1.1 100 Continue.*< HTTP/1.1 200 ' \
  "$(talk "${trust[@]}" --http1.1 --expect100-timeout 60 --header 'Expect: 100-continue' --data-binary "@$work/body" "$tls/echo")"
check 'TLS, a certificate that is not trusted' 'SSL certificate problem' "$(ask "$tls/echo")"
check 'no TLS where there is TLS' '(52|56|000)' \
  "$(run --output /dev/null --write-out '%{http_code} %{exitcode}' "http://${tls#https://}/echo")"
exit "$failed"
