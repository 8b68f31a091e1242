#!/usr/bin/env bash
# Makes a token with which a user may read the own notifications for ten minutes: token.sh USER. A token is a JSON Web Token
# (RFC 7519): two JSON objects and their HMAC-SHA256, in base64url. Every language has a library for it.
set -euo pipefail
base64url() { openssl base64 -A | tr '+/' '-_' | tr -d =; }
header=$(printf '{"alg":"HS256","typ":"JWT"}' | base64url)
now=$(date +%s)
claims=$(printf '{"sub":"%s","subscribe":"notifications.%s","iat":%d,"exp":%d}' "$1" "$1" "$now" $((now + 600)) | base64url)
signature=$(printf '%s.%s' "$header" "$claims" | openssl dgst -sha256 -hmac "$SINEWS_AUTH_SECRET" -binary | base64url)
echo "$header.$claims.$signature"
