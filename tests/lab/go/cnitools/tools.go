//go:build tools

// Package cnitools pins what tests of the CNI executable need: libcni's
// cnitool, which calls plugins as a runtime does, and the standard plugins that
// ours is chained with (portmap) or is the IPAM of (macvlan).
package cnitools

import (
	_ "github.com/containernetworking/cni/cnitool"
	_ "github.com/containernetworking/plugins/plugins/main/macvlan"
	_ "github.com/containernetworking/plugins/plugins/meta/portmap"
)
