//! From annotations to limits (node contract §2.8). Pure.
//!
//! Rates are in Mbit/s and bursts in Mbit, as the pod sees them; delays in ms, losses in percent. A value that can't be
//! meant is an error that names it: a pod that asked for a limit must not run without one unnoticed. Only a burst that
//! can't be read falls back to its default, as in Kube-OVN, and is told of.

use std::fmt::Display;
use std::str::FromStr;

use crate::ovs::{Discipline, PortQos};

/// An annotation that can't be obeyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("annotation {key}: {value:?} {problem}; {remedy}")]
pub struct Invalid {
    /// The annotation's last part (`egress_rate` …).
    pub key: &'static str,
    /// What it says.
    pub value: String,
    /// What is wrong with it.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

/// Limits that annotations ask for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// The rows.
    pub qos: PortQos,
    /// What is asked for and can't be had together, or was replaced by a default; with the remedy.
    pub notes: Vec<String>,
}

/// Highest rate in Mbit/s: the policing column's unit, kbit/s, has to fit the kernel's 32 bits.
const MAX_RATE: f64 = 4_294_967.0;

/// Annotations that this module reads, by their last part.
pub const KEYS: [&str; 8] =
    ["ingress_rate", "egress_rate", "ingress_burst", "egress_burst", "latency", "limit", "loss", "jitter"];

/// Reads the limits of one interface; `get` looks an annotation up by its last part.
///
/// # Errors
/// The first annotation that can't be obeyed.
pub fn read<'a>(get: impl Fn(&'static str) -> Option<&'a str>) -> Result<Limits, Invalid> {
    read_as(get, |key| key)
}

/// The same for the node's own port, by rates and bursts alone. Its device is the host's: what is filtered on the way in
/// there, the node receives, and what waits in its queue, the node sends; the other way round than with a pod.
///
/// # Errors
/// As [`read`].
pub fn read_node<'a>(get: impl Fn(&'static str) -> Option<&'a str>) -> Result<Limits, Invalid> {
    let across = |key| match key {
        "ingress_rate" => "egress_rate",
        "egress_rate" => "ingress_rate",
        "ingress_burst" => "egress_burst",
        "egress_burst" => "ingress_burst",
        other => other,
    };
    let rate = |key: &str| key.ends_with("_rate") || key.ends_with("_burst");
    read_as(|key| rate(key).then(|| get(key))?, across)
}

fn read_as<'a>(
    get: impl Fn(&'static str) -> Option<&'a str>,
    name: impl Fn(&'static str) -> &'static str,
) -> Result<Limits, Invalid> {
    let mut limits = Limits::default();
    let [egress_rate, egress_burst] = ["egress_rate", "egress_burst"].map(&name);
    let [ingress_rate, ingress_burst] = ["ingress_rate", "ingress_burst"].map(&name);
    if let Some(rate) = rate(egress_rate, get(egress_rate))? {
        let kbit = (rate * 1000.0).max(1.0);
        let burst = burst(egress_burst, get(egress_burst), &mut limits.notes);
        limits.qos.policing_rate = kbit as u32;
        limits.qos.policing_burst = burst.map_or(kbit * 0.8, |burst| burst * 1000.0) as u32;
    }
    let delays = Discipline::Netem {
        latency: milliseconds("latency", get("latency"))?,
        jitter: milliseconds("jitter", get("jitter"))?,
        // More neither the switch nor the kernel can count.
        limit: number::<u32>("limit", get("limit"), "a number of packets up to 4294967295")?
            .map_or(0, u64::from),
        loss: percent("loss", get("loss"))?,
    };
    let delays = match &delays {
        Discipline::Netem { latency: 0, jitter: 0, limit: 0, loss } if *loss == 0.0 => None,
        _ => Some(delays),
    };
    match (rate(ingress_rate, get(ingress_rate))?, delays) {
        (Some(rate), delays) => {
            let bits = (rate * 1e6).max(1000.0);
            let burst = burst(ingress_burst, get(ingress_burst), &mut limits.notes);
            limits.qos.discipline = Some(Discipline::Htb {
                max_rate: bits as u64,
                burst: burst.map_or(bits / 10.0, |burst| burst * 125_000.0) as u64,
            });
            if delays.is_some() {
                limits.notes.push(
                    "latency, limit, loss and jitter have no effect beside ingress_rate: a port has one queueing \
                     discipline; remove either"
                        .to_owned(),
                );
            }
        }
        (None, delays) => limits.qos.discipline = delays,
    }
    Ok(limits)
}

fn number<T: FromStr + PartialOrd + Default + Display>(
    key: &'static str,
    text: Option<&str>,
    what: &str,
) -> Result<Option<T>, Invalid> {
    let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else { return Ok(None) };
    let invalid = || Invalid {
        key,
        value: text.to_owned(),
        problem: format!("is not {what}"),
        remedy: "correct the annotation or remove it".to_owned(),
    };
    let number: T = text.parse().map_err(|_| invalid())?;
    if number < T::default() {
        return Err(invalid());
    }
    Ok(Some(number))
}

/// A rate above 0, in Mbit/s.
fn rate(key: &'static str, text: Option<&str>) -> Result<Option<f64>, Invalid> {
    let rate: Option<f64> = number(key, text, "a rate in Mbit/s, 0 or more")?;
    match rate {
        Some(rate) if !rate.is_finite() || rate > MAX_RATE => Err(Invalid {
            key,
            value: text.unwrap_or_default().to_owned(),
            problem: format!("is more than {MAX_RATE} Mbit/s"),
            remedy: "remove the annotation if there is to be no limit".to_owned(),
        }),
        rate => Ok(rate.filter(|rate| *rate > 0.0)),
    }
}

/// A burst in Mbit; `None` is the default.
fn burst(key: &'static str, text: Option<&str>, notes: &mut Vec<String>) -> Option<f64> {
    match number::<f64>(key, text, "a burst in Mbit, 0 or more") {
        Ok(burst) if burst.is_none_or(|burst| burst.is_finite() && burst <= MAX_RATE) => burst,
        Ok(_) => {
            notes.push(format!("annotation {key} is too large, the default burst is used; correct it"));
            None
        }
        Err(error) => {
            notes.push(format!("{error}; until then the default burst is used"));
            None
        }
    }
}

/// Milliseconds as microseconds.
fn milliseconds(key: &'static str, text: Option<&str>) -> Result<u64, Invalid> {
    let value: u64 = number(key, text, "a whole number of milliseconds, 0 or more")?.unwrap_or_default();
    // The kernel counts microseconds in 32 bits.
    value.checked_mul(1000).filter(|us| u32::try_from(*us).is_ok()).ok_or_else(|| Invalid {
        key,
        value: text.unwrap_or_default().to_owned(),
        problem: "is more than 4294967 ms".to_owned(),
        remedy: "correct the annotation or remove it".to_owned(),
    })
}

fn percent(key: &'static str, text: Option<&str>) -> Result<f64, Invalid> {
    let what = "a percentage from 0 to 100";
    match number::<f64>(key, text, what)? {
        None => Ok(0.0),
        Some(value) if value <= 100.0 => Ok(value),
        Some(_) => Err(Invalid {
            key,
            value: text.unwrap_or_default().to_owned(),
            problem: format!("is not {what}"),
            remedy: "correct the annotation or remove it".to_owned(),
        }),
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
