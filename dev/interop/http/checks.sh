# Checks of the scripts in this folder, which source it. Sets `failed`, and `work`, a directory that ends with the script.
failed=0
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT

# check NAME PATTERN TEXT: the text, on one line, must match the extended regular expression; in any case of letters with
# `any_case=-i`.
check() {
  local text
  text=$(tr '\r\n' '  ' <<<"$3" | sed 's/ *$//')
  if grep -qE ${any_case:-} -- "$2" <<<"$text"; then
    echo "ok $1"
  else
    failed=1
    echo "FAIL $1: no /$2/ in: ${text:0:300}"
  fi
}

# same NAME FILE FILE
same() {
  if cmp --silent "$2" "$3"; then echo "ok $1"; else failed=1; echo "FAIL $1: $(cmp "$2" "$3" 2>&1)"; fi
}
