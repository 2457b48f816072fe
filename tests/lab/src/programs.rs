//! Programs built from Go modules: Kubernetes and etcd, CoreDNS, the standard
//! CNI plugins.
//!
//! In: the small wrapper modules in `tests/lab/go`. Out: folders of programs in
//! the cache, keyed by the module's files, the Go version and the build flags.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cache::{Cache, Key};
use crate::progress::{Heartbeat, step};
use crate::run::{capture, check, command};

/// The Kubernetes version that `go/kube/go.mod` pins; the programs say it.
pub const KUBERNETES_VERSION: &str = "1.34.4";
/// The CoreDNS version that `go/coredns/go.mod` pins; its image is tagged so.
pub const COREDNS_VERSION: &str = "1.14.4";

/// Names that the multi-call binary `kube` goes by.
const KUBE_NAMES: &[&str] = &[
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
];

/// Folders that hold the built programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `kube` and its names: etcd, kube-apiserver, kubelet, kubectl, ...
    pub kube: PathBuf,
    /// `coredns`.
    pub coredns: PathBuf,
    /// `portmap` and `loopback`.
    pub cni: PathBuf,
}

impl Programs {
    /// A Kubernetes program by name.
    pub fn kube(&self, name: &str) -> PathBuf {
        self.kube.join(name)
    }
}

/// Builds one module's programs from `tests/lab/go`.
fn module(cache: &Cache, name: &str, flags: &str, outputs: &[(&str, &str)]) -> Result<PathBuf> {
    let version = capture(&mut command("go", ["env", "GOVERSION"]))
        .context("the lab builds Kubernetes itself: Go must be installed")?;
    build(cache, &crate::source_folder().join("go").join(name), name, version.trim(), flags, outputs)
}

/// Builds what tests of CNI executables use: `cnitool`, and the standard plugins that the module names.
pub fn cni_tools(cache: &Cache) -> Result<PathBuf> {
    let plugin = |name: &str| format!("github.com/containernetworking/plugins/plugins/{name}");
    let [portmap, macvlan] = [plugin("meta/portmap"), plugin("main/macvlan")];
    let [bandwidth, tuning] = [plugin("meta/bandwidth"), plugin("meta/tuning")];
    let [ptp, host_local] = [plugin("main/ptp"), plugin("ipam/host-local")];
    let outputs = [
        ("cnitool", "github.com/containernetworking/cni/cnitool"),
        ("portmap", &portmap),
        ("bandwidth", &bandwidth),
        ("tuning", &tuning),
        ("macvlan", &macvlan),
        ("ptp", &ptp),
        ("host-local", &host_local),
    ];
    module(cache, "cnitools", "-s -w", &outputs)
}

/// Builds what the cache lacks: minutes on a cold machine, nothing on a warm one.
pub fn ensure(cache: &Cache) -> Result<Programs> {
    let module = |name: &str, flags: &str, outputs: &[(&str, &str)]| module(cache, name, flags, outputs);
    let kube = module("kube", &kube_flags(), &[("kube", ".")])?;
    let coredns = module("coredns", "-s -w", &[("coredns", ".")])?;
    let plugins = "github.com/containernetworking/plugins/plugins";
    let portmap = format!("{plugins}/meta/portmap");
    let loopback = format!("{plugins}/main/loopback");
    let cni = module("cniplugins", "-s -w", &[("portmap", &portmap), ("loopback", &loopback)])?;
    Ok(Programs { kube, coredns, cni })
}

/// Link flags: no debug data, and the version that Kubernetes' own release
/// scripts put into its programs (clients and servers compare it).
fn kube_flags() -> String {
    let version = KUBERNETES_VERSION;
    let minor = version.split('.').nth(1).unwrap_or_default();
    let mut flags = "-s -w".to_owned();
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        for (name, value) in [
            ("gitVersion", format!("v{version}").as_str()),
            ("gitMajor", "1"),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
            ("gitCommit", format!("v{version}").as_str()),
            ("buildDate", "1970-01-01T00:00:00Z"),
        ] {
            flags.push_str(&format!(" -X {package}.{name}={value}"));
        }
    }
    flags
}

fn build(
    cache: &Cache,
    module: &Path,
    name: &str,
    go_version: &str,
    flags: &str,
    outputs: &[(&str, &str)],
) -> Result<PathBuf> {
    let key = Key::default().folder("module", module)?.text("go", go_version).text("flags", flags).finish();
    cache.get(name, &key, |draft| {
        std::fs::create_dir_all(draft)?;
        step(&format!("build {name} from Go modules (minutes, once per machine)"), || {
            let shown = name.to_owned();
            let _heartbeat = Heartbeat::start(Duration::from_secs(20), move |since| {
                format!("  still building {shown} ({:.0} s)", since.as_secs_f64())
            });
            for (output, package) in outputs {
                let mut go =
                    command("nice", ["go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags]);
                go.arg("-o").arg(draft.join(output)).arg(package).current_dir(module);
                // Modules come ready: no toolchain of its own, no C compiler.
                go.env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=readonly");
                check(&mut go)?;
            }
            Ok(())
        })?;
        if name == "kube" {
            for other in KUBE_NAMES {
                symlink("kube", draft.join(other))?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_that_the_modules_pin() {
        let module = |name: &str| {
            std::fs::read_to_string(crate::source_folder().join("go").join(name).join("go.mod")).unwrap()
        };
        assert!(module("kube").contains(&format!("k8s.io/kubernetes v{KUBERNETES_VERSION}\n")));
        assert!(module("coredns").contains(&format!("github.com/coredns/coredns v{COREDNS_VERSION}\n")));
        assert!(kube_flags().contains("gitMinor=34 "));
    }
}
