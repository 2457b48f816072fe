//! OCI image archives from folders, for images that are one layer of files.
//!
//! In: a folder and what to run. Out: a tar archive that `ctr images import`
//! takes. Files belong to root and have no times, so the same content gives the
//! same digests.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::cache::hex;

/// What an image is called and runs.
#[derive(Clone, Debug, Default)]
pub struct Image<'a> {
    /// Its full names, with registry and tag.
    pub names: &'a [&'a str],
    /// Program and first arguments.
    pub entrypoint: &'a [&'a str],
    /// Default arguments.
    pub command: &'a [&'a str],
    /// `uid:gid`, or empty for root.
    pub user: &'a str,
}

/// Architecture in the words of OCI.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Writes the image with the content of `root` to the archive `out`.
pub fn write_archive(out: &Path, root: &Path, image: &Image<'_>) -> Result<()> {
    let mut layer = Builder::new(Vec::new());
    append_folder(&mut layer, root, Path::new(""))?;
    let layer = layer.into_inner()?;
    let platform = json!({"architecture": architecture(), "os": "linux"});
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Entrypoint": image.entrypoint,
            "Cmd": image.command,
            "User": image.user,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
    })
    .to_string();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", config.as_bytes()),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
    })
    .to_string();
    let named = image.names.iter().map(|name| {
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", manifest.as_bytes());
        entry["platform"] = platform.clone();
        entry["annotations"] = json!({"io.containerd.image.name": name});
        entry
    });
    let index = json!({"schemaVersion": 2, "manifests": named.collect::<Vec<_>>()}).to_string();

    let file = File::create(out).with_context(|| format!("cannot write {}", out.display()))?;
    let mut archive = Builder::new(file);
    append_bytes(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
    append_bytes(&mut archive, "index.json", index.as_bytes(), 0o644)?;
    for blob in [config.as_bytes(), manifest.as_bytes(), &layer] {
        let name = format!("blobs/sha256/{}", hex(&Sha256::digest(blob)));
        append_bytes(&mut archive, &name, blob, 0o644)?;
    }
    Ok(archive.into_inner()?.flush()?)
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
}

fn header(kind: EntryType, mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn append_bytes<W: Write>(archive: &mut Builder<W>, name: &str, bytes: &[u8], mode: u32) -> Result<()> {
    archive.append_data(&mut header(EntryType::Regular, mode, bytes.len()), name, bytes)?;
    Ok(())
}

/// Appends what is in `root/inner`, in the order of names.
fn append_folder<W: Write>(archive: &mut Builder<W>, root: &Path, inner: &Path) -> Result<()> {
    let folder = root.join(inner);
    let mut entries: Vec<_> = fs::read_dir(&folder)
        .with_context(|| format!("cannot list {}", folder.display()))?
        .collect::<std::io::Result<_>>()?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let name = inner.join(entry.file_name());
        let kind = entry.file_type()?;
        let mode = entry.metadata()?.permissions().mode() & 0o7777;
        if kind.is_dir() {
            archive.append_data(&mut header(EntryType::Directory, mode, 0), &name, std::io::empty())?;
            append_folder(archive, root, &name)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path())?;
            archive.append_link(&mut header(EntryType::Symlink, 0o777, 0), &name, target)?;
        } else {
            let bytes = fs::read(entry.path())?;
            archive.append_data(&mut header(EntryType::Regular, mode, bytes.len()), &name, &*bytes)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read;

    fn archive(root: &Path) -> Vec<u8> {
        let out = tempfile::NamedTempFile::new().unwrap();
        let image = Image { names: &["r/x:1", "r/y:1"], entrypoint: &["/x"], ..Image::default() };
        write_archive(out.path(), root, &image).unwrap();
        fs::read(out.path()).unwrap()
    }

    #[test]
    fn archives_are_reproducible_and_their_digests_are_right() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("bin")).unwrap();
        fs::write(root.path().join("bin/x"), "program").unwrap();
        std::os::unix::fs::symlink("x", root.path().join("bin/y")).unwrap();
        let first = archive(root.path());
        assert_eq!(first, archive(root.path()));
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(&*first).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            files.insert(name, bytes);
        }
        for (name, bytes) in &files {
            if let Some(digest) = name.strip_prefix("blobs/sha256/") {
                assert_eq!(digest, hex(&Sha256::digest(bytes)));
            }
        }
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        assert_eq!(index["manifests"][1]["annotations"]["io.containerd.image.name"], "r/y:1");
        let manifest = index["manifests"][0]["digest"].as_str().unwrap().replace("sha256:", "blobs/sha256/");
        assert!(files.contains_key(&manifest));
    }
}
