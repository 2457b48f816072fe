# Shared by the start scripts: several daemons in one container, none of them
# detached. When one ends, the others are stopped and the container fails with it,
# so that the kubelet restarts all of them together. Source it, then:
#
#   run NAME COMMAND…      start a daemon in the background
#   supervise STOP         wait; on SIGTERM, SIGINT or when a daemon ended, call the
#                          function STOP (which asks the daemons to end), wait again
#
# POSIX sh has no "wait for any": each daemon's subshell tells the main shell by
# SIGUSR1, which interrupts `wait`. A signal that comes just before `wait` would be
# noticed only with the next one, hence the tick.

stopping=''
ended=''
tick=''

trap 'stopping=yes' TERM INT
trap 'ended=yes' USR1

say() {
    echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) ${0##*/}: $*" >&2
}

run() {
    (
        # Stays to report the end; a daemon starts with the signal's default.
        trap : TERM INT
        name=$1
        shift
        status=0
        "$@" || status=$?
        say "$name ended with status $status"
        kill -s USR1 $$
    ) &
}

supervise() {
    while [ -z "$stopping$ended" ]; do
        sleep 10 &
        tick=$!
        wait "$tick" || true
        kill "$tick" 2>/dev/null || true
    done
    [ -n "$stopping" ] || say "a daemon ended by itself, stopping the others"
    "$1" || true
    until wait; do :; done
    [ -n "$stopping" ]
}

# Waits until a database server answers on its socket.
await() {
    tries=0
    until ovsdb-client --timeout=5 list-dbs "unix:$1" > /dev/null 2>&1; do
        tries=$((tries + 1))
        if [ -n "$stopping$ended" ] || [ "$tries" -gt 600 ]; then
            say "no database server answers on $1"
            exit 1
        fi
        sleep 0.1
    done
}

# Sends a signal to the process of a pid file, if there is one.
end() {
    if [ -s "$1" ]; then
        kill -s "${2:-TERM}" "$(cat "$1")" 2>/dev/null || true
    fi
}

# The database file: made when missing, brought to this release's schema.
prepare_database() {
    file=$1
    schema=$2
    if [ ! -s "$file" ]; then
        say "creating $file"
        ovsdb-tool create "$file" "$schema"
        return
    fi
    if ovsdb-tool db-is-clustered "$file" 2>/dev/null; then
        say "$file is of a database cluster, which this release does not run."
        say "Stop all its members, then on this node: mv $file $file.cluster && ovsdb-tool cluster-to-standalone $file $file.cluster"
        exit 1
    fi
    if [ "$(ovsdb-tool needs-conversion "$file" "$schema")" = yes ]; then
        say "converting $file to the schema of this release, the old one is in $file.before"
        cp "$file" "$file.before"
        ovsdb-tool compact "$file"
        ovsdb-tool convert "$file" "$schema"
    fi
}
