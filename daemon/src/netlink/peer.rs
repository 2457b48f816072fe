//! Where the other end of a link is.

use futures::StreamExt;
use netlink_packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::packet_route::nsid::{NsidAttribute, NsidMessage};

use super::{Error, Link, Netlink, Result};
use crate::sys::Namespace;

impl Netlink {
    /// The other end of one of this namespace's pairs, if it is in `there`, another namespace that `inside` reaches.
    /// The index alone would not tell: most pods' interfaces have the same.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub async fn other_end(&self, link: &Link, there: &Namespace, inside: &Self) -> Result<Option<Link>> {
        let Some(peer) = link.peer else { return Ok(None) };
        let number = self.peer_namespace(link.index).await?;
        if number.is_none() || number != self.number_of(there).await? {
            return Ok(None);
        }
        let mut links = inside.links().await?.into_iter();
        Ok(links.find(|end| end.index == peer && end.peer == Some(link.index)))
    }

    /// This namespace's number of the one that a link's other end is in; `None` if that is this one.
    async fn peer_namespace(&self, index: u32) -> Result<Option<i32>> {
        let mut stream = std::pin::pin!(self.handle.link().get().match_index(index).execute());
        let error = |error| Error::netlink(format!("read link {index}"), error);
        let Some(message) = stream.next().await.transpose().map_err(error)? else { return Ok(None) };
        Ok(message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::LinkNetNsId(number) => Some(*number),
            _ => None,
        }))
    }

    /// This namespace's number of another one; `None` if it has given it none.
    async fn number_of(&self, namespace: &Namespace) -> Result<Option<i32>> {
        let what = "number a namespace";
        let descriptor = u32::try_from(namespace.raw_fd())
            .map_err(|_| Error::io(what.to_owned(), std::io::Error::from_raw_os_error(libc::EBADF)))?;
        let mut message = NsidMessage::default();
        message.attributes = vec![NsidAttribute::Fd(descriptor)];
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetNsId(message));
        request.header.flags = NLM_F_REQUEST;
        let mut handle = self.handle.clone();
        let error = |error| Error::netlink(what.to_owned(), error);
        let mut stream = std::pin::pin!(handle.request(request).map_err(error)?);
        while let Some(message) = stream.next().await {
            match message.payload {
                NetlinkPayload::Error(refused) => {
                    return Err(error(rtnetlink::Error::NetlinkError(refused)));
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNsId(answer)) => {
                    return Ok(answer.attributes.iter().find_map(|attribute| match attribute {
                        NsidAttribute::Id(number) => Some(*number).filter(|number| *number >= 0),
                        _ => None,
                    }));
                }
                _ => {}
            }
        }
        Ok(None)
    }
}
