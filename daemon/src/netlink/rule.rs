//! Policy routing rules.

use ipnet::IpNet;
use rtnetlink::IpVersion;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};

use super::{Error, Netlink, Result};

/// A rule that looks up a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// Family.
    pub ipv6: bool,
    /// Priority; lower is asked first.
    pub priority: u32,
    /// Source prefix; any if absent.
    pub source: Option<IpNet>,
    /// Destination prefix; any if absent.
    pub destination: Option<IpNet>,
    /// Firewall mark; any if absent.
    pub mark: Option<u32>,
    /// Mask of the mark.
    pub mask: Option<u32>,
    /// Incoming link's name; any if absent.
    pub input: Option<String>,
    /// Table to look up.
    pub table: u32,
    /// Who made it (`FRA_PROTOCOL`), 0 for nobody in particular.
    pub protocol: u8,
}

impl Rule {
    fn from_message(message: &RuleMessage) -> Option<Self> {
        if message.header.action != RuleAction::ToTable {
            return None;
        }
        let mut rule = Self {
            ipv6: message.header.family == AddressFamily::Inet6,
            priority: 0,
            source: None,
            destination: None,
            mark: None,
            mask: None,
            input: None,
            table: u32::from(message.header.table),
            protocol: 0,
        };
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Priority(priority) => rule.priority = *priority,
                RuleAttribute::Table(table) => rule.table = *table,
                RuleAttribute::Protocol(protocol) => rule.protocol = u8::from(*protocol),
                RuleAttribute::FwMark(mark) => rule.mark = Some(*mark),
                RuleAttribute::FwMask(mask) => rule.mask = Some(*mask),
                RuleAttribute::Iifname(name) => rule.input = Some(name.clone()),
                RuleAttribute::Source(ip) => rule.source = IpNet::new(*ip, message.header.src_len).ok(),
                RuleAttribute::Destination(ip) => {
                    rule.destination = IpNet::new(*ip, message.header.dst_len).ok();
                }
                _ => {}
            }
        }
        Some(rule)
    }

    fn fill(&self, message: &mut RuleMessage) {
        message.header.family = if self.ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
        message.header.action = RuleAction::ToTable;
        // Tables above 255 do not fit the header; the attribute holds any.
        message.header.table = u8::try_from(self.table).unwrap_or(0);
        message.header.src_len = self.source.map_or(0, |net| net.prefix_len());
        message.header.dst_len = self.destination.map_or(0, |net| net.prefix_len());
        message.attributes.clear();
        message.attributes.push(RuleAttribute::Priority(self.priority));
        message.attributes.push(RuleAttribute::Table(self.table));
        message.attributes.extend(self.source.map(|net| RuleAttribute::Source(net.addr())));
        message.attributes.extend(self.destination.map(|net| RuleAttribute::Destination(net.addr())));
        message.attributes.extend(self.mark.map(RuleAttribute::FwMark));
        message.attributes.extend(self.mask.map(RuleAttribute::FwMask));
        if self.protocol > 0 {
            message.attributes.push(RuleAttribute::Protocol(RouteProtocol::from(self.protocol)));
        }
        message.attributes.extend(self.input.clone().map(RuleAttribute::Iifname));
    }
}

impl Netlink {
    /// Rules of both families that look up a table.
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub async fn rules(&self) -> Result<Vec<Rule>> {
        let mut rules = Vec::new();
        for version in [IpVersion::V4, IpVersion::V6] {
            let read = |message: RuleMessage| Rule::from_message(&message);
            rules.extend(
                self.list("list rules", move |handle| handle.rule().get(version).execute(), read).await?,
            );
        }
        Ok(rules)
    }

    /// Adds a rule; one that is there is a success.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn add_rule(&self, rule: &Rule) -> Result<()> {
        let mut request = self.handle.rule().add();
        rule.fill(request.message_mut());
        match request.execute().await {
            Ok(()) => {
                crate::steps::done("add rule").await;
                Ok(())
            }
            Err(error) => {
                let error = Error::netlink(format!("add rule {}", rule.priority), error);
                if error.is_existing() { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Deletes a rule; a missing one is a success.
    ///
    /// # Errors
    /// Any other refusal.
    pub async fn delete_rule(&self, rule: &Rule) -> Result<()> {
        let mut message = RuleMessage::default();
        rule.fill(&mut message);
        match self.handle.rule().del(message).execute().await {
            Ok(()) => {
                crate::steps::done("delete rule").await;
                Ok(())
            }
            Err(error) => {
                let error = Error::netlink(format!("delete rule {}", rule.priority), error);
                if error.is_missing() { Ok(()) } else { Err(error) }
            }
        }
    }
}
