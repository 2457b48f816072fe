#!/bin/sh
# The pod ovn-central: northbound and southbound database and ovn-northd, the one
# member there is. Databases listen on the node's addresses and on unix sockets,
# nowhere else.
#
#   POD_IPS             addresses to listen on, comma separated
#   PROBE_INTERVAL      milliseconds after which a silent client is probed
#   OVN_NORTHD_N_THREADS
set -eu
cd "$(dirname "$0")"
. ./supervise.sh

: "${POD_IPS:?must hold the addresses to listen on}"
probe=${PROBE_INTERVAL:-180000}
rundir=${OVN_RUNDIR:-/var/run/ovn}
dbdir=${OVN_DBDIR:-/etc/ovn}
schemas=${OVN_PKGDATADIR:-/usr/share/ovn}
export OVN_RUNDIR="$rundir" OVN_DBDIR="$dbdir"
mkdir -p "$rundir" "$dbdir"

# remotes PORT SOCKET FILE: a configuration file for one database server.
remotes() {
    port=$1
    socket=$2
    file=$3
    printf '{"remotes": {"punix:%s": {}' "$socket"
    old_ifs=$IFS
    IFS=,
    for ip in $POD_IPS; do
        case $ip in *:*) ip="[$ip]" ;; esac
        printf ', "ptcp:%s:%s": {"inactivity-probe": %s}' "$port" "$ip" "$probe"
    done
    IFS=$old_ifs
    printf '}, "databases": {"%s": {}}}\n' "$file"
}

# database NAME PORT SCHEMA
database() {
    name=$1
    prepare_database "$dbdir/${name}_db.db" "$schemas/$3"
    remotes "$2" "$rundir/${name}_db.sock" "$dbdir/${name}_db.db" > "$rundir/${name}_db.json"
    rm -f "$rundir/${name}_db.sock" "$rundir/${name}_db.ctl"
    run "ovsdb-server $name" ovsdb-server \
        --config-file="$rundir/${name}_db.json" \
        --unixctl="$rundir/${name}_db.ctl" \
        --pidfile="$rundir/${name}_db.pid" \
        -vconsole:info -vsyslog:off -vfile:off
}

stop() {
    end "$rundir/ovn-northd.pid"
    end "$rundir/ovnnb_db.pid"
    end "$rundir/ovnsb_db.pid"
}

rm -f "$rundir"/ovn-northd.*.ctl
database ovnnb 6641 ovn-nb.ovsschema
database ovnsb 6642 ovn-sb.ovsschema
await "$rundir/ovnnb_db.sock"
ovn-nbctl --db="unix:$rundir/ovnnb_db.sock" --timeout=60 init
await "$rundir/ovnsb_db.sock"
ovn-sbctl --db="unix:$rundir/ovnsb_db.sock" --timeout=60 init
run ovn-northd ovn-northd \
    --ovnnb-db="unix:$rundir/ovnnb_db.sock" \
    --ovnsb-db="unix:$rundir/ovnsb_db.sock" \
    --n-threads="${OVN_NORTHD_N_THREADS:-1}" \
    --pidfile="$rundir/ovn-northd.pid" \
    -vconsole:info -vsyslog:off -vfile:off

supervise stop
