//! Packets that somebody says to have dropped: the switches of the nodes and the
//! machine's own queues. Taken before and after, the difference explains a loss.
//!
//! In: a running cluster. Out: counters by name.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::cluster::Cluster;

/// Counters by who counts and what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops(BTreeMap<String, u64>);

impl Drops {
    /// Takes them.
    pub fn take(cluster: &Cluster) -> Result<Self> {
        let mut all = BTreeMap::new();
        for node in cluster.nodes()? {
            let mut add = |args: &[&str], read: fn(&str) -> Vec<(String, u64)>| -> Result<()> {
                let text = cluster.in_switch(&node, args)?;
                all.extend(read(&text).into_iter().map(|(what, n)| (format!("{} {what}", node.name), n)));
                Ok(())
            };
            add(&["ovs-appctl", "coverage/show"], coverage)?;
            add(&["ovs-appctl", "dpctl/show", "-s"], datapath)?;
        }
        all.extend(backlog(&std::fs::read_to_string("/proc/net/softnet_stat")?));
        Ok(Self(all))
    }

    /// What has grown since `before`.
    pub fn since(&self, before: &Self) -> Vec<String> {
        let grown = self.0.iter().filter_map(|(what, now)| {
            let more = now.saturating_sub(before.0.get(what).copied().unwrap_or(0));
            (more > 0).then(|| format!("{what} +{more}"))
        });
        grown.collect()
    }
}

/// Counters of the switch's own events that mean a packet less.
fn coverage(text: &str) -> Vec<(String, u64)> {
    let lines = text.lines().filter_map(|line| {
        let (name, _) = line.split_once(char::is_whitespace)?;
        let total = line.rsplit_once("total: ")?.1.trim().parse().ok()?;
        ["drop", "lost", "discard"].iter().any(|word| name.contains(word)).then(|| (name.to_owned(), total))
    });
    lines.collect()
}

/// Upcalls that were lost, and what the ports of the datapath dropped.
fn datapath(text: &str) -> Vec<(String, u64)> {
    let mut port = String::new();
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("port ") {
            rest.split_whitespace().nth(1).unwrap_or_default().clone_into(&mut port);
        }
        let side = line.split_whitespace().next().unwrap_or_default();
        for word in line.split_whitespace() {
            for key in ["dropped", "errors", "lost"] {
                let value = word.strip_prefix(key).and_then(|rest| rest.strip_prefix(':')?.parse().ok());
                if let Some(value) = value {
                    found.push((format!("{port} {side} {key}"), value));
                }
            }
        }
    }
    found
}

/// Packets that found the kernel's queue between links full, of all processors.
fn backlog(text: &str) -> Vec<(String, u64)> {
    let column = |number: usize| {
        let values = text.lines().filter_map(|line| line.split_whitespace().nth(number));
        values.filter_map(|value| u64::from_str_radix(value, 16).ok()).sum()
    };
    vec![("machine backlog dropped".to_owned(), column(1))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_name() {
        let text = "Event coverage, avg rate over last: 5 seconds, hash=1:\n\
                    datapath_drop_upcall_error   0.0/sec     0.000/sec        0.0000/sec   total: 7\n\
                    bridge_reconfigure   0.0/sec     0.017/sec        0.0003/sec   total: 2\n";
        assert_eq!(coverage(text), [("datapath_drop_upcall_error".to_owned(), 7)]);
        let text = "netdev@ovs-netdev:\n  lookups: hit:9 missed:4 lost:2\n  port 3: eth1\n    \
                    RX packets:1 errors:0 dropped:5 overruns:? frame:?\n";
        let pair = |what: &str, n| (what.to_owned(), n);
        assert_eq!(
            datapath(text),
            [pair(" lookups: lost", 2), pair("eth1 RX errors", 0), pair("eth1 RX dropped", 5)]
        );
        assert_eq!(backlog("0000 00000010 0\n0000 00000001 0\n"), [pair("machine backlog dropped", 17)]);
        let before = Drops([pair("a", 1), pair("b", 1)].into());
        let after = Drops([pair("a", 3), pair("b", 1), pair("c", 1)].into());
        assert_eq!(after.since(&before), ["a +2", "c +1"]);
    }
}
