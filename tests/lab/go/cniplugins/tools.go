//go:build tools

// Package cniplugins pins the standard CNI plugins that our image carries:
// portmap (hostPort) and loopback. They are built from this module by path.
package cniplugins

import (
	_ "github.com/containernetworking/plugins/plugins/main/loopback"
	_ "github.com/containernetworking/plugins/plugins/meta/portmap"
)
