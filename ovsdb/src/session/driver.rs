//! Moves bytes and time between a server and the protocol.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::sync::{mpsc, watch};

use super::queue::Producer;
use super::{Options, Request, SessionState};

pub(super) struct Driver {
    requests: mpsc::UnboundedReceiver<Request>,
    events: Producer,
    _keep: (Options, Arc<AtomicUsize>, watch::Sender<SessionState>),
}

impl Driver {
    pub(super) fn new(
        options: Options,
        requests: mpsc::UnboundedReceiver<Request>,
        waiting: Arc<AtomicUsize>,
        events: Producer,
        state: watch::Sender<SessionState>,
    ) -> Self {
        Self { requests, events, _keep: (options, waiting, state) }
    }
    pub(super) async fn run(mut self) {
        while self.requests.recv().await.is_some() {}
        self.events.close();
    }
}
