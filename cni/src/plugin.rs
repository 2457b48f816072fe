//! What the executable does: one verb, one exchange with the agent, one answer.
//!
//! In: environment and standard input. Out: what to print and the exit status. Everything here is bounded in time.

use crate::api::{self, CheckRequest, CniRequest, CniResponse, ExpectedState, GcRequest, StatusResponse};
use crate::client::{self, Answer, ClientError};
use crate::conf::{self, NetConf};
use crate::environment::{Environment, PodArgs, Verb};
use crate::error::{CniError, code};
use crate::version::{self, Version};
use crate::{netns, result};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// The agent waits up to 20 s for the address and 30 s for the port; a gateway check may follow. Runtimes allow 4 min.
/// How long ADD waits for the agent.
pub const ADD_TIMEOUT: Duration = Duration::from_secs(110);
const DEL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long CHECK waits: the agent waits for the switch's database and then for the port, and says which is missing.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
const GC_TIMEOUT: Duration = Duration::from_secs(110);
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

const AGENT_REMEDY: &str = "see whether the node agent runs on this node and what it logs: \
    kubectl -n kube-system get pods -l app=kube-ovn-cni -o wide";

/// What the process prints and returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// For standard output: a result or an error object, or nothing.
    pub stdout: String,
    /// For standard error.
    pub stderr: String,
    /// Exit status.
    pub status: u8,
}

/// Carries out one call of the runtime. Never panics, whatever comes in.
pub fn run(environment: &Environment, stdin: &[u8]) -> Outcome {
    if environment.command.is_empty() {
        // Started by a person.
        return Outcome {
            stderr: format!(
                "CNI kube-ovn plugin {} (Weir)\nCNI protocol versions supported: {}\n",
                env!("CARGO_PKG_VERSION"),
                version::SUPPORTED.join(", ")
            ),
            ..Outcome::default()
        };
    }
    match answer(environment, stdin) {
        Ok(None) => Outcome::default(),
        Ok(Some(value)) => Outcome { stdout: value.to_string(), ..Outcome::default() },
        Err(error) => {
            let version = conf::version_text(stdin);
            Outcome {
                stdout: error.to_json(version.as_deref().unwrap_or(version::CURRENT)),
                stderr: format!("kube-ovn {}: {error}\n", environment.command),
                status: 1,
            }
        }
    }
}

fn answer(environment: &Environment, stdin: &[u8]) -> Result<Option<Value>, CniError> {
    let verb = environment.verb()?;
    if verb == Verb::Version {
        let given = conf::version_text(stdin);
        return Ok(Some(json!({
            "cniVersion": given.as_deref().unwrap_or(version::CURRENT),
            "supportedVersions": version::SUPPORTED,
        })));
    }
    let conf = conf::parse(stdin)?;
    let since = match verb {
        Verb::Check => Version::V040,
        Verb::Gc | Verb::Status => Version::V110,
        Verb::Add | Verb::Del | Verb::Version => Version::V010,
    };
    if conf.version < since {
        return Err(CniError::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions").details(format!(
            "config version does not allow {}: it is {}, and {} exists since {}",
            environment.command,
            conf.version.as_str(),
            environment.command,
            since.as_str()
        )));
    }
    match verb {
        Verb::Add => add(environment, &conf).map(Some),
        Verb::Del => del(environment, &conf),
        Verb::Check => check(environment, &conf),
        Verb::Gc => gc(&conf),
        Verb::Status => status(&conf),
        Verb::Version => Ok(None),
    }
}

fn add(environment: &Environment, conf: &NetConf) -> Result<Value, CniError> {
    let request = request(environment, conf, required_pod(environment)?);
    netns::prepare(&environment.netns_path(), environment.netns_override)?;
    let answer = post(conf, api::ADD_PATH, &request, ADD_TIMEOUT)?;
    if answer.status != 200 {
        return Err(refused("request ip", &answer));
    }
    let response: CniResponse = serde_json::from_slice(&answer.body).map_err(|error| {
        failed(format!("the node agent's answer can't be read: {error}")).remedy(AGENT_REMEDY)
    })?;
    if !response.error.is_empty() {
        return Err(refused("request ip", &answer));
    }
    result::build(conf, &environment.netns, &response)
}

fn del(environment: &Environment, conf: &NetConf) -> Result<Option<Value>, CniError> {
    let request = CniRequest {
        // The contract sends these empty.
        routes: Vec::new(),
        dns: api::Dns::default(),
        vf_driver: String::new(),
        vhost_user_socket_name: String::new(),
        runtime_ips: Vec::new(),
        runtime_mac: String::new(),
        // A sandbox may be removed by its id alone.
        ..request(environment, conf, environment.pod())
    };
    let answer = post(conf, api::DEL_PATH, &request, DEL_TIMEOUT)?;
    if !is_success(answer.status) {
        return Err(refused("delete ip", &answer));
    }
    Ok(None)
}

fn check(environment: &Environment, conf: &NetConf) -> Result<Option<Value>, CniError> {
    let expected = match &conf.prev_result {
        Some(previous) => result::expected(previous, &environment.ifname, &environment.netns),
        None => return Err(CniError::new(code::INVALID_CONFIG, "Required prevResult missing")),
    };
    let pod = required_pod(environment)?;
    let expected = if conf.is_delegate() {
        // The interface is another plugin's; it compares what it made.
        ExpectedState { addresses: expected.addresses, ..ExpectedState::default() }
    } else {
        expected
    };
    let request = CheckRequest { request: request(environment, conf, pod), expected };
    let answer = post(conf, api::CHECK_PATH, &request, CHECK_TIMEOUT)?;
    if !is_success(answer.status) && answer.status != 404 {
        return Err(refused("check", &answer));
    }
    Ok(None)
}

fn gc(conf: &NetConf) -> Result<Option<Value>, CniError> {
    let Some(valid_attachments) = conf.valid_attachments.clone() else {
        // libcni leaves the list out when its caller gave it none (`cnitool gc`). Taking a missing list for an
        // empty one would remove every pod's interface.
        return Ok(None);
    };
    let request = GcRequest {
        network: conf.name.clone(),
        cni_type: conf.plugin.clone(),
        provider: conf.provider.clone(),
        valid_attachments,
    };
    let answer = post(conf, api::GC_PATH, &request, GC_TIMEOUT)?;
    if !is_success(answer.status) && answer.status != 404 {
        return Err(refused("garbage collection", &answer));
    }
    Ok(None)
}

fn status(conf: &NetConf) -> Result<Option<Value>, CniError> {
    let unavailable =
        |details: String| CniError::new(code::NOT_AVAILABLE, "plugin not available").details(details);
    let answer =
        client::exchange(Path::new(&conf.server_socket), "GET", api::STATUS_PATH, &[], STATUS_TIMEOUT)
            .map_err(|error| {
                unavailable(format!("node agent at {}: {error}", conf.server_socket)).remedy(AGENT_REMEDY)
            })?;
    if answer.status == 404 {
        // An agent of Kube-OVN: it has no such question, but it answers.
        return Ok(None);
    }
    match serde_json::from_slice::<StatusResponse>(&answer.body) {
        Ok(status) if status.ready && is_success(answer.status) => Ok(None),
        Ok(status) => {
            let mut error = unavailable(status.reason);
            if status.limited {
                error.code = code::LIMITED;
                error.msg = "plugin not available, existing pods may have limited connectivity".into();
            }
            Err(error.remedy(if status.remedy.is_empty() { AGENT_REMEDY } else { &status.remedy }))
        }
        Err(_) => Err(unavailable(format!("the node agent answered {}", answer.status)).remedy(AGENT_REMEDY)),
    }
}

fn required_pod(environment: &Environment) -> Result<PodArgs, CniError> {
    let pod = environment.pod();
    let needed = [("K8S_POD_NAME", &pod.name), ("K8S_POD_NAMESPACE", &pod.namespace)];
    let missing: Vec<&str> =
        needed.into_iter().filter(|(_, value)| value.is_empty()).map(|(name, _)| name).collect();
    let missing = match missing.as_slice() {
        [] => return Ok(pod),
        _ if environment.args.is_empty() => "CNI_ARGS is missing".to_owned(),
        names => format!("missing in CNI_ARGS: {}", names.join(", ")),
    };
    Err(CniError::new(code::INVALID_CONFIG, "Invalid Configuration")
        .details(missing)
        .remedy("only a Kubernetes container runtime can call this plugin"))
}

fn request(environment: &Environment, conf: &NetConf, pod: PodArgs) -> CniRequest {
    CniRequest {
        cni_type: conf.plugin.clone(),
        pod_name: pod.name,
        pod_namespace: pod.namespace,
        container_id: environment.container_id.clone(),
        net_ns: environment.netns.clone(),
        if_name: environment.ifname.clone(),
        provider: conf.provider.clone(),
        routes: conf.routes.clone(),
        dns: conf.dns.clone(),
        vf_driver: conf.vf_driver.clone(),
        device_id: conf.device_id.clone(),
        vhost_user_socket_volume_name: conf.vhost_user_socket_volume_name.clone(),
        vhost_user_socket_name: conf.vhost_user_socket_name.clone(),
        vhost_user_socket_consumption: conf.vhost_user_socket_consumption.clone(),
        pod_uid: pod.uid,
        network: conf.name.clone(),
        runtime_ips: conf.runtime_ips.clone(),
        runtime_mac: conf.runtime_mac.clone(),
    }
}

fn post<T: Serialize>(conf: &NetConf, path: &str, body: &T, timeout: Duration) -> Result<Answer, CniError> {
    let body = serde_json::to_vec(body).map_err(|error| CniError::new(code::INTERNAL, error.to_string()))?;
    client::exchange(Path::new(&conf.server_socket), "POST", path, &body, timeout).map_err(|error| {
        let what = match &error {
            ClientError::Unreachable(_) => "is not running",
            ClientError::Timeout(_) => "is busy or hangs",
            ClientError::Broken(_) => "went away",
        };
        failed(format!("node agent at {} {what}: {error}", conf.server_socket)).remedy(AGENT_REMEDY)
    })
}

fn failed(details: String) -> CniError {
    CniError::new(code::TRY_AGAIN, "RPC failed").details(details)
}

/// The agent said no: its words, its code and its remedy where it gave them.
fn refused(what: &str, answer: &Answer) -> CniError {
    let response: CniResponse = serde_json::from_slice(&answer.body).unwrap_or_default();
    let reason = if response.error.is_empty() {
        String::from_utf8_lossy(&answer.body).trim().chars().take(2000).collect()
    } else {
        response.error
    };
    let mut error = failed(format!("{what} return {} {reason}", answer.status).trim_end().to_owned());
    if response.code != 0 {
        error.code = response.code;
    }
    error.remedy(&response.remedy)
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}
