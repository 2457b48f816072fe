//! A conversation with one bridge, by its management socket.

use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::Error;
use super::flow::{ALL_TABLES, ANY, Flow, Seen, match_field};
use super::wire::{Message, Reader, VERSION, Writer, kind};

/// How long the switch may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

const FLOW_STATS: u16 = 1;
const FLOW_MONITOR: u16 = 16;
/// More parts of an answer follow.
const MORE: u16 = 1;
/// Flows that come, go and change.
const ALL_CHANGES: u16 = 2 | 4 | 8;

const OPEN: u16 = 0;
const COMMIT: u16 = 4;
const COMMITTED: u16 = 5;
/// All of it or nothing, in its order.
const ATOMIC_ORDERED: u16 = 1 | 2;

/// The conversation. It is over after an error, and when a request is let go before its answer.
#[derive(Debug)]
pub struct Session {
    bridge: String,
    stream: UnixStream,
    buffer: Vec<u8>,
    xid: u32,
}

impl Session {
    /// Connects to the bridge; its socket is in `folder`.
    ///
    /// # Errors
    /// When nobody answers there, or not in our version.
    pub async fn open(folder: &Path, bridge: &str) -> Result<Self, Error> {
        let failed = |source| Error::Socket { bridge: bridge.to_owned(), source };
        let connect = UnixStream::connect(folder.join(format!("{bridge}.mgmt")));
        let silent = |_| Error::Silent { bridge: bridge.to_owned() };
        let stream = tokio::time::timeout(PATIENCE, connect).await.map_err(silent)?.map_err(failed)?;
        let mut session = Self { bridge: bridge.to_owned(), stream, buffer: Vec::new(), xid: 1 };
        let mut versions = Writer::default();
        versions.u16(1).u16(8).u32(1 << VERSION);
        let greeting = Message::new(kind::HELLO, 1, versions.0);
        session.send(&[greeting]).await?;
        let answer = session.patient_read().await?;
        if answer.kind != kind::HELLO || !answer.speaks() {
            return Err(Error::Version { bridge: session.bridge });
        }
        Ok(session)
    }

    /// Flows of all tables whose cookie is `cookie` where `mask` has ones.
    ///
    /// # Errors
    /// When the switch does not answer.
    pub async fn flows(&mut self, cookie: u64, mask: u64) -> Result<Vec<Seen>, Error> {
        let mut body = Writer::default();
        body.u16(FLOW_STATS).u16(0).zeros(4);
        body.u8(ALL_TABLES).zeros(3).u32(ANY).u32(ANY).zeros(4).u64(cookie).u64(mask);
        match_field(&mut body, &[]);
        let xid = self.ask(kind::MULTIPART_REQUEST, body.0).await?;
        let mut all = Vec::new();
        loop {
            let answer = self.answer(xid, kind::MULTIPART_REPLY).await?;
            let mut reader = Reader(&answer.body);
            let (Some(FLOW_STATS), Some(flags), Some(_)) = (reader.u16(), reader.u16(), reader.u32()) else {
                return Err(self.malformed("an answer about flows"));
            };
            all.extend(Seen::read_all(reader.0).ok_or_else(|| self.malformed("a flow"))?);
            if flags & MORE == 0 {
                return Ok(all);
            }
        }
    }

    /// Takes flows away and adds others; packets see all of it or nothing.
    ///
    /// # Errors
    /// When the switch refuses, and then nothing has changed, or does not answer, and then it is not known.
    pub async fn exchange(&mut self, gone: &[&Seen], new: &[&Flow]) -> Result<(), Error> {
        let control = |kind: u16| {
            let mut body = Writer::default();
            body.u32(1).u16(kind).u16(ATOMIC_ORDERED);
            body.0
        };
        let mut messages = vec![Message::new(kind::BUNDLE_CONTROL, self.next(), control(OPEN))];
        let bodies = gone.iter().map(|seen| seen.delete()).chain(new.iter().map(|flow| flow.add()));
        for body in bodies {
            let xid = self.next();
            let mut add = Writer::default();
            add.u32(1).zeros(2).u16(ATOMIC_ORDERED).bytes(&Message::new(kind::FLOW_MOD, xid, body).encode());
            messages.push(Message::new(kind::BUNDLE_ADD, xid, add.0));
        }
        // A message that the switch does not take is not in the bundle, which it would carry out all the same. One that
        // is never committed ends with the session.
        let barrier = self.next();
        messages.push(Message::new(kind::BARRIER_REQUEST, barrier, Vec::new()));
        self.send(&messages).await?;
        self.answer(barrier, kind::BARRIER_REPLY).await?;
        let commit = self.ask(kind::BUNDLE_CONTROL, control(COMMIT)).await?;
        let answer = self.answer(commit, kind::BUNDLE_CONTROL).await?;
        let mut reader = Reader(&answer.body);
        match (reader.u32(), reader.u16()) {
            (Some(1), Some(COMMITTED)) => Ok(()),
            _ => Err(self.malformed("an answer about a bundle")),
        }
    }

    /// Asks to be told of every change to the bridge's flows; [`Session::changed`] waits for one. `false` if the switch
    /// can't (before 2.16); the end of the session is still noticed.
    ///
    /// # Errors
    /// When the switch does not answer.
    pub async fn watch(&mut self) -> Result<bool, Error> {
        let mut body = Writer::default();
        body.u16(FLOW_MONITOR).u16(0).zeros(4);
        body.u32(1).u32(ANY).u32(ANY).u16(ALL_CHANGES).u8(ALL_TABLES).u8(0);
        match_field(&mut body, &[]);
        let xid = self.ask(kind::MULTIPART_REQUEST, body.0).await?;
        match self.answer(xid, kind::MULTIPART_REPLY).await {
            Ok(_) => Ok(true),
            Err(Error::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until a flow of the bridge changes, whoever does it.
    ///
    /// # Errors
    /// When the session ends: ovs-vswitchd or the bridge is gone.
    pub async fn changed(&mut self) -> Result<(), Error> {
        loop {
            let message = self.read().await?;
            if message.kind == kind::MULTIPART_REPLY && Reader(&message.body).u16() == Some(FLOW_MONITOR) {
                return Ok(());
            }
        }
    }

    fn next(&mut self) -> u32 {
        self.xid = self.xid.wrapping_add(1).max(2);
        self.xid
    }

    fn malformed(&self, what: &'static str) -> Error {
        Error::Malformed { bridge: self.bridge.clone(), what }
    }

    async fn ask(&mut self, kind: u8, body: Vec<u8>) -> Result<u32, Error> {
        let xid = self.next();
        self.send(&[Message::new(kind, xid, body)]).await?;
        Ok(xid)
    }

    async fn send(&mut self, messages: &[Message]) -> Result<(), Error> {
        let bytes: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
        let sent = tokio::time::timeout(PATIENCE, self.stream.write_all(&bytes)).await;
        let sent = sent.map_err(|_| Error::Silent { bridge: self.bridge.clone() })?;
        sent.map_err(|source| Error::Socket { bridge: self.bridge.clone(), source })
    }

    /// The answer to `xid`. An error is the answer to any of our messages: one of a bundle fails all of it.
    async fn answer(&mut self, xid: u32, wanted: u8) -> Result<Message, Error> {
        loop {
            let message = self.patient_read().await?;
            if let Some((kind, code)) = message.error() {
                return Err(Error::Refused { bridge: self.bridge.clone(), kind, code });
            }
            if message.kind == wanted && message.xid == xid {
                return Ok(message);
            }
        }
    }

    async fn patient_read(&mut self) -> Result<Message, Error> {
        let silent = Error::Silent { bridge: self.bridge.clone() };
        tokio::time::timeout(PATIENCE, self.read()).await.unwrap_or(Err(silent))
    }

    /// The next message; questions whether we live are answered.
    async fn read(&mut self) -> Result<Message, Error> {
        loop {
            let split = Message::split(&self.buffer).map_err(|what| self.malformed(what))?;
            if let Some((message, length)) = split {
                self.buffer.drain(..length);
                if message.kind == kind::ECHO_REQUEST {
                    self.send(&[Message { kind: kind::ECHO_REPLY, ..message }]).await?;
                    continue;
                }
                return Ok(message);
            }
            let read = self.stream.read_buf(&mut self.buffer).await;
            let read = read.and_then(|count| match count {
                0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => Ok(count),
            });
            read.map_err(|source| Error::Socket { bridge: self.bridge.clone(), source })?;
        }
    }
}
