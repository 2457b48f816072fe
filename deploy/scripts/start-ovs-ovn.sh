#!/bin/sh
# The pod ovs-ovn: ovsdb-server, ovs-vswitchd and ovn-controller of one node.
# Where tunnels end (ovn-encap-ip) is set by kube-ovn-daemon.
#
#   NODE_NAME           name of the chassis' host
#   OVN_SB_ADDR         southbound database, tcp:a:6642,tcp:b:6642
#   OVS_DATAPATH_TYPE   system (the kernel's) or netdev (userspace)
#   TUNNEL_TYPE         geneve, vxlan or stt
set -eu
cd "$(dirname "$0")"
. ./supervise.sh

: "${NODE_NAME:?must hold the name of the node}"
: "${OVN_SB_ADDR:?must hold the southbound database}"
datapath=${OVS_DATAPATH_TYPE:-system}
ovs_rundir=${OVS_RUNDIR:-/var/run/openvswitch}
ovn_rundir=${OVN_RUNDIR:-/var/run/ovn}
etc=${OVS_SYSCONFDIR:-/etc/openvswitch}
schemas=${OVS_PKGDATADIR:-/usr/share/openvswitch}
export OVS_RUNDIR="$ovs_rundir" OVN_RUNDIR="$ovn_rundir"
mkdir -p "$ovs_rundir" "$ovn_rundir" "$etc"

set_up() {
    if [ ! -s "$etc/system-id.conf" ]; then
        cat /proc/sys/kernel/random/uuid > "$etc/system-id.conf"
    fi
    vsctl="ovs-vsctl --db=unix:$ovs_rundir/db.sock --no-wait --timeout=30"
    $vsctl init
    version=$(ovs-vswitchd --version | sed -n '1s/.* //p')
    $vsctl set Open_vSwitch . ovs_version="$version" \
        external_ids:system-id="$(cat "$etc/system-id.conf")" \
        external_ids:rundir="$ovs_rundir" \
        external_ids:hostname="$NODE_NAME" \
        external_ids:ovn-remote="$OVN_SB_ADDR" \
        external_ids:ovn-remote-probe-interval="${OVN_REMOTE_PROBE_INTERVAL:-10000}" \
        external_ids:ovn-openflow-probe-interval="${OVN_REMOTE_OPENFLOW_INTERVAL:-180}" \
        external_ids:ovn-match-northd-version=true \
        external_ids:ovn-encap-type="${TUNNEL_TYPE:-geneve}" \
        external_ids:ovn-bridge=br-int \
        external_ids:ovn-bridge-datapath-type="$datapath"
    # A boot gives a NIC that had swapped names with its bridge its own name back, and the bridge's interface could not be
    # made beside it: the agent makes the bridge anew. The interfaces of others ovs-vswitchd makes again.
    for bridge in $($vsctl --bare --columns=name find Bridge \
        external_ids:vendor=kube-ovn external_ids:exchange-link-name=true); do
        if [ -e "/sys/class/net/$bridge" ] && ! ip -d link show dev "$bridge" | grep -qwE 'openvswitch|tun'; then
            say "bridge $bridge goes: a NIC has its name"
            $vsctl --if-exists del-br "$bridge"
        fi
    done
    # Made here and not left to ovn-controller, which waits for an encapsulation
    # address: the agent puts the node's own port on it before that.
    $vsctl --may-exist add-br br-int \
        -- set Bridge br-int datapath_type="$datapath" fail_mode=secure other_config:disable-in-band=true
}

stop() {
    # With --restart the chassis keeps its rows and the bridge its flows: traffic of
    # running pods is not disturbed by a restart of this pod (kernel datapath).
    if [ -s "$ovn_rundir/ovn-controller.pid" ]; then
        ovn-appctl --timeout=5 -t "$ovn_rundir/ovn-controller.$(cat "$ovn_rundir/ovn-controller.pid").ctl" \
            exit --restart || end "$ovn_rundir/ovn-controller.pid"
    fi
    end "$ovs_rundir/ovs-vswitchd.pid"
    end "$ovs_rundir/ovsdb-server.pid"
}

if [ "$datapath" = system ]; then
    modprobe -q openvswitch || say "no kernel module openvswitch: bridges will not come up, use OVS_DATAPATH_TYPE=netdev"
fi

rm -f "$ovs_rundir"/ovsdb-server.*.ctl "$ovs_rundir"/ovs-vswitchd.*.ctl "$ovn_rundir"/ovn-controller.*.ctl "$ovs_rundir/db.sock"
prepare_database "$etc/conf.db" "$schemas/vswitch.ovsschema"
run ovsdb-server ovsdb-server "$etc/conf.db" \
    --remote="punix:$ovs_rundir/db.sock" \
    --pidfile="$ovs_rundir/ovsdb-server.pid" \
    -vconsole:info -vsyslog:off -vfile:off
await "$ovs_rundir/db.sock"
set_up
run ovs-vswitchd ovs-vswitchd "unix:$ovs_rundir/db.sock" \
    --pidfile="$ovs_rundir/ovs-vswitchd.pid" \
    -vconsole:info -vsyslog:off -vfile:off
run ovn-controller ovn-controller "unix:$ovs_rundir/db.sock" \
    --pidfile="$ovn_rundir/ovn-controller.pid" \
    -vconsole:info -vsyslog:off -vfile:off

supervise stop
