# Shared functions of the scripts in this directory. Each starts one broker for tests, on the loopback interface:
#
#   kafka.sh|redis.sh|nats.sh|sentinel.sh|redis-cluster.sh  fetch | up | down | kill | stop | cont | status
#
# `fetch` prints the program. `up` prints host:port once the broker answers, and keeps data of an earlier run; `kill` ends it like a crash
# (SIGKILL) and keeps its data; `stop` and `cont` freeze and resume it; `down` stops it and removes
# its data. A broker exits by itself after BROKER_SECONDS (900). Exit status 77: it is unavailable on this
# machine, and one line names the missing program. BROKER_PORT, BROKER_RUN (data and log) and BROKER_CACHE
# (downloads) can be set, so that two checkouts can run side by side.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${BROKER_CACHE:-$root/.cache/brokers}
seconds=${BROKER_SECONDS:-900}
# Time limit of a start: a loaded machine needs 10 s for the slowest broker.
ready_seconds=120

missing() {
  echo "$name: $1" >&2
  exit 77
}

failed() {
  echo "$name: $1" >&2
  exit 1
}

have() { command -v "$1" >/dev/null; }

# The file has the broker's process id, and the time of its start: the system gives the id of an ended process to another one.
alive() {
  pid='' started=''
  [[ -f $run/pid ]] && read -r pid started <"$run/pid" && is_running
}

# Whether the process still runs. One that has ended, and that its parent has not waited for yet, is a zombie.
is_running() {
  local stat=()
  kill -0 "$pid" 2>/dev/null || return 1
  [[ -n $started ]] || return 0
  { read -r -a stat <"/proc/$pid/stat"; } 2>/dev/null || return 1
  [[ ${stat[2]} != Z && ${stat[21]} == "$started" ]]
}

signal() { alive && kill "-$1" "$pid"; }

# Starts a program in the background, bounded in time. Its process id is that of the program itself, not of `timeout`,
# so that signals reach it.
start() {
  rm -f "$run/pid"
  local record='{ read -r -a stat </proc/$$/stat; } 2>/dev/null; echo "$$ ${stat[21]:-}" >"$0/pid.new"; mv "$0/pid.new" "$0/pid"'
  setsid timeout --kill-after=5 "$seconds" bash -c "$record; exec \"\$@\"" "$run" "$@" >>"$run/log" 2>&1 </dev/null &
  for ((tenths = 0; tenths < ready_seconds * 10; tenths++)); do
    [[ -f $run/pid ]] && return
    sleep 0.1
  done
  failed "did not start: $1"
}

# Waits until the given command succeeds; fails if the broker exits first.
wait_until() {
  for ((turn = 0; turn < ready_seconds * 20; turn++)); do
    alive || { tail -n 20 "$run/log" >&2; failed "ended at its start"; }
    if "$@"; then return; fi
    sleep 0.05
  done
  failed "not ready within $ready_seconds s, see $run/log"
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

# Packages of the distribution, unpacked below the cache: needs no root, installs nothing.
unpack() {
  local to=$1 work
  shift
  have apt-get && have dpkg || missing "no $name-server on PATH, and no apt-get to fetch it with"
  work=$(mktemp --directory)
  # Without its lists apt knows no package; only root may fetch them.
  if ! apt-cache show "$1" >/dev/null 2>&1; then timeout 120 apt-get update -q >"$work/log" 2>&1 || true; fi
  # Another distribution may name a library differently: the caller checks afterwards whether the program starts.
  (cd "$work" && for package in "$@"; do timeout 120 apt-get download -q "$package" >>log 2>&1 || true; done)
  mkdir -p "$to"
  for file in "$work"/*.deb; do
    if [[ -f $file ]]; then dpkg -x "$file" "$to"; fi
  done
  rm -rf "$work"
}

# Sets `program` to a Redis server, from PATH or from the distribution's package.
fetch_redis() {
  local unpacked=$cache/redis
  program=$(command -v redis-server || true)
  [[ -n $program ]] && return
  program=$unpacked/usr/bin/redis-server
  local libraries=("$unpacked"/usr/lib/*-linux-*)
  export LD_LIBRARY_PATH=${libraries[0]}
  if [[ ! -x $program ]]; then
    unpack "$unpacked" redis-server redis-tools libjemalloc2 liblua5.1-0 liblzf1 lua-cjson lua-bitop libatomic1
    libraries=("$unpacked"/usr/lib/*-linux-*)
    LD_LIBRARY_PATH=${libraries[0]}
  fi
  "$program" --version >/dev/null 2>&1 || missing "no redis-server (apt-get install redis-server)"
}

# It listens before it has loaded its file, and answers with an error until then.
answers_redis() {
  local reply
  { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
  printf 'PING\r\n' >&3
  IFS= read -r -t 1 reply <&3 || reply=
  exec 3>&-
  [[ $reply == +PONG* ]]
}

end() {
  signal "$1" || return 0
  # A frozen process handles no signal but SIGKILL.
  signal CONT || true
  for ((tenths = 0; tenths < ready_seconds * 10; tenths++)); do
    is_running || return 0
    if ((tenths == 100)); then signal KILL || true; fi
    sleep 0.1
  done
}

# Runs the subcommand with the definitions of the script: name, port, run, fetch, launch, answers.
main() {
  case "${1:-}" in
    fetch)
      fetch
      echo "${program:-}"
      ;;
    up)
      fetch
      if ! alive; then
        mkdir -p "$run"
        launch
        wait_until answers
      fi
      echo "127.0.0.1:$port"
      ;;
    down)
      end TERM
      rm -rf "$run"
      ;;
    kill) end KILL ;;
    stop) signal STOP ;;
    cont) signal CONT ;;
    status) if alive; then echo "up, process $pid, 127.0.0.1:$port"; else echo down; fi ;;
    *)
      # Prints the top of this file, up to the first empty line.
      sed -n '/^$/q; s/^#$//p; s/^# //p' "${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
  esac
}
