#!/usr/bin/env bash
# Prints the path of nginx, from PATH or from the distribution's package, which it unpacks below the cache. Exit status 77:
# it is unavailable on this machine, and one line says how to get it.
set -euo pipefail
name=nginx
source "$(dirname "${BASH_SOURCE[0]}")/../../brokers/common.sh"
unpacked=$cache/nginx

program=$(command -v nginx || true)
if [[ -z $program ]]; then
  program=$unpacked/usr/sbin/nginx
  remedy="no nginx (apt-get install nginx)"
  [[ -x $program ]] || (have apt-get && have dpkg) || missing "$remedy"
  [[ -x $program ]] || unpack "$unpacked" nginx
  # Its libraries are those of the system.
  "$program" -v >/dev/null 2>&1 || missing "$remedy"
fi
echo "$program"
