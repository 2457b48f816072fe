//! Messages and their bytes. Pure.

/// The version that is spoken: OpenFlow 1.4.
pub(super) const VERSION: u8 = 5;
const HEADER: usize = 8;

/// Types of messages (specification, §7.1.1).
pub(super) mod kind {
    pub(in crate::openflow) const HELLO: u8 = 0;
    pub(in crate::openflow) const ERROR: u8 = 1;
    pub(in crate::openflow) const ECHO_REQUEST: u8 = 2;
    pub(in crate::openflow) const ECHO_REPLY: u8 = 3;
    pub(in crate::openflow) const FLOW_MOD: u8 = 14;
    pub(in crate::openflow) const MULTIPART_REQUEST: u8 = 18;
    pub(in crate::openflow) const MULTIPART_REPLY: u8 = 19;
    pub(in crate::openflow) const BARRIER_REQUEST: u8 = 20;
    pub(in crate::openflow) const BARRIER_REPLY: u8 = 21;
    pub(in crate::openflow) const BUNDLE_CONTROL: u8 = 33;
    pub(in crate::openflow) const BUNDLE_ADD: u8 = 34;
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Version of its header: of a greeting the highest that the sender speaks.
    pub(super) version: u8,
    pub(super) kind: u8,
    /// An answer carries its question's.
    pub(super) xid: u32,
    pub(super) body: Vec<u8>,
}

impl Message {
    pub(super) fn new(kind: u8, xid: u32, body: Vec<u8>) -> Self {
        Self { version: VERSION, kind, xid, body }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let length = u16::try_from(HEADER + self.body.len()).unwrap_or(u16::MAX);
        let mut out = Writer::default();
        out.u8(self.version).u8(self.kind).u16(length).u32(self.xid).bytes(&self.body);
        out.0
    }

    /// The first message of `bytes` and its length; `None` if there is more to come.
    pub(super) fn split(bytes: &[u8]) -> Result<Option<(Self, usize)>, &'static str> {
        let mut reader = Reader(bytes);
        let (Some(version), Some(kind), Some(length), Some(xid)) =
            (reader.u8(), reader.u8(), reader.u16(), reader.u32())
        else {
            return Ok(None);
        };
        let length = usize::from(length);
        let body = length.checked_sub(HEADER).ok_or("the length of a message")?;
        let message = reader.take(body).map(|body| Self { version, kind, xid, body: body.to_vec() });
        Ok(message.map(|message| (message, length)))
    }

    /// Type and code of an error.
    pub(super) fn error(&self) -> Option<(u16, u16)> {
        let mut reader = Reader(&self.body);
        (self.kind == kind::ERROR).then_some((reader.u16()?, reader.u16()?))
    }

    /// Whether its sender, which greets, speaks our version.
    pub(super) fn speaks(&self) -> bool {
        let mut reader = Reader(&self.body);
        while let (Some(element), Some(length)) = (reader.u16(), reader.u16()) {
            let Some(body) = reader.take(usize::from(length).saturating_sub(4)) else { break };
            if element == 1 {
                return Reader(body).u32().is_some_and(|bits| bits & (1 << VERSION) != 0);
            }
            reader.take(padding(usize::from(length)));
        }
        self.version >= VERSION
    }
}

/// Bytes that fill up to the next multiple of eight.
pub(super) fn padding(length: usize) -> usize {
    length.next_multiple_of(8) - length
}

/// Puts numbers in network order.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn zeros(&mut self, count: usize) -> &mut Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }
}

/// Takes numbers off the front; `None` when there is too little.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_greeting_says_which_versions_are_spoken() {
        let hello =
            |version, body: &[u8]| Message { version, kind: kind::HELLO, xid: 1, body: body.to_vec() };
        assert!(hello(5, &[]).speaks() && hello(6, &[]).speaks() && !hello(4, &[]).speaks());
        assert!(hello(6, &[0, 1, 0, 8, 0, 0, 0, 0x7e]).speaks(), "1.0 to 1.5");
        assert!(!hello(6, &[0, 1, 0, 8, 0, 0, 0, 0x52]).speaks(), "1.0, 1.3, 1.5");
        // Another element in front, with its padding.
        let other = [0, 9, 0, 5, 0, 0, 0, 0, 0, 1, 0, 8, 0, 0, 0, 0x02];
        assert!(!hello(6, &other).speaks());
    }

    proptest! {
        #[test]
        fn messages_are_read_back_from_any_pieces(version: u8, kind: u8, xid: u32, body: Vec<u8>, cut in 0_usize..64) {
            let message = Message { version, kind, xid, body };
            let mut bytes = message.encode();
            let length = bytes.len();
            bytes.extend_from_slice(&[5, 0]);
            prop_assert_eq!(Message::split(&bytes).unwrap(), Some((message, length)));
            prop_assert_eq!(Message::split(&bytes[..cut.min(length - 1)]).unwrap(), None);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            if let Ok(Some((message, length))) = Message::split(&bytes) {
                prop_assert!(length <= bytes.len());
                let _ = (message.speaks(), message.error());
            }
        }
    }
}
