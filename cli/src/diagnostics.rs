//! `status`, `explain`, `plan`, `verify` and `watch`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use jsonrpsee::core::client::{Client, ClientT, Subscription, SubscriptionClientT};
use jsonrpsee::core::params::ObjectParams;
use jsonrpsee::rpc_params;
use serde_json::Value;

use crate::arguments::{Controller, Explain, Status, Watch, Whom};
use crate::kubectl::Cluster;
use crate::rpc;
use crate::target::{self, Target};
use crate::text;

/// Where the image has this program.
const WEIR: &str = "/kube-ovn/weir";

/// `weir status`.
pub(crate) fn status(cluster: &Cluster, options: &Status) -> Result<ExitCode> {
    ask(cluster, &options.whom, &["status"], async |client| {
        show(&client.request("status", rpc_params![]).await?, options.whom.json)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// `weir explain`.
pub(crate) fn explain(cluster: &Cluster, options: &Explain) -> Result<ExitCode> {
    let (namespace, name) = options.name.split_once('/').unwrap_or(("", &options.name));
    ask(cluster, &options.whom, &["explain", &options.kind, &options.name], async |client| {
        let mut params = ObjectParams::new();
        params.insert("kind", &options.kind)?;
        params.insert("namespace", namespace)?;
        params.insert("name", name)?;
        show(&client.request("explain", params).await?, options.whom.json)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// `weir plan`.
pub(crate) fn plan(cluster: &Cluster, options: &Controller) -> Result<ExitCode> {
    ask(cluster, &options.whom(), &["plan"], async |client| {
        let answer: Value = client.request("plan", rpc_params![]).await?;
        if options.json {
            show(&answer, true)?
        } else {
            crate::print(&planned(&answer))?
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The plan, one change a line.
fn planned(answer: &Value) -> String {
    let lines: Vec<&str> = answer.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    match lines.as_slice() {
        [] => "nothing to change: the northbound database is as it should be\n".to_owned(),
        lines => lines.iter().map(|line| format!("{line}\n")).collect(),
    }
}

/// `weir verify`.
pub(crate) fn verify(cluster: &Cluster, options: &Controller) -> Result<ExitCode> {
    ask(cluster, &options.whom(), &["verify"], async |client| {
        let answer: Value = client.request("verify", rpc_params![]).await?;
        if options.json {
            show(&answer, true)?
        } else {
            crate::print(&verified(&answer))?
        }
        let fine = answer["verified"] == true && answer["differences"] == 0;
        Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

/// The result of a verification in words.
fn verified(answer: &Value) -> String {
    if answer["verified"] != true {
        return "nothing to verify yet: the controller has not loaded everything, see `weir status`\n"
            .to_owned();
    }
    let (units, seconds) = (&answer["units"], answer["seconds"].as_f64().unwrap_or_default());
    if answer["differences"] == 0 {
        return format!("{units} units compiled anew in {seconds:.2} s, no difference\n");
    }
    let mut text = format!(
        "{} differences in {units} units: this is a bug of Weir. Please report the lines below; restarting the \
         controller heals it.\n",
        answer["differences"]
    );
    let first = answer["first"].as_array().into_iter().flatten().filter_map(Value::as_str);
    first.for_each(|line| {
        let _ = writeln!(text, "{line}");
    });
    text
}

/// `weir watch`.
pub(crate) fn watch(cluster: &Cluster, options: &Watch) -> Result<ExitCode> {
    ask(cluster, &options.whom, &["watch"], async |client| {
        let mut changes: Subscription<Value> =
            client.subscribe("subscribe_changes", rpc_params![], "unsubscribe_changes").await?;
        while let Some(change) = changes.next().await {
            let change = change?;
            let text = if options.whom.json { change.to_string() } else { line(&change) };
            crate::print(&format!("{text}\n"))?;
        }
        anyhow::bail!("the connection was closed")
    })
}

/// Asks here, or runs the same command where the answer is.
fn ask(
    cluster: &Cluster,
    whom: &Whom,
    command: &[&str],
    question: impl AsyncFnOnce(&Client) -> Result<ExitCode>,
) -> Result<ExitCode> {
    match target::find(cluster, whom)? {
        Target::Local(socket) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let client = connect(&socket).await?;
                question(&client).await
            })
        }
        Target::Pod(container, socket) => {
            let mut program: Vec<OsString> = vec![WEIR.into()];
            program.extend(command.iter().map(OsString::from));
            program.extend(["--socket", socket].map(OsString::from));
            program.extend(whom.json.then(|| OsString::from("--json")));
            cluster.exec(&container, &program)
        }
    }
}

async fn connect(socket: &Path) -> Result<Client> {
    rpc::connect(socket)
        .await
        .with_context(|| format!("nobody answers at {}; is the process running here?", socket.display()))
}

fn show(answer: &Value, json: bool) -> Result<()> {
    let text = if json { format!("{answer:#}\n") } else { text::render(answer) };
    Ok(crate::print(&text)?)
}

/// A change on one line: time of day (UTC), what changed, and the rest as `key=value`.
fn line(change: &Value) -> String {
    let Some(fields) = change.as_object() else { return change.to_string() };
    let mut line = String::new();
    if let Some(ms) = fields.get("unix_ms").and_then(Value::as_u64) {
        let (s, ms) = (ms / 1000, ms % 1000);
        let _ = write!(line, "{:02}:{:02}:{:02}.{ms:03} ", s / 3600 % 24, s / 60 % 60, s % 60);
    }
    line.push_str(fields.get("change").and_then(Value::as_str).unwrap_or("change"));
    for (key, value) in fields {
        if matches!(key.as_str(), "unix_ms" | "change" | "seq") || value.is_null() {
            continue;
        }
        let _ = match value {
            Value::String(text) => write!(line, " {key}={text}"),
            Value::Array(items) => write!(line, " {key}={}", summary(items)),
            other => write!(line, " {key}={}", shortened(other.to_string())),
        };
    }
    line
}

/// Operations and rows by what is done to which table; `--json` has them whole.
fn summary(items: &[Value]) -> String {
    let named = items.iter().map(|item| {
        let what = item.get("op").or_else(|| item.get("what"))?.as_str()?;
        Some(format!("{what} {}", item.get("table")?.as_str()?))
    });
    match named.collect::<Option<Vec<_>>>() {
        Some(named) => format!("[{}]", named.join(", ")),
        None => shortened(Value::Array(items.to_vec()).to_string()),
    }
}

/// As much of a text as a line bears.
fn shortened(mut text: String) -> String {
    const LONGEST: usize = 200;
    if let Some((at, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(at);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plans_and_verifications_are_told_in_words() {
        assert!(planned(&json!([])).starts_with("nothing to change"));
        assert_eq!(
            planned(&json!(["add Logical_Switch a", "delete Policy b"])),
            "add Logical_Switch a\ndelete Policy b\n"
        );
        let answer = json!({ "verified": true, "units": 7, "seconds": 0.5, "differences": 0, "first": [] });
        assert_eq!(verified(&answer), "7 units compiled anew in 0.50 s, no difference\n");
        let answer =
            json!({ "verified": true, "units": 7, "seconds": 0.5, "differences": 1, "first": ["row x"] });
        assert!(
            verified(&answer).starts_with("1 differences in 7 units")
                && verified(&answer).ends_with("\nrow x\n")
        );
        assert!(verified(&json!({ "verified": false })).contains("weir status"));
    }

    #[test]
    fn changes_are_lines() {
        let change = json!({
            "seq": 3, "unix_ms": 1_796_008_270_007_u64, "change": "patched",
            "object": "Pod web/a-0", "operations": 2, "none": null,
        });
        assert_eq!(line(&change), "03:11:10.007 patched object=Pod web/a-0 operations=2");
        assert_eq!(line(&json!({ "change": "lagged", "missed": 4 })), "lagged missed=4");
        assert_eq!(line(&json!(5)), "5");
        let operations = json!([{ "op": "wait", "table": "NB_Global" }, { "op": "insert", "table": "ACL" }]);
        assert_eq!(
            line(&json!({ "change": "t", "operations": operations })),
            "t operations=[wait NB_Global, insert ACL]"
        );
        assert_eq!(line(&json!({ "change": "t", "a": [1, 2] })), "t a=[1,2]");
        let long = line(&json!({ "change": "t", "content": { "x": "é".repeat(500) } }));
        assert!(long.ends_with('…') && long.chars().count() < 220, "{long}");
    }
}
