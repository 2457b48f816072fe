//! What comes in by a link, led through another one (an `ifb`): the root discipline there can hold it back before the
//! host sees it.

use futures::StreamExt;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::InfoKind;
use rtnetlink::packet_route::tc::{
    TcActionAttribute, TcActionMirrorOption, TcActionOption, TcAttribute, TcFilterU32Option, TcHandle,
    TcMessage, TcOption,
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use super::tc::signed;
use super::{Error, Netlink, Result};
use crate::steps;

/// Priority of our filter, by which it is known.
const PRIORITY: u16 = 0x5745;
/// All packets.
const ETH_P_ALL: u16 = 3;
/// Where filters of the `ingress` discipline hang.
const INGRESS: TcHandle = TcHandle { major: u16::MAX, minor: 0 };

/// A filter of what comes in.
struct Filter {
    priority: u16,
    /// The link that it leads to.
    to: Option<u32>,
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
                        found.push(Filter { priority, to: target(&filter) });
                    }
                    _ => {}
                }
            }
            Ok(found)
        })
        .await
    }

    /// Whether somebody else filters what comes in by a link (the switch's policing does).
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub async fn filters_ingress(&self, index: u32) -> Result<bool> {
        Ok(self.ingress_filters(index).await?.iter().any(|filter| filter.priority != PRIORITY))
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
