//! Images: made here, imported into each node's containerd. Nothing is pulled.
//!
//! In: programs, Debian packages, the source tree. Out: archives in the cache
//! (keyed by content), imported once per node.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::cache::{Cache, Key};
use crate::oci::{Image, write_archive};
use crate::programs::{COREDNS_VERSION, Programs};
use crate::progress::{Heartbeat, at_once, quiet_step, step};
use crate::run::{capture, check, command, find_program, run};
use crate::state::{Lab, Node, read_json, write_json};
use crate::{debian, node, seed, source_folder, workspace_folder};

/// The image that test pods run: busybox with all its applets.
pub const BUSYBOX: &str = "docker.io/library/busybox:lab";
/// Weir's image, as the manifests name it.
pub const WEIR: &str = "docker.io/weir/weir:v0.1.0";
/// The base image that `deploy/Dockerfile` names.
const DEBIAN: &str = "docker.io/library/debian:trixie-slim";

/// Name of the CoreDNS image.
pub fn coredns_name() -> String {
    format!("registry.k8s.io/coredns/coredns:v{COREDNS_VERSION}")
}

/// Raised when the way of making the small images changes.
const RECIPE: &str = "1";

/// Archives of pause, busybox and CoreDNS.
pub fn base_archives(cache: &Cache, programs: &Programs) -> Result<Vec<PathBuf>> {
    let busybox = find_program("busybox").context("busybox is missing")?;
    let pause_source = source_folder().join("pause.c");
    let pause_key = Key::default().text("recipe", RECIPE).file("pause.c", &pause_source)?.finish();
    let pause = cache.get("image-pause", &format!("{pause_key}.tar"), |draft| {
        let root = tempfile::tempdir()?;
        let program = root.path().join("pause");
        let mut cc = command("cc", ["-Os", "-static", "-s", "-o"]);
        check(cc.arg(&program).arg(&pause_source)).context("the pause program needs a C compiler")?;
        let names = [node::PAUSE_IMAGE];
        let image = Image { names: &names, entrypoint: &["/pause"], user: "65535:65535", ..Image::default() };
        write_archive(draft, root.path(), &image)
    })?;
    let busybox_key = Key::default().text("recipe", RECIPE).file("busybox", &busybox)?.finish();
    let busybox = cache.get("image-busybox", &format!("{busybox_key}.tar"), |draft| {
        let root = tempfile::tempdir()?;
        busybox_root(root.path(), &busybox)?;
        write_archive(draft, root.path(), &Image { names: &[BUSYBOX], command: &["sh"], ..Image::default() })
    })?;
    let program = programs.coredns.join("coredns");
    let coredns_key = Key::default().text("recipe", RECIPE).file("coredns", &program)?.finish();
    let coredns = cache.get("image-coredns", &format!("{coredns_key}.tar"), |draft| {
        let root = tempfile::tempdir()?;
        fs::copy(&program, root.path().join("coredns"))?;
        let name = coredns_name();
        let names = [name.as_str()];
        write_archive(
            draft,
            root.path(),
            &Image { names: &names, entrypoint: &["/coredns"], ..Image::default() },
        )
    })?;
    Ok(vec![pause, busybox, coredns])
}

/// A root file system of Debian's busybox (the dynamic one: the static one
/// can't look names up), its libraries and a link per applet.
fn busybox_root(root: &Path, busybox: &Path) -> Result<()> {
    for folder in ["bin", "etc", "tmp", "root", "proc", "sys", "dev", "var/run", "var/tmp", "usr", "www"] {
        fs::create_dir_all(root.join(folder))?;
    }
    for folder in ["tmp", "var/tmp"] {
        fs::set_permissions(root.join(folder), fs::Permissions::from_mode(0o1777))?;
    }
    fs::copy(busybox, root.join("bin/busybox"))?;
    let libraries = capture(command("ldd", [""; 0]).arg(busybox))?;
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let target = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(target.parent().context("a library in no folder")?)?;
        fs::copy(library, target)?;
    }
    let applets = capture(command("busybox", ["--list"]).env("LC_ALL", "C"))?;
    for applet in applets.lines().filter(|name| *name != "busybox") {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    for (file, text) in [
        ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"),
        ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
        ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    ] {
        fs::write(root.join(file), text)?;
    }
    Ok(())
}

/// Where Weir's programs come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binaries {
    /// Built now, in release mode.
    Build,
    /// Taken as they are in the target folder.
    AsTheyAre,
}

/// Crates whose programs the image holds, besides the CNI executable.
const CRATES: &[&str] = &["controller", "daemon", "cli"];
/// The CNI executable runs on the node's own system, whatever its libc, and is
/// started for every pod: it is linked statically.
const SHIM: &[&str] = &["rustc", "--quiet", "-p", "cni", "--bin", "kube-ovn"];
const STATIC: &[&str] = &["--", "-C", "target-feature=+crt-static", "-C", "relocation-model=static"];
/// Those programs, by the names that `deploy/README.md` asks for.
pub(crate) const BINARIES: &[&str] = &["kube-ovn-controller", "kube-ovn-daemon", "kube-ovn", "weir"];

/// Which build of Weir's programs goes into the image: `release`, or what
/// `WEIR_LAB_PROFILE` says (`dev`: quicker to build for those who work on it).
fn profile() -> String {
    std::env::var("WEIR_LAB_PROFILE").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "release".into())
}

/// The folder of Weir's programs.
pub fn program_folder() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let profile = profile();
    let folder = if profile == "dev" { "debug" } else { &profile };
    set.unwrap_or_else(|| workspace_folder().join("target")).join(folder)
}

/// Builds Weir's programs.
pub fn build_binaries() -> Result<()> {
    let profile = profile();
    step(&format!("build Weir's programs ({profile})"), || {
        let _heartbeat = Heartbeat::start(Duration::from_secs(20), |since| {
            format!("  still building Weir's programs ({:.0} s)", since.as_secs_f64())
        });
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let mut build = command(&cargo, ["build", "--quiet", "--bins", "--profile", &profile]);
        for name in CRATES {
            build.args(["-p", name]);
        }
        check(build.current_dir(workspace_folder()))?;
        let mut shim = command(&cargo, SHIM);
        shim.args(["--profile", &profile]).args(STATIC);
        check(shim.current_dir(workspace_folder()))
    })
}

/// The archive of Weir's image, built from `deploy/Dockerfile`.
pub fn weir_archive(cache: &Cache, programs: &Programs, binaries: Binaries) -> Result<PathBuf> {
    if binaries == Binaries::Build {
        build_binaries()?;
    }
    let deploy = workspace_folder().join("deploy");
    let mut files: Vec<(String, PathBuf)> = Vec::new();
    for name in BINARIES {
        files.push(((*name).to_owned(), program_folder().join(name)));
    }
    for name in ["portmap", "loopback"] {
        files.push((name.to_owned(), programs.cni.join(name)));
    }
    let mut key = Key::default()
        .text("debian", debian::SUITE)
        .file("Dockerfile", &deploy.join("Dockerfile"))?
        .folder("scripts", &deploy.join("scripts"))?;
    for (name, path) in &files {
        key = key.file(name, path)?;
    }
    let archive = cache.get("image-weir", &format!("{}.tar", key.finish()), |draft| {
        let base = debian::base_tarball(cache)?;
        step("build Weir's image", || {
            let context = tempfile::tempdir()?;
            let bin = context.path().join("bin");
            fs::create_dir(&bin)?;
            for (name, path) in &files {
                fs::copy(path, bin.join(name)).with_context(|| format!("{} is not built", path.display()))?;
            }
            run("cp", [Path::new("-r"), &deploy.join("scripts"), context.path()])?;
            let buildah = Buildah::open(cache)?;
            buildah.ensure_base(&base)?;
            let dockerfile = deploy.join("Dockerfile");
            let mut bud = buildah.command(["bud", "--layers", "--isolation", "chroot", "--network", "host"]);
            bud.args(["--pull-never", "--tag", WEIR, "--file"]).arg(&dockerfile).arg(context.path());
            check(&mut bud)?;
            // Not compressed: it travels from one disk to the same disk.
            let target = format!("docker-archive:{}:{WEIR}", draft.display());
            check(&mut buildah.command(["push", WEIR, &target]))?;
            // Layers of earlier programs; those in use stay as the cache of the next build.
            let _ = buildah.command(["rmi", "--prune"]).output();
            Ok(())
        })
    })?;
    // One per clone that is worked on; each is some 400 MB.
    cache.prune("image-weir", 3)?;
    Ok(archive)
}

/// buildah with image and run folders of its own in the cache.
struct Buildah {
    global: Vec<String>,
    policy: PathBuf,
    /// Two builds would fight over tags.
    _lock: crate::cache::CacheLock,
}

impl Buildah {
    fn open(cache: &Cache) -> Result<Self> {
        let folder = cache.root().join("buildah");
        fs::create_dir_all(&folder)?;
        // The machine's own policy may be absent (a recommended package) or strict.
        let policy = folder.join("policy.json");
        fs::write(&policy, r#"{"default": [{"type": "insecureAcceptAnything"}]}"#)?;
        let registries = folder.join("registries.conf");
        fs::write(&registries, "unqualified-search-registries = [\"docker.io\"]\n")?;
        let shown = |path: &Path| path.display().to_string();
        let global = vec![
            "--storage-driver=overlay".to_owned(),
            format!("--root={}", shown(&folder.join("root"))),
            format!("--runroot={}", shown(&folder.join("run"))),
            format!("--registries-conf={}", shown(&registries)),
        ];
        Ok(Self { global, policy, _lock: cache.lock("buildah")? })
    }

    fn command<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = command("buildah", &self.global);
        for (position, word) in args.into_iter().enumerate() {
            command.arg(word);
            if position == 0 && ["from", "bud", "commit", "push"].contains(&word) {
                command.arg(format!("--signature-policy={}", self.policy.display()));
            }
        }
        command
    }

    /// Makes the Debian base image from its tarball, once per tarball.
    fn ensure_base(&self, tarball: &Path) -> Result<()> {
        let made_from = tarball.display().to_string();
        let label = "weir.lab.tarball";
        let format = format!("{{{{index .OCIv1.Config.Labels \"{label}\"}}}}");
        let inspect = self.command(["inspect", "--type", "image", "--format", &format, DEBIAN]).output();
        if inspect.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim() == made_from) {
            return Ok(());
        }
        let container = capture(&mut self.command(["from", "scratch"]))?.trim().to_owned();
        let build = || -> Result<()> {
            check(&mut self.command(["add", "--quiet", &container, &made_from, "/"]))?;
            let label = format!("{label}={made_from}");
            check(&mut self.command(["config", "--label", &label, "--cmd", "bash", &container]))?;
            check(&mut self.command(["commit", "--quiet", &container, DEBIAN]))
        };
        let built = build();
        let _ = self.command(["rm", &container]).output();
        built
    }
}

/// The images that every node of a lab is to have.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Wanted {
    /// Their archives.
    pub archives: Vec<PathBuf>,
    /// A ready store with them, which new nodes begin with.
    pub seed: Option<PathBuf>,
}

impl Wanted {
    fn file(lab: &Lab) -> PathBuf {
        lab.path("images.json")
    }

    /// What was wanted last.
    pub fn of(lab: &Lab) -> Result<Self> {
        let file = Self::file(lab);
        if file.exists() { read_json(&file) } else { Ok(Self::default()) }
    }

    /// Remembers it for nodes that are added later.
    pub fn save(&self, lab: &Lab) -> Result<()> {
        write_json(&Self::file(lab), self)
    }
}

fn record(lab: &Lab, node: &Node) -> PathBuf {
    lab.node_dir(node).join("images.json")
}

/// Gives a new node, before its first boot, the store that was made ready.
pub fn plant(lab: &Lab, node: &Node) -> Result<()> {
    let wanted = Wanted::of(lab)?;
    // It may have been pruned from the cache since; then there is the import.
    let Some(seed) = wanted.seed.filter(|seed| seed.exists()) else { return Ok(()) };
    seed::clone(&seed, &lab.node_dir(node).join("fs/var/lib/containerd"))?;
    write_json(&record(lab, node), &wanted.archives)
}

/// Imports the wanted archives into every node of a lab that lacks them.
pub fn import(lab: &Lab) -> Result<()> {
    let archives = &Wanted::of(lab)?.archives;
    let nodes = lab.nodes()?;
    let work = nodes.iter().map(|node| -> Box<dyn FnOnce() -> Result<()> + Send> {
        Box::new(move || import_into(lab, node, archives))
    });
    at_once(work.collect()).map(drop)
}

/// Imports archives into one node.
pub fn import_into(lab: &Lab, node: &Node, archives: &[PathBuf]) -> Result<()> {
    let record = record(lab, node);
    let mut have: BTreeSet<PathBuf> = if record.exists() { read_json(&record)? } else { BTreeSet::new() };
    let missing: Vec<_> = archives.iter().filter(|archive| !have.contains(*archive)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let socket = node::wait_containerd(lab, node)?;
    quiet_step(&format!("images into {}", node.name), || {
        for archive in missing {
            let mut ctr = command("ctr", ["--address"]);
            ctr.arg(&socket)
                .args(["--namespace", "k8s.io", "images", "import", "--digests=false"])
                .arg(archive);
            check(&mut ctr)?;
            have.insert(archive.clone());
        }
        write_json(&record, &have)
    })
}

/// A hash of the programs: tells whether what runs is what was built.
pub fn programs_key() -> Result<String> {
    let mut key = Key::default();
    for name in BINARIES {
        key = key.file(name, &program_folder().join(name))?;
    }
    Ok(key.finish())
}
