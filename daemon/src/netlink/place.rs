//! Puts addresses and routes on links and takes them off, exactly as they are told ([`super::exact`]).

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_REPLACE};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::AddressMessage;

use super::{Carried, Error, ExactAddress, ExactRoute, Netlink, Placed, Result};
use crate::steps;

impl Netlink {
    /// What all links carry.
    ///
    /// # Errors
    /// When the kernel refuses a dump.
    pub async fn carried(&self) -> Result<Carried> {
        let names = self.links().await?.into_iter().map(|link| (link.index, link.name)).collect();
        let request = |handle: rtnetlink::Handle| handle.address().get().execute();
        let addresses: Vec<AddressMessage> = self.list("list addresses", request, Some).await?;
        Ok(Carried { addresses, routes: self.route_messages().await?, names })
    }

    /// Puts an address on a link, for ever; one that is there is a success.
    ///
    /// # Errors
    /// When the link is missing or the kernel refuses.
    pub async fn place_address(&self, link: u32, address: &ExactAddress, placed: Placed) -> Result<()> {
        let message = RouteNetlinkMessage::NewAddress(address.on(link, placed));
        let done =
            self.acknowledged(message, NLM_F_CREATE, format!("add address {address} to link {link}")).await;
        match done {
            Err(error) if error.is_existing() => return Ok(()),
            result => result?,
        }
        if let Some(message) = address.unmarked(link).filter(|_| placed == Placed::AsItWas) {
            let message = RouteNetlinkMessage::NewAddress(message);
            self.acknowledged(message, NLM_F_REPLACE, format!("settle address {address} of link {link}"))
                .await?;
        }
        steps::done("place address").await;
        Ok(())
    }

    /// Takes an address off a link; a missing one is a success.
    ///
    /// # Errors
    /// Any other refusal.
    pub async fn take_address(&self, link: u32, address: &ExactAddress) -> Result<()> {
        let message = RouteNetlinkMessage::DelAddress(address.on(link, Placed::AsItWas));
        match self.acknowledged(message, 0, format!("remove address {address} of link {link}")).await {
            Err(error) if error.is_missing() => return Ok(()),
            result => result?,
        }
        steps::done("take address").await;
        Ok(())
    }

    /// Puts a route on a link, behind those of the same destination: nothing that is there is replaced. One that is
    /// there is a success.
    ///
    /// # Errors
    /// When the kernel refuses, or another link of the route is gone.
    pub async fn place_route(&self, link: u32, route: &ExactRoute, carried: &Carried) -> Result<()> {
        let message = route.on(link, &carried.links(), false).ok_or_else(|| {
            Error::io(format!("set the route {route}"), std::io::Error::from_raw_os_error(libc::ENODEV))
        })?;
        let flags = NLM_F_CREATE | NLM_F_APPEND;
        let message = RouteNetlinkMessage::NewRoute(message);
        match self.acknowledged(message, flags, format!("set the route {route} on link {link}")).await {
            Err(error) if error.is_existing() => return Ok(()),
            result => result?,
        }
        steps::done("place route").await;
        Ok(())
    }

    /// Takes a route off a link; a missing one is a success.
    ///
    /// # Errors
    /// Any other refusal.
    pub async fn take_route(&self, link: u32, route: &ExactRoute, carried: &Carried) -> Result<()> {
        let Some(message) = route.on(link, &carried.links(), true) else { return Ok(()) };
        let message = RouteNetlinkMessage::DelRoute(message);
        match self.acknowledged(message, 0, format!("delete the route {route} on link {link}")).await {
            Err(error) if error.is_missing() => return Ok(()),
            result => result?,
        }
        steps::done("take route").await;
        Ok(())
    }
}
