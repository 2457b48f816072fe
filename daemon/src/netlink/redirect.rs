//! What comes in by a link, led through another one (an `ifb`): the root discipline there can hold it back before the
//! host sees it.

use futures::StreamExt;
use netlink_packet_core::{
    Emitable, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload, NlaBuffer, NlasIterator,
};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::InfoKind;
use rtnetlink::packet_route::tc::{
    TcAction, TcActionAttribute, TcActionMirrorOption, TcActionOption, TcAttribute, TcFilterMatchAllOption,
    TcFilterU32Option, TcHandle, TcMessage, TcOption,
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use super::tc::{RATE_AT, attribute, kind_of, long, option, signed, word};
use super::{Error, Netlink, Result};
use crate::steps;

/// Priority of our filter, by which it is known.
const PRIORITY: u16 = 0x5745;
/// All packets.
const ETH_P_ALL: u16 = 3;
/// Where filters of the `ingress` discipline hang.
const INGRESS: TcHandle = TcHandle { major: u16::MAX, minor: 0 };

/// Attributes of a filter `basic`: its actions, and policing as older kernels take it.
const TCA_BASIC_ACT: u16 = 3;
const TCA_BASIC_POLICE: u16 = 4;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_POLICE_TBF: u16 = 1;
const TCA_POLICE_RATE64: u16 = 8;
/// Where `struct tc_police` has its `tc_ratespec`.
const POLICE_RATE: usize = 20;

/// A filter of what comes in.
struct Filter {
    priority: u16,
    /// The link that it leads to.
    to: Option<u32>,
    /// Bytes a second that it lets pass.
    police: Option<u64>,
}

/// The link that a filter's action leads to.
fn target(message: &TcMessage) -> Option<u32> {
    let options = message.attributes.iter().filter_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    });
    let actions = options.flatten().filter_map(|option| match option {
        TcOption::U32(TcFilterU32Option::Action(actions)) => Some(actions),
        _ => None,
    });
    let attributes = actions.flatten().flat_map(|action| &action.attributes);
    let options = attributes.filter_map(|attribute| match attribute {
        TcActionAttribute::Options(options) => Some(options),
        _ => None,
    });
    options.flatten().find_map(|option| match option {
        TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror)) => Some(mirror.ifindex),
        _ => None,
    })
}

/// The rate of a policing of all packets, by which ovs-vswitchd limits: a filter `matchall` or `basic` with action
/// `police`.
fn policed(message: &TcMessage) -> Option<u64> {
    match kind_of(message) {
        "basic" => option(message, TCA_BASIC_POLICE).and_then(|police| police_rate(&police)).or_else(|| {
            // One attribute each, numbered.
            let actions = option(message, TCA_BASIC_ACT)?;
            NlasIterator::new(actions.as_slice()).flatten().find_map(|action: NlaBuffer<&[u8]>| {
                let kind = attribute(action.value(), TCA_ACT_KIND)?;
                let police = kind == b"police\0";
                police_rate(&attribute(action.value(), TCA_ACT_OPTIONS).filter(|_| police)?)
            })
        }),
        "matchall" => {
            let options = message.attributes.iter().filter_map(|attribute| match attribute {
                TcAttribute::Options(options) => Some(options),
                _ => None,
            });
            let actions = options.flatten().filter_map(|option| match option {
                TcOption::MatchAll(TcFilterMatchAllOption::Action(actions)) => Some(actions),
                _ => None,
            });
            actions.flatten().find_map(|action| police_rate(&police_options(action)?))
        }
        _ => None,
    }
}

/// The options of an action, if it is `police`.
fn police_options(action: &TcAction) -> Option<Vec<u8>> {
    let is_police = |attribute: &_| matches!(attribute, TcActionAttribute::Kind(kind) if kind == "police");
    if !action.attributes.iter().any(is_police) {
        return None;
    }
    let options = action.attributes.iter().find_map(|attribute| match attribute {
        TcActionAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    let options = options.as_slice();
    let mut bytes = vec![0; options.buffer_len()];
    options.emit(&mut bytes);
    Some(bytes)
}

fn police_rate(options: &[u8]) -> Option<u64> {
    let exact = attribute(options, TCA_POLICE_RATE64).and_then(|bytes| long(&bytes));
    exact.or_else(|| word(&attribute(options, TCA_POLICE_TBF)?, POLICE_RATE + RATE_AT).map(u64::from))
}

impl Netlink {
    /// Makes a link that packets can be led through; it is up on return.
    ///
    /// # Errors
    /// `EEXIST` when the name is taken, `EOPNOTSUPP` when the kernel has no such links.
    pub async fn add_ifb(&self, name: &str, alias: &str) -> Result<()> {
        let message =
            LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::Ifb).name(name.to_owned()).build();
        let error = |error| Error::netlink(format!("create ifb {name}"), error);
        self.handle.link().add(message).execute().await.map_err(error)?;
        steps::done("create ifb").await;
        let link = self.require_link(name).await?;
        self.set_up_as(link.index, alias).await
    }

    async fn ingress_filters(&self, index: u32) -> Result<Vec<Filter>> {
        if !self.qdiscs(index).await?.iter().any(|qdisc| qdisc.kind == "ingress" || qdisc.kind == "clsact") {
            return Ok(Vec::new());
        }
        let mut message = TcMessage::with_index(signed(index)?);
        message.header.parent = INGRESS;
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetTrafficFilter(message));
        request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        self.dump(move |mut handle| async move {
            let error = |error| Error::netlink(format!("list the filters of link {index}"), error);
            let mut stream = std::pin::pin!(handle.request(request).map_err(error)?);
            let mut found = Vec::new();
            while let Some(message) = stream.next().await {
                match message.payload {
                    NetlinkPayload::Error(refused) => {
                        return Err(error(rtnetlink::Error::NetlinkError(refused)));
                    }
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewTrafficFilter(filter)) => {
                        let priority = TcHandle::from(filter.header.info).major;
                        found.push(Filter { priority, to: target(&filter), police: policed(&filter) });
                    }
                    _ => {}
                }
            }
            Ok(found)
        })
        .await
    }

    /// Rates, in bytes a second, by which what comes in by a link is policed: the switch's, or somebody else's. Other
    /// filters are no limit.
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub async fn policing_rates(&self, index: u32) -> Result<Vec<u64>> {
        Ok(self.ingress_filters(index).await?.iter().filter_map(|filter| filter.police).collect())
    }

    /// The link that what comes in by a link is led through by us.
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub async fn ingress_led_to(&self, index: u32) -> Result<Option<u32>> {
        let filters = self.ingress_filters(index).await?;
        Ok(filters.iter().filter(|filter| filter.priority == PRIORITY).find_map(|filter| filter.to))
    }

    /// Leads everything that comes in by a link through another one, once; it comes in by the first afterwards.
    ///
    /// # Errors
    /// When the kernel lacks the discipline (`ingress`), the filter (`u32`) or the action (`mirred`).
    pub async fn lead_ingress(&self, index: u32, to: u32) -> Result<()> {
        let (link, operation) =
            (signed(index)?, format!("lead what comes in by link {index} through link {to}"));
        let error = |error| Error::netlink(operation.clone(), error);
        match self.handle.qdisc().add(link).ingress().execute().await.map_err(error) {
            Err(error) if !error.is_existing() => return Err(error),
            // The switch's policing puts it there too.
            _ => {}
        }
        self.unlead(index).await?;
        let filter = self.handle.traffic_filter(link).add();
        let filter = filter.parent(INGRESS.into()).priority(PRIORITY).protocol(ETH_P_ALL.to_be());
        filter.redirect(to).map_err(error)?.execute().await.map_err(error)?;
        steps::done("lead ingress").await;
        Ok(())
    }

    /// What comes in by a link comes in directly again.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn end_lead(&self, index: u32) -> Result<()> {
        self.unlead(index).await?;
        let there = self.qdiscs(index).await?.iter().any(|qdisc| qdisc.kind == "ingress");
        if there && self.ingress_filters(index).await?.is_empty() {
            let mut message = TcMessage::with_index(signed(index)?);
            message.header.parent = TcHandle::INGRESS;
            let message = RouteNetlinkMessage::DelQueueDiscipline(message);
            match self.acknowledged(message, 0, format!("end the filters of link {index}")).await {
                // The switch was quicker.
                Err(error) if error.is_missing() || error.errno() == Some(libc::EINVAL) => {}
                result => result?,
            }
        }
        steps::done("end lead").await;
        Ok(())
    }

    async fn unlead(&self, index: u32) -> Result<()> {
        let mut message = TcMessage::with_index(signed(index)?);
        message.header.parent = INGRESS;
        message.header.info = TcHandle { major: PRIORITY, minor: ETH_P_ALL.to_be() }.into();
        let message = RouteNetlinkMessage::DelTrafficFilter(message);
        match self.acknowledged(message, 0, format!("end the leading of link {index}")).await {
            Err(error) if error.is_missing() || error.errno() == Some(libc::EINVAL) => Ok(()),
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::{DefaultNla, NLA_F_NESTED, NlaBuffer, ParseableParametrized};

    fn nla(kind: u16, value: &[u8]) -> Vec<u8> {
        let attributes = [DefaultNla::new(kind, value.to_vec())];
        let mut bytes = vec![0; attributes.as_slice().buffer_len()];
        attributes.as_slice().emit(&mut bytes);
        bytes
    }

    /// A filter as the kernel tells it, read as the library reads it: these tests run where it has none that polices.
    fn filter(kind: &str, options: &[u8]) -> TcMessage {
        let bytes = nla(2, options);
        let option = NlaBuffer::new_checked(bytes.as_slice()).unwrap();
        let mut message = TcMessage::default();
        let options = TcAttribute::parse_with_param(&option, kind).unwrap();
        message.attributes = vec![TcAttribute::Kind(kind.to_owned()), options];
        message
    }

    fn action(kind: &str, options: &[u8]) -> Vec<u8> {
        let name = format!("{kind}\0");
        nla(1, &[nla(TCA_ACT_KIND, name.as_bytes()), nla(TCA_ACT_OPTIONS | NLA_F_NESTED, options)].concat())
    }

    #[test]
    fn only_policing_is_a_limit() {
        // `struct tc_police`: index, action, limit, burst, mtu, rate, peak rate, three words more.
        let mut police = [0; 56];
        police[28..32].copy_from_slice(&1_250_000u32.to_ne_bytes());
        let slow = nla(TCA_POLICE_TBF, &police);
        let fast = [slow.clone(), nla(TCA_POLICE_RATE64, &5_000_000_000u64.to_ne_bytes())].concat();
        for (options, rate) in [(&slow, 1_250_000), (&fast, 5_000_000_000)] {
            let acts = action("police", options);
            assert_eq!(policed(&filter("matchall", &nla(2 | NLA_F_NESTED, &acts))), Some(rate));
            assert_eq!(policed(&filter("basic", &nla(TCA_BASIC_ACT | NLA_F_NESTED, &acts))), Some(rate));
            assert_eq!(policed(&filter("basic", &nla(TCA_BASIC_POLICE | NLA_F_NESTED, options))), Some(rate));
        }
        let other = action("gact", &nla(2, &[0; 20]));
        assert_eq!(policed(&filter("matchall", &nla(2, &other))), None);
        assert_eq!(policed(&filter("basic", &nla(TCA_BASIC_ACT, &other))), None);
        assert_eq!(policed(&filter("basic", &nla(TCA_BASIC_POLICE, &nla(TCA_POLICE_TBF, &[1; 8])))), None);
        // Not all packets.
        assert_eq!(policed(&filter("fw", &nla(TCA_BASIC_ACT, &action("police", &slow)))), None);
    }
}
