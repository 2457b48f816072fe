//! Command line and environment of the controller.
//!
//! Flows in: arguments in Go's style (`--flag=value`, `--flag value`, `--bool`)
//! and environment variables. Flows out: [`Flags`] (values as given, with the
//! warnings they deserve) and, from [`settings`], the validated
//! [`settings::Settings`] that everything else is started with.

mod addresses;
mod database;
pub mod settings;
pub mod table;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Arg, ArgAction, Command};

use table::{Effect, FLAGS, Flag, Type};

/// Values of all flags, each readable by its type.
#[derive(Clone, Debug)]
pub struct Flags {
    values: BTreeMap<&'static str, String>,
}

/// The command line, made from the table.
pub fn command() -> Command {
    let mut command = Command::new("kube-ovn-controller")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Weir's cluster controller: Kubernetes objects in, OVN northbound rows out.")
        .after_help(
            "Flags carry Kube-OVN's names and defaults, so its manifests work unchanged; a flag that has no \
             effect in this version is accepted, and one that would change something logs a warning with the \
             remedy.\n\nEnvironment: POD_NAME, POD_NAMESPACE, POD_UID, NODE_NAME, POD_IP, POD_IPS, \
             ENABLE_BIND_LOCAL_IP, OVN_DB_IPS, OVN_NB_ADDR, OVN_NB_SERVICE_HOST, OVN_NB_SERVICE_PORT, OVN_SB_ADDR, \
             OVN_SB_SERVICE_HOST, OVN_SB_SERVICE_PORT, ENABLE_SSL, WEIR_TLS_DIRECTORY, \
             KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT, WEIR_LOG, WEIR_LOG_FORMAT, \
             WEIR_DIAGNOSTICS_SOCKET.\n\nLook around: `curl localhost:10660/metrics`, `weir status`.",
        )
        .args_override_self(true);
    for flag in FLAGS {
        command = command.arg(argument(flag));
    }
    command
}

fn argument(flag: &'static Flag) -> Arg {
    let mut arg = Arg::new(flag.name)
        .long(flag.name)
        .action(ArgAction::Set)
        .default_value(flag.default)
        .help(match flag.effect {
            Effect::Active => flag.help.to_owned(),
            Effect::None(..) => format!("{} (no effect yet)", flag.help),
            Effect::Klog => format!("{} (tolerated)", flag.help),
        })
        .help_heading(flag.group);
    if flag.name == "v" {
        // Go's flag library gives one-letter flags a short form.
        arg = arg.short('v');
    }
    match flag.ty {
        Type::Bool => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("true|false")
            .value_parser(|text: &str| parse_bool(text).map(|_| text.to_owned())),
        Type::Text => arg
            .allow_hyphen_values(true)
            .value_name("TEXT")
            .value_parser(|text: &str| Ok::<_, String>(text.to_owned())),
        Type::Number => arg.value_name("N").value_parser(|text: &str| {
            text.parse::<u64>().map(|_| text.to_owned()).map_err(|_| "expected a whole number, zero or more")
        }),
        Type::Duration(unit) => arg
            .value_name("DURATION")
            .value_parser(move |text: &str| parse_duration(text, unit).map(|_| text.to_owned())),
    }
}

impl Flags {
    /// Parses arguments (the program's name first).
    ///
    /// # Errors
    /// Clap's, which name the flag; `--help` and `--version` are among them.
    pub fn parse_from<I, T>(arguments: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<std::ffi::OsString> + Clone,
    {
        let matches = command().try_get_matches_from(arguments)?;
        let values = FLAGS
            .iter()
            .map(|flag| (flag.name, matches.get_one::<String>(flag.name).cloned().unwrap_or_default()))
            .collect();
        Ok(Self { values })
    }

    /// The value of a flag as given; empty for a name that is none.
    pub fn text(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// The value of a boolean flag.
    pub fn bool(&self, name: &str) -> bool {
        parse_bool(self.text(name)).unwrap_or(false)
    }

    /// The value of a number flag.
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// The value of a duration flag.
    pub fn duration(&self, name: &str) -> Duration {
        let unit = match table::find(name).map(|flag| flag.ty) {
            Some(Type::Duration(unit)) => unit,
            _ => 1_000,
        };
        parse_duration(self.text(name), unit).unwrap_or_default()
    }

    /// What to tell the operator: flags without effect that were given a value for
    /// which that matters, each with the remedy.
    pub fn warnings(&self) -> Vec<String> {
        let terms: Vec<String> = ["tls-min-version", "tls-max-version", "tls-cipher-suites"]
            .into_iter()
            .filter(|name| !self.text(name).is_empty() && !self.bool("secure-serving"))
            .map(|name| {
                format!(
                    "flag --{name}={} has no effect: metrics are served without TLS; add --secure-serving",
                    self.text(name)
                )
            })
            .collect();
        let inert = FLAGS.iter().filter_map(|flag| {
            let Effect::None(harmless, remedy) = flag.effect else { return None };
            let value = self.text(flag.name);
            let same = |other: &str| match flag.ty {
                Type::Bool => parse_bool(value) == parse_bool(other),
                Type::Duration(unit) => parse_duration(value, unit) == parse_duration(other, unit),
                Type::Text | Type::Number => value == other,
            };
            (!same(flag.default) && !harmless.iter().any(|other| same(other)))
                .then(|| format!("flag --{}={value} has no effect in this version: {remedy}", flag.name))
        });
        inert.chain(terms).collect()
    }

    /// Names of klog flags that were given, for one line in the log.
    pub fn tolerated(&self) -> Vec<&'static str> {
        FLAGS
            .iter()
            .filter(|flag| flag.effect == Effect::Klog && self.text(flag.name) != flag.default)
            .map(|flag| flag.name)
            .collect()
    }
}

/// Reads a boolean as Go's `strconv.ParseBool` does.
fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// Reads a Go duration (`300ms`, `1m30s`, `2h`), or a bare number of `unit`
/// milliseconds (Kube-OVN gives some of its times as plain integers).
fn parse_duration(text: &str, unit: u64) -> Result<Duration, String> {
    let wrong = || "expected a duration such as 15s or 1m30s".to_owned();
    if let Ok(number) = text.parse::<u64>() {
        return number.checked_mul(unit).map(Duration::from_millis).ok_or_else(wrong);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (name, tail) = tail.split_at(letters);
        let seconds = match name {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        total += Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
        rest = tail;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn parse(arguments: &[&str]) -> Flags {
        Flags::parse_from(std::iter::once("kube-ovn-controller").chain(arguments.iter().copied())).unwrap()
    }

    #[test]
    fn the_table_is_consistent() {
        command().debug_assert();
        let names: std::collections::BTreeSet<_> = FLAGS.iter().map(|flag| flag.name).collect();
        assert_eq!(names.len(), FLAGS.len());
        assert!(parse(&[]).warnings().is_empty(), "defaults warn of nothing");
        assert!(parse(&[]).tolerated().is_empty());
    }

    #[rstest]
    #[case(&["--enable-lb"], true)]
    #[case(&["--enable-lb=true"], true)]
    #[case(&["--enable-lb=1"], true)]
    #[case(&["--enable-lb=false"], false)]
    #[case(&["--enable-lb=F"], false)]
    #[case(&["--enable-lb=true", "--enable-lb=false"], false)]
    #[case(&["--enable-lb=false", "--enable-lb"], true)]
    fn booleans_read_as_in_go(#[case] arguments: &[&str], #[case] expected: bool) {
        assert_eq!(parse(arguments).bool("enable-lb"), expected);
    }

    #[rstest]
    #[case(&["--default-cidr=10.1.0.0/16"])]
    #[case(&["--default-cidr", "10.1.0.0/16"])]
    #[case(&["--default-cidr=x", "--default-cidr=10.1.0.0/16"])]
    fn texts_take_both_forms_and_the_last_wins(#[case] arguments: &[&str]) {
        assert_eq!(parse(arguments).text("default-cidr"), "10.1.0.0/16");
    }

    #[rstest]
    #[case("15s", 15_000)]
    #[case("15", 15_000)]
    #[case("1m30s", 90_000)]
    #[case("1.5s", 1_500)]
    #[case("300ms", 300)]
    #[case("1h0m0s", 3_600_000)]
    fn durations_read_as_in_go(#[case] text: &str, #[case] milliseconds: u64) {
        let flags = parse(&[&format!("--leader-elect-lease-duration={text}")]);
        assert_eq!(flags.duration("leader-elect-lease-duration"), Duration::from_millis(milliseconds));
    }

    #[rstest]
    #[case("--enable-lb=maybe", "enable-lb")]
    #[case("--leader-elect-lease-duration=soon", "leader-elect-lease-duration")]
    #[case("--leader-elect-lease-duration=-3s", "leader-elect-lease-duration")]
    #[case("--leader-elect-lease-duration=", "leader-elect-lease-duration")]
    #[case("--worker-num=-1", "worker-num")]
    #[case("--no-such-flag", "no-such-flag")]
    fn errors_name_the_flag(#[case] argument: &str, #[case] name: &str) {
        let error = Flags::parse_from(["kube-ovn-controller", argument]).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }

    #[rstest]
    #[case("--enable-np=false", 0)]
    #[case("--enable-np=true", 0)]
    #[case("--enable-anp=true", 1)]
    #[case("--gc-interval=360", 0)]
    #[case("--gc-interval=6m", 0)]
    #[case("--gc-interval=60", 1)]
    #[case("--worker-num=10", 1)]
    #[case("--enable-lb=false", 0)]
    #[case("--tls-min-version=TLS13", 1)]
    #[case("--tls-cipher-suites=x", 1)]
    fn flags_without_effect_warn_with_a_remedy(#[case] argument: &str, #[case] count: usize) {
        let warnings = parse(&[argument]).warnings();
        assert_eq!(warnings.len(), count, "{warnings:?}");
        for warning in warnings {
            let name = argument.split('=').next().unwrap();
            assert!(warning.contains(name) && warning.contains(": "), "{warning}");
        }
    }

    #[test]
    fn a_manifest_of_kube_ovn_starts() {
        let flags = parse(&[
            "--default-ls=ovn-default",
            "--default-cidr=10.16.0.0/16",
            "--default-gateway=10.16.0.1",
            "--default-gateway-check=true",
            "--default-logical-gateway=false",
            "--default-u2o-interconnection=false",
            "--default-exclude-ips=",
            "--cluster-router=ovn-cluster",
            "--node-switch=join",
            "--node-switch-cidr=100.64.0.0/16",
            "--service-cluster-ip-range=10.96.0.0/12",
            "--network-type=geneve",
            "--default-provider-name=provider",
            "--default-interface-name=",
            "--default-exchange-link-name=false",
            "--default-vlan-name=ovn-vlan",
            "--default-vlan-id=100",
            "--ls-dnat-mod-dl-dst=true",
            "--pod-nic-type=veth-pair",
            "--enable-lb=true",
            "--enable-np=true",
            "--enable-eip-snat=true",
            "--gc-interval=360",
            "--inspect-interval=20",
            "--log_file=/var/log/kube-ovn/kube-ovn-controller.log",
            "--log_file_max_size=200",
            "--logtostderr=false",
            "--alsologtostderr=true",
            "--stderrthreshold=0",
            "-v=3",
            "--image=registry/kube-ovn:v1",
        ]);
        assert_eq!(flags.number("v"), 3);
        assert_eq!(flags.tolerated().len(), 5);
        let warnings = flags.warnings();
        assert!(warnings.iter().any(|w| w.contains("--default-vlan-id=100")), "{warnings:?}");
        assert!(warnings.iter().any(|w| w.contains("--image=")), "{warnings:?}");
        assert_eq!(warnings.len(), 2, "{warnings:?}");
    }
}
