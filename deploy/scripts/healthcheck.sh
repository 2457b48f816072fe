#!/bin/sh
# Probes of the OVN and OVS pods: `healthcheck.sh central` or `healthcheck.sh ovs`.
# Asks the daemons over their control sockets; a remote that can't be reached is not
# this pod's fault and does not count.
set -eu

ovs_rundir=${OVS_RUNDIR:-/var/run/openvswitch}
ovn_rundir=${OVN_RUNDIR:-/var/run/ovn}

# ask SOCKET COMMAND…
ask() {
    socket=$1
    shift
    ovs-appctl --timeout=4 -t "$socket" "$@"
}

# of FOLDER DAEMON: the control socket of a running daemon.
of() {
    echo "$1/$2.$(cat "$1/$2.pid").ctl"
}

case ${1:-} in
central)
    ask "$ovn_rundir/ovnnb_db.ctl" ovsdb-server/get-db-storage-status OVN_Northbound | grep -q 'status: ok'
    ask "$ovn_rundir/ovnsb_db.ctl" ovsdb-server/get-db-storage-status OVN_Southbound | grep -q 'status: ok'
    ask "$(of "$ovn_rundir" ovn-northd)" status | grep -q 'active'
    ;;
ovs)
    ask "$(of "$ovs_rundir" ovsdb-server)" version > /dev/null
    ask "$(of "$ovs_rundir" ovs-vswitchd)" version > /dev/null
    ask "$(of "$ovn_rundir" ovn-controller)" version > /dev/null
    ;;
*)
    echo "usage: ${0##*/} central|ovs" >&2
    exit 2
    ;;
esac
