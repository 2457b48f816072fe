//go:build tools

// Package cnitools pins what tests of the CNI executable need: libcni's
// cnitool, which calls plugins as a runtime does, the standard plugins that
// ours is chained with (portmap, bandwidth, tuning) or is the IPAM of (macvlan), and one that
// stands for other networks in the benchmark's test (ptp with host-local).
package cnitools

import (
	_ "github.com/containernetworking/cni/cnitool"
	_ "github.com/containernetworking/plugins/plugins/ipam/host-local"
	_ "github.com/containernetworking/plugins/plugins/main/macvlan"
	_ "github.com/containernetworking/plugins/plugins/main/ptp"
	_ "github.com/containernetworking/plugins/plugins/meta/bandwidth"
	_ "github.com/containernetworking/plugins/plugins/meta/portmap"
	_ "github.com/containernetworking/plugins/plugins/meta/tuning"
)
