//! The kernel's network state by rtnetlink, wrapped in one place.
//!
//! In: plain requests ([`Route`], [`Veth`] …) on a [`Netlink`] handle that is
//! bound to one namespace for life. Out: plain values and typed [`Error`]s.
//! The rest of the daemon sees no type of the netlink crates, which break
//! their interface every few weeks.

mod addr;
mod error;
pub(crate) mod exact;
mod hints;
mod kinds;
mod link;
mod monitor;
mod neigh;
mod peer;
mod place;
mod redirect;
mod route;
mod rule;
mod tc;
mod types;
pub(crate) mod wire;

pub use addr::Address;
pub use error::{Error, Result};
pub use exact::{Carried, ExactAddress, ExactRoute, Placed};
pub use hints::{ALL_LINKS, Hints};
pub use kinds::{NewVlan, VlanLink};
pub use link::{Link, Veth};
pub use monitor::{Change, Monitor, waiting};
pub use neigh::{Pace, Reachability};
pub use route::{MAIN_TABLE, Route, RouteKind, Scope, protocol};
pub use rule::Rule;
pub use tc::{Netem, Qdisc, Tbf};
pub use types::{Mac, ParseMacError};

use std::future::ready;

use futures::{StreamExt, TryStream, TryStreamExt};
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;

use crate::sys::Namespace;

/// A netlink socket of one namespace. Cheap to clone; requests run in parallel.
#[derive(Clone, Debug)]
pub struct Netlink {
    handle: rtnetlink::Handle,
    /// The kernel runs one dump per socket at a time and refuses a second
    /// (`EBUSY`).
    dumps: std::sync::Arc<tokio::sync::Mutex<()>>,
    /// Ends the socket's driver task with the last clone.
    _driver: std::sync::Arc<Driver>,
}

#[derive(Debug)]
struct Driver(tokio::task::AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Netlink {
    /// Opens a socket in the calling thread's namespace and drives it on the
    /// current tokio runtime.
    ///
    /// # Errors
    /// When the socket can't be opened.
    pub fn open() -> Result<Self> {
        Self::open_on(&tokio::runtime::Handle::current())
    }

    /// Opens a socket in the calling thread's namespace (the thread may be a
    /// helper inside another one) and drives it on `runtime`.
    ///
    /// # Errors
    /// When the socket can't be opened.
    pub fn open_on(runtime: &tokio::runtime::Handle) -> Result<Self> {
        let _guard = runtime.enter();
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(|source| Error::io("open a netlink socket", source))?;
        let driver = runtime.spawn(connection).abort_handle();
        Ok(Self::over(handle, driver))
    }

    fn over(handle: rtnetlink::Handle, driver: tokio::task::AbortHandle) -> Self {
        Self { handle, dumps: std::sync::Arc::default(), _driver: std::sync::Arc::new(Driver(driver)) }
    }

    /// Opens a socket inside `namespace`.
    ///
    /// # Errors
    /// When the namespace can't be entered or the socket not be opened.
    pub async fn in_namespace(namespace: &Namespace) -> Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        namespace
            .run_async(move || Self::open_on(&runtime))
            .await
            .map_err(|source| Error::io("enter the namespace", source))?
    }

    /// Runs a dump when the socket is free for one, and to its end even if nobody waits for it any more: the kernel
    /// would refuse the next one while it still tells this one.
    async fn dump<T, F>(&self, work: impl FnOnce(rtnetlink::Handle) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let this = self.clone();
        let task = tokio::spawn(async move {
            let _dump = this.dumps.lock().await;
            work(this.handle.clone()).await
        });
        task.await.map_err(|ended| Error::io("list what the kernel has", std::io::Error::other(ended)))?
    }

    /// Runs one dump, and keeps what `read` makes of its messages.
    async fn list<M, T, S>(
        &self,
        what: impl Into<String>,
        request: impl FnOnce(rtnetlink::Handle) -> S + Send + 'static,
        read: impl Fn(M) -> Option<T> + Send + 'static,
    ) -> Result<Vec<T>>
    where
        M: Send + 'static,
        T: Send + 'static,
        S: TryStream<Ok = M, Error = rtnetlink::Error> + Send + 'static,
    {
        let what = what.into();
        self.dump(move |handle| async move {
            let kept = request(handle).try_filter_map(move |message| ready(Ok(read(message))));
            kept.try_collect().await.map_err(|error| Error::netlink(what, error))
        })
        .await
    }

    /// Sends a message that the library has no builder for, and waits for the kernel's word on it.
    async fn acknowledged(&self, message: RouteNetlinkMessage, flags: u16, operation: String) -> Result<()> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut handle = self.handle.clone();
        let error = |error| Error::netlink(operation.clone(), error);
        let mut stream = std::pin::pin!(handle.request(request).map_err(error)?);
        while let Some(message) = stream.next().await {
            if let NetlinkPayload::Error(answer) = message.payload
                && answer.code.is_some()
            {
                return Err(error(rtnetlink::Error::NetlinkError(answer)));
            }
        }
        Ok(())
    }
}
