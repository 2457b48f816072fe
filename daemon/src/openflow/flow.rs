//! Flows and their bytes. Pure.
//!
//! One shape is written: packets of a transport protocol to one address and port that came in by one port in one VLAN get
//! another destination MAC and leave by one port, with the tag that they had. What is read may be anything; what has not that shape is kept as bytes, by
//! which it can be taken away.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::wire::{Reader, Writer, padding};
use crate::netlink::Mac;

/// Any port, any group.
pub(super) const ANY: u32 = u32::MAX;
/// All tables.
pub(super) const ALL_TABLES: u8 = 0xff;
/// No packet waits in the switch for the flow.
const NO_BUFFER: u32 = u32::MAX;
/// The class of OpenFlow's own match fields.
const OPENFLOW_BASIC: u16 = 0x8000;
const ADD: u8 = 0;
const DELETE_STRICT: u8 = 4;
const APPLY_ACTIONS: u16 = 4;
const OUTPUT: u16 = 0;
const SET_FIELD: u16 = 25;

/// Match fields (specification, §7.2.3.7).
mod field {
    pub(super) const IN_PORT: u8 = 0;
    pub(super) const ETH_DST: u8 = 3;
    pub(super) const ETH_TYPE: u8 = 5;
    pub(super) const VLAN_VID: u8 = 6;
    pub(super) const IP_PROTO: u8 = 10;
    pub(super) const IPV4_DST: u8 = 12;
    pub(super) const IPV6_DST: u8 = 27;
}

/// In the VLAN field: there is a tag.
const TAGGED: u16 = 0x1000;
/// In the VLAN field: the id.
const VLAN_ID: u16 = 0x0fff;

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// IP's number of it.
    fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    /// The match field of its destination port.
    fn field(self) -> u8 {
        match self {
            Self::Tcp => 14,
            Self::Udp => 16,
        }
    }
}

/// A flow of table 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Whose it is.
    pub cookie: u64,
    /// The highest that matches counts.
    pub priority: u16,
    /// OpenFlow number of the port that packets come in by.
    pub in_port: u32,
    /// Id of their VLAN tag; 0 is no tag, or one that has a priority alone.
    pub vlan: u16,
    /// Their protocol.
    pub protocol: Protocol,
    /// Their destination.
    pub destination: IpAddr,
    /// Their destination port.
    pub port: u16,
    /// The destination MAC that they get.
    pub mac: Mac,
    /// OpenFlow number of the port that they leave by.
    pub output: u32,
}

/// A flow as the switch tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its table.
    pub table: u8,
    /// Its priority.
    pub priority: u16,
    /// Its cookie.
    pub cookie: u64,
    /// The bytes of its match.
    matching: Vec<u8>,
    /// The flow, if it has the shape that is written and stays for ever.
    pub flow: Option<Flow>,
}

/// What has to go and what has to come. A flow that is there twice is there once too often.
pub fn difference<'a>(have: &'a [Seen], wanted: &'a BTreeSet<Flow>) -> (Vec<&'a Seen>, Vec<&'a Flow>) {
    let mut there: BTreeSet<&Flow> = BTreeSet::new();
    let gone = have.iter().filter(|seen| match &seen.flow {
        Some(flow) if wanted.contains(flow) => !there.insert(flow),
        _ => true,
    });
    let gone = gone.collect();
    (gone, wanted.iter().filter(|flow| !there.contains(flow)).collect())
}

fn oxm(out: &mut Writer, field: u8, value: &[u8]) {
    let length = u8::try_from(value.len()).unwrap_or_default();
    out.u16(OPENFLOW_BASIC).u8(field << 1).u8(length).bytes(value);
}

/// The match field of a VLAN: id and presence of the tag, or that there is no id. Its bytes with the mask behind them.
fn vlan(out: &mut Writer, id: u16) {
    match id & VLAN_ID {
        0 => {
            out.u16(OPENFLOW_BASIC).u8(field::VLAN_VID << 1 | 1).u8(4).u16(0).u16(VLAN_ID);
        }
        id => oxm(out, field::VLAN_VID, &(TAGGED | id).to_be_bytes()),
    }
}

/// The id that such a field has; `None` if it has another shape.
fn vlan_of(value: &[u8]) -> Option<u16> {
    let mut reader = Reader(value);
    let value = reader.u16()?;
    let mask = if reader.0.is_empty() { VLAN_ID | TAGGED } else { reader.u16()? };
    match (value, mask) {
        (0, VLAN_ID) => Some(0),
        (value, mask) if mask == VLAN_ID | TAGGED && value > TAGGED => Some(value & VLAN_ID),
        _ => None,
    }
}

impl Flow {
    fn matching(&self) -> Vec<u8> {
        let mut out = Writer::default();
        oxm(&mut out, field::IN_PORT, &self.in_port.to_be_bytes());
        let ether: u16 = if self.destination.is_ipv4() { 0x0800 } else { 0x86dd };
        oxm(&mut out, field::ETH_TYPE, &ether.to_be_bytes());
        vlan(&mut out, self.vlan);
        oxm(&mut out, field::IP_PROTO, &[self.protocol.number()]);
        match self.destination {
            IpAddr::V4(ip) => oxm(&mut out, field::IPV4_DST, &ip.octets()),
            IpAddr::V6(ip) => oxm(&mut out, field::IPV6_DST, &ip.octets()),
        }
        oxm(&mut out, self.protocol.field(), &self.port.to_be_bytes());
        out.0
    }

    fn actions(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u16(SET_FIELD).u16(16);
        oxm(&mut out, field::ETH_DST, &self.mac.0);
        out.zeros(2);
        // How much of a packet goes to a controller: to none.
        out.u16(OUTPUT).u16(16).u32(self.output).u16(0).zeros(6);
        out.0
    }

    /// The body of the message that adds it.
    pub(super) fn add(&self) -> Vec<u8> {
        let mut out = flow_mod((self.cookie, 0), 0, ADD, self.priority);
        match_field(&mut out, &self.matching());
        let actions = self.actions();
        let length = u16::try_from(8 + actions.len()).unwrap_or_default();
        out.u16(APPLY_ACTIONS).u16(length).zeros(4).bytes(&actions);
        out.0
    }

    fn read(matching: &[u8], instructions: &[u8]) -> Option<Self> {
        let fields = fields(matching)?;
        let value = |field: u8| fields.get(&field).copied();
        let number = value(field::IP_PROTO)?;
        let protocol = [Protocol::Tcp, Protocol::Udp].into_iter().find(|one| [one.number()] == *number)?;
        let destination = match (value(field::IPV4_DST), value(field::IPV6_DST)) {
            (Some(ip), None) => IpAddr::from(<[u8; 4]>::try_from(ip).ok()?),
            (None, Some(ip)) => IpAddr::from(<[u8; 16]>::try_from(ip).ok()?),
            _ => return None,
        };
        let mut reader = Reader(instructions);
        let (APPLY_ACTIONS, 40) = (reader.u16()?, reader.u16()?) else { return None };
        reader.take(4)?;
        let (SET_FIELD, 16, OPENFLOW_BASIC) = (reader.u16()?, reader.u16()?, reader.u16()?) else {
            return None;
        };
        reader.take(2)?;
        let mac = Mac(reader.take(6)?.try_into().ok()?);
        reader.take(2)?;
        let (OUTPUT, 16) = (reader.u16()?, reader.u16()?) else { return None };
        let flow = Self {
            cookie: 0,
            priority: 0,
            in_port: Reader(value(field::IN_PORT)?).u32()?,
            vlan: vlan_of(value(field::VLAN_VID)?)?,
            protocol,
            destination,
            port: Reader(value(protocol.field())?).u16()?,
            mac,
            output: reader.u32()?,
        };
        // Nothing else in match and actions.
        let own = flow.matching();
        let whole = self::fields(&own).as_ref() == Some(&fields);
        (whole && flow.actions().as_slice() == instructions.get(8..)?).then_some(flow)
    }
}

/// Match fields of OpenFlow's own class, of which the VLAN's alone may have a mask; `None` if there is another one.
fn fields(matching: &[u8]) -> Option<BTreeMap<u8, &[u8]>> {
    let mut reader = Reader(matching);
    let mut all = BTreeMap::new();
    while !reader.0.is_empty() {
        let (class, field, length) = (reader.u16()?, reader.u8()?, reader.u8()?);
        let value = reader.take(usize::from(length))?;
        let masked = field & 1 != 0;
        // A mask is as long as what it masks.
        let maskable = field >> 1 == self::field::VLAN_VID;
        if class != OPENFLOW_BASIC || masked != (maskable && length == 4) {
            return None;
        }
        all.insert(field >> 1, value);
    }
    Some(all)
}

/// What is in front of the match.
fn flow_mod((cookie, mask): (u64, u64), table: u8, command: u8, priority: u16) -> Writer {
    let mut out = Writer::default();
    out.u64(cookie).u64(mask).u8(table).u8(command);
    // No timeouts; whatever group and port; no flags, no importance.
    out.u16(0).u16(0).u16(priority).u32(NO_BUFFER).u32(ANY).u32(ANY).u16(0).u16(0);
    out
}

/// A match with its header and padding.
pub(super) fn match_field(out: &mut Writer, matching: &[u8]) {
    let length = 4 + matching.len();
    out.u16(1).u16(u16::try_from(length).unwrap_or_default()).bytes(matching).zeros(padding(length));
}

impl Seen {
    /// The body of the message that deletes it, and nothing else.
    pub(super) fn delete(&self) -> Vec<u8> {
        let mut out = flow_mod((self.cookie, u64::MAX), self.table, DELETE_STRICT, self.priority);
        match_field(&mut out, &self.matching);
        out.0
    }

    /// The flows in the body of an answer about flows' statistics.
    pub(super) fn read_all(body: &[u8]) -> Option<Vec<Self>> {
        let mut reader = Reader(body);
        let mut all = Vec::new();
        while !reader.0.is_empty() {
            let length = usize::from(Reader(reader.0).u16()?);
            all.push(Self::read(reader.take(length)?)?);
        }
        Some(all)
    }

    fn read(entry: &[u8]) -> Option<Self> {
        let mut reader = Reader(entry);
        reader.take(2)?;
        let table = reader.u8()?;
        reader.take(1 + 4 + 4)?;
        let (priority, idle, hard) = (reader.u16()?, reader.u16()?, reader.u16()?);
        // Flags, importance.
        reader.take(2 + 2 + 2)?;
        let cookie = reader.u64()?;
        // How much passed it.
        reader.take(8 + 8)?;
        let 1 = reader.u16()? else { return None };
        let length = usize::from(reader.u16()?);
        let matching = reader.take(length.checked_sub(4)?)?.to_vec();
        reader.take(padding(length))?;
        let stays = table == 0 && idle == 0 && hard == 0;
        let flow = Flow::read(&matching, reader.0).filter(|_| stays);
        let flow = flow.map(|flow| Flow { cookie, priority, ..flow });
        Some(Self { table, priority, cookie, matching, flow })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flow() -> impl Strategy<Value = Flow> {
        let numbers = (any::<u64>(), any::<u16>(), any::<u32>(), any::<u16>(), any::<u32>(), 0..4096_u16);
        (numbers, any::<bool>(), any::<IpAddr>(), any::<[u8; 6]>()).prop_map(
            |(numbers, tcp, destination, mac)| {
                let (cookie, priority, in_port, port, output, vlan) = numbers;
                let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
                Flow { cookie, priority, in_port, vlan, protocol, destination, port, mac: Mac(mac), output }
            },
        )
    }

    /// As the switch tells of it: what `add` carries, in other places.
    fn told(flow: &Flow, timeout: u16) -> Vec<u8> {
        let added = flow.add();
        let rest = &added[40..];
        let mut out = Writer::default();
        out.u16(u16::try_from(48 + rest.len()).unwrap())
            .u8(0)
            .zeros(9)
            .u16(flow.priority)
            .u16(timeout)
            .zeros(8);
        out.u64(flow.cookie).zeros(16).bytes(rest);
        out.0
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(flow in flow()) {
            let seen = Seen::read_all(&told(&flow, 0)).unwrap();
            prop_assert_eq!(seen.len(), 1);
            prop_assert_eq!(seen[0].flow.as_ref(), Some(&flow));
            prop_assert_eq!(Seen::read_all(&told(&flow, 9)).unwrap()[0].flow.clone(), None, "it would end by itself");
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = Seen::read_all(&bytes);
        }

        #[test]
        fn a_changed_byte_is_another_flow_or_none(flow in flow(), at in 48_usize..128, bit in 0_u8..8) {
            let mut bytes = told(&flow, 0);
            let at = at.min(bytes.len() - 1);
            bytes[at] ^= 1 << bit;
            // Padding may be anything; all else counts.
            let length = usize::from(u16::from_be_bytes([bytes[50], bytes[51]]));
            let padded = (48 + length..48 + length.next_multiple_of(8)).contains(&at);
            let unread = (bytes.len() - 36..bytes.len() - 32).contains(&at);
            if let Some(all) = Seen::read_all(&bytes).filter(|_| !padded && !unread) {
                prop_assert_ne!(all[0].flow.as_ref(), Some(&flow));
            }
        }
    }

    #[test]
    fn a_mask_that_is_missing_or_too_much_is_no_flow_of_ours() {
        for vlan in [0, 5] {
            let flow = Flow {
                cookie: 1,
                priority: 1,
                in_port: 2,
                vlan,
                protocol: Protocol::Tcp,
                destination: "10.0.0.1".parse().unwrap(),
                port: 80,
                mac: Mac([2; 6]),
                output: 2,
            };
            let bytes = told(&flow, 0);
            let is_vlan = |at: &usize| {
                bytes[at - 2..*at] == OPENFLOW_BASIC.to_be_bytes() && bytes[*at] >> 1 == field::VLAN_VID
            };
            let at = (52..bytes.len()).find(is_vlan).unwrap();
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(Seen::read_all(&other).unwrap()[0].flow, None, "{vlan}");
        }
    }

    #[test]
    fn only_what_differs_is_written() {
        let flow = |port| Flow {
            cookie: 0x1000,
            priority: 10000,
            in_port: 1,
            vlan: 0,
            protocol: Protocol::Tcp,
            destination: "10.0.0.1".parse().unwrap(),
            port,
            mac: Mac([2; 6]),
            output: 2,
        };
        let seen = |flow: &Flow| Seen::read_all(&told(flow, 0)).unwrap().remove(0);
        let have = [seen(&flow(80)), seen(&flow(81))];
        let wanted = BTreeSet::from([flow(80), flow(82)]);
        assert_eq!(difference(&have, &wanted), (vec![&have[1]], vec![&flow(82)]));
        let twice = [seen(&flow(80)), seen(&flow(80))];
        let (gone, new) = difference(&twice, &wanted);
        assert_eq!((gone.len(), new), (1, vec![&flow(82)]));
        // A flow with another MAC is another flow.
        let other = Flow { mac: Mac([4; 6]), ..flow(80) };
        let wanted = BTreeSet::from([other.clone()]);
        assert_eq!(difference(&have[..1], &wanted), (vec![&have[0]], vec![&other]));
    }
}
