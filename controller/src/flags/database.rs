//! Where the databases are, and how they are spoken to.
//!
//! Flows in: the flag and the environment that Kube-OVN's start script looks at. Flows
//! out: endpoints in OVS's notation, and the certificate files when one of them is `ssl:`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ovsdb::TlsFiles;

use super::settings::{SettingError, wrong};

/// Where Kube-OVN mounts the Secret `kube-ovn-tls` (keys `cacert`, `cert`, `key`).
const TLS_DIRECTORY: &str = "/var/run/tls";
/// How often the files are looked at. A Secret takes up to a minute to reach a pod.
const TLS_LOOK: Duration = Duration::from_secs(10);

/// How a database is named.
struct Database {
    flag: &'static str,
    variable: &'static str,
    /// Host and port of its Service.
    service: (&'static str, &'static str),
    port: u16,
}

const NORTHBOUND: Database = Database {
    flag: "--ovn-nb-addr",
    variable: "OVN_NB_ADDR",
    service: ("OVN_NB_SERVICE_HOST", "OVN_NB_SERVICE_PORT"),
    port: 6641,
};
const SOUTHBOUND: Database = Database {
    flag: "--ovn-sb-addr",
    variable: "OVN_SB_ADDR",
    service: ("OVN_SB_SERVICE_HOST", "OVN_SB_SERVICE_PORT"),
    port: 6642,
};

/// Where the northbound database is.
pub(super) fn nb_endpoints(
    flag: &str,
    env: &impl Fn(&str) -> Option<String>,
    ssl: bool,
) -> Result<String, SettingError> {
    endpoints(&NORTHBOUND, flag, env, ssl)?.ok_or_else(|| {
        let remedy =
            "give --ovn-nb-addr=tcp:HOST:6641, or set OVN_DB_IPS to the addresses of the ovn-central nodes";
        wrong(NORTHBOUND.flag, "no northbound database is named", remedy)
    })
}

/// Where the southbound database is, if anything names it.
pub(super) fn sb_endpoints(
    flag: &str,
    env: &impl Fn(&str) -> Option<String>,
    ssl: bool,
) -> Result<Option<String>, SettingError> {
    endpoints(&SOUTHBOUND, flag, env, ssl)
}

/// Where a database is: flag, then OVN_NB_ADDR, then OVN_DB_IPS, then the Service's
/// variables (Kube-OVN's start script derives it in that order). With ENABLE_SSL
/// derived endpoints are `ssl:`, and given ones have to be.
fn endpoints(
    database: &Database,
    flag: &str,
    env: &impl Fn(&str) -> Option<String>,
    ssl: bool,
) -> Result<Option<String>, SettingError> {
    let scheme = if ssl { "ssl" } else { "tcp" };
    let endpoints = if !flag.is_empty() {
        flag.to_owned()
    } else if let Some(given) = env(database.variable) {
        given
    } else if let Some(ips) = env("OVN_DB_IPS") {
        let mut list = Vec::new();
        for ip in ips.split(',').map(|ip| ip.trim().trim_matches(['[', ']'])) {
            let ip: IpAddr = ip.parse().map_err(|_| {
                wrong(
                    "OVN_DB_IPS",
                    format!("`{ip}` is no IP address"),
                    "give a comma list of the members' addresses",
                )
            })?;
            list.push(format!("{scheme}:{}", SocketAddr::new(ip, database.port)));
        }
        list.join(",")
    } else if let Some(host) = env(database.service.0) {
        let port = env(database.service.1).unwrap_or_else(|| database.port.to_string());
        if host.contains(':') {
            format!("{scheme}:[{host}]:{port}")
        } else {
            format!("{scheme}:{host}:{port}")
        }
    } else {
        return Ok(None);
    };
    // What was meant to be encrypted is not spoken in the clear because of a slip.
    if ssl && let Some(clear) = endpoints.split(',').map(str::trim).find(|e| e.starts_with("tcp:")) {
        return Err(wrong(
            "ENABLE_SSL",
            format!("TLS is asked for, but `{clear}` is not encrypted"),
            "give ssl:HOST:PORT, or run ovn-central with ENABLE_SSL=false",
        ));
    }
    Ok(Some(endpoints))
}

/// The certificate files, if an endpoint needs them.
pub(super) fn tls(endpoints: &str, env: &impl Fn(&str) -> Option<String>) -> Option<TlsFiles> {
    endpoints.split(',').any(|e| e.trim().starts_with("ssl:")).then(|| {
        let directory = PathBuf::from(env("WEIR_TLS_DIRECTORY").unwrap_or_else(|| TLS_DIRECTORY.to_owned()));
        TlsFiles::new(directory.join("cacert"))
            .identity(directory.join("cert"), directory.join("key"))
            .reconnect_when_changed(TLS_LOOK)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn settings(
        flag: &str,
        env: &[(&str, &str)],
        ssl: bool,
    ) -> Result<(String, Option<TlsFiles>), SettingError> {
        let env = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let endpoints = nb_endpoints(flag, &env, ssl)?;
        let tls = tls(&endpoints, &env);
        Ok((endpoints, tls))
    }

    #[rstest]
    #[case("ssl:9.9.9.9:1", &[], false, "ssl:9.9.9.9:1")]
    #[case("ssl:9.9.9.9:1,unix:/s", &[], true, "ssl:9.9.9.9:1,unix:/s")]
    #[case("", &[("OVN_DB_IPS", "1.1.1.1,fd00::1")], true, "ssl:1.1.1.1:6641,ssl:[fd00::1]:6641")]
    #[case("", &[("OVN_NB_SERVICE_HOST", "10.96.0.9")], true, "ssl:10.96.0.9:6641")]
    #[case("", &[("OVN_NB_SERVICE_HOST", "fd00::9")], true, "ssl:[fd00::9]:6641")]
    fn encrypted_databases_come_with_the_mounted_files(
        #[case] flag: &str,
        #[case] env: &[(&str, &str)],
        #[case] ssl: bool,
        #[case] expected: &str,
    ) {
        let (endpoints, files) = settings(flag, env, ssl).unwrap();
        assert_eq!(endpoints, expected);
        let files = files.unwrap();
        assert_eq!(files.ca, PathBuf::from("/var/run/tls/cacert"));
        assert_eq!(files.identity, Some(("/var/run/tls/cert".into(), "/var/run/tls/key".into())));
    }

    #[test]
    fn other_databases_need_no_files() {
        assert_eq!(settings("tcp:1.1.1.1:1", &[], false).unwrap().1, None);
        assert_eq!(settings("unix:/s", &[], true).unwrap().1, None);
    }

    #[test]
    fn the_clear_is_not_taken_for_encrypted() {
        let error = settings("ssl:1.1.1.1:1, tcp:1.1.1.2:1", &[], true).unwrap_err();
        assert_eq!(error.name, "ENABLE_SSL");
        assert!(error.to_string().contains("tcp:1.1.1.2:1"), "{error}");
    }

    #[test]
    fn the_directory_can_be_another() {
        let files = settings("ssl:h:1", &[("WEIR_TLS_DIRECTORY", "/certs")], false).unwrap().1.unwrap();
        assert_eq!(files.ca, PathBuf::from("/certs/cacert"));
    }
}
