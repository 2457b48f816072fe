//! Certificates and kubeconfig files of a lab.
//!
//! In: names and addresses. Out: PEM files below a folder, P-256 keys, one CA
//! for the cluster and one for the API server's aggregation ("front proxy").
//! A CA is rebuilt from its key and its fixed name, so nodes that are added
//! later get certificates without any certificate being parsed.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// A certificate authority of the lab.
#[derive(Clone, Copy, Debug)]
pub enum Authority {
    /// Signs everything of the cluster.
    Cluster,
    /// Signs only the API server's client certificate for aggregated APIs.
    FrontProxy,
}

impl Authority {
    /// Name of its files, without extension.
    pub fn file(self) -> &'static str {
        match self {
            Self::Cluster => "ca",
            Self::FrontProxy => "front-proxy-ca",
        }
    }

    fn params(self) -> Result<CertificateParams> {
        let mut params = CertificateParams::new(Vec::new())?;
        let name = match self {
            Self::Cluster => "kubernetes-ca",
            Self::FrontProxy => "front-proxy-ca",
        };
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        Ok(params)
    }

    /// Makes the authority in `folder`; does nothing when it is there.
    pub fn make(self, folder: &Path) -> Result<()> {
        let key_file = folder.join(format!("{}.key", self.file()));
        if key_file.exists() {
            return Ok(());
        }
        let key = KeyPair::generate()?;
        let certificate = self.params()?.self_signed(&key)?;
        fs::write(folder.join(format!("{}.crt", self.file())), certificate.pem())?;
        write_secret(&key_file, &key.serialize_pem())
    }
}

/// Who a certificate is for.
pub struct Subject<'a> {
    /// Common name: the user name that RBAC sees.
    pub name: &'a str,
    /// Organisation: the group that RBAC sees.
    pub group: Option<&'a str>,
    /// DNS names that it may serve as.
    pub dns: &'a [&'a str],
    /// Addresses that it may serve as.
    pub addresses: &'a [IpAddr],
}

impl<'a> Subject<'a> {
    /// A client.
    pub fn client(name: &'a str, group: Option<&'a str>) -> Self {
        Self { name, group, dns: &[], addresses: &[] }
    }
}

/// Writes `FILE.crt` and `FILE.key` for a subject into `folder`, signed by an
/// authority that lives in `authorities`. Does nothing when they are there.
pub fn certify(
    authorities: &Path,
    authority: Authority,
    folder: &Path,
    file: &str,
    who: &Subject<'_>,
) -> Result<()> {
    let key_file = folder.join(format!("{file}.key"));
    if key_file.exists() {
        return Ok(());
    }
    let authority_key = fs::read_to_string(authorities.join(format!("{}.key", authority.file())))?;
    let issuer = Issuer::new(authority.params()?, KeyPair::from_pem(&authority_key)?);
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, who.name);
    if let Some(group) = who.group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    for name in who.dns {
        params.subject_alt_names.push(SanType::DnsName((*name).try_into().context("not a DNS name")?));
    }
    params.subject_alt_names.extend(who.addresses.iter().map(|address| SanType::IpAddress(*address)));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    fs::write(folder.join(format!("{file}.crt")), certificate.pem())?;
    write_secret(&key_file, &key.serialize_pem())
}

/// The key pair that signs service account tokens: `sa.key` and `sa.pub`.
pub fn service_account_keys(folder: &Path) -> Result<()> {
    let key_file = folder.join("sa.key");
    if key_file.exists() {
        return Ok(());
    }
    let key = KeyPair::generate()?;
    fs::write(folder.join("sa.pub"), key.public_key_pem())?;
    write_secret(&key_file, &key.serialize_pem())
}

/// Writes a kubeconfig. Certificate paths in it are relative to its own folder,
/// so that it works in a node too, where that folder has another name.
pub fn kubeconfig(file: &Path, server: &str, ca: &str, certificate: &str) -> Result<()> {
    let text = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority": ca}}],
        "users": [{"name": "user", "user": {
            "client-certificate": format!("{certificate}.crt"),
            "client-key": format!("{certificate}.key"),
        }}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "user"}}],
        "current-context": "lab",
    });
    write_secret(file, &serde_json::to_string_pretty(&text)?)
}

fn write_secret(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    let mut options = fs::File::options();
    let open = options.create(true).write(true).truncate(true).mode(0o600).open(path);
    let mut file = open.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file.write_all(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_made_once_and_chain_to_a_stable_authority() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        Authority::Cluster.make(path).unwrap();
        let ca = fs::read(path.join("ca.crt")).unwrap();
        Authority::Cluster.make(path).unwrap();
        assert_eq!(ca, fs::read(path.join("ca.crt")).unwrap());
        let who = Subject { dns: &["a.b"], ..Subject::client("system:node:n1", Some("system:nodes")) };
        certify(path, Authority::Cluster, path, "n1", &who).unwrap();
        let certificate = fs::read(path.join("n1.crt")).unwrap();
        certify(path, Authority::Cluster, path, "n1", &who).unwrap();
        assert_eq!(certificate, fs::read(path.join("n1.crt")).unwrap());
        service_account_keys(path).unwrap();
        assert!(fs::read_to_string(path.join("sa.pub")).unwrap().contains("PUBLIC KEY"));
        if crate::run::find_program("openssl").is_some() {
            let mut verify = crate::run::command("openssl", ["verify", "-CAfile", "ca.crt", "n1.crt"]);
            crate::run::check(verify.current_dir(path)).unwrap();
        }
    }
}
