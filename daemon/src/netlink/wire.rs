//! Netlink messages as bytes, for families that the libraries don't know.
//!
//! In: buffers. Out: [`Message`]s and their attributes, and the other way. Nothing here trusts a length.

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
const NLA_HEADER: usize = 4;
/// Flags in an attribute's type: nested, in network byte order.
const NLA_TYPE: u16 = 0x3fff;

/// A message: its type and what follows its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// `nlmsg_type`.
    pub(crate) kind: u16,
    /// Without the header.
    pub(crate) body: &'a [u8],
}

/// `NLMSG_ERROR`.
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`.
pub(crate) const DONE: u16 = 3;

impl Message<'_> {
    /// What an error message says: an errno, 0 for an acknowledgement.
    pub(crate) fn errno(&self) -> Option<i32> {
        let code = self.body.get(..4)?.try_into().ok().map(i32::from_ne_bytes)?;
        (self.kind == ERROR).then_some(code.wrapping_neg())
    }
}

fn align(length: usize) -> usize {
    length.div_ceil(4) * 4
}

/// The messages of a buffer; what is cut off at its end is left out.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let body = bytes.get(HEADER..length)?;
        bytes = bytes.get(align(length)..).unwrap_or_default();
        Some(Message { kind, body })
    })
}

/// Types and values of the attributes of a body.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(NLA_HEADER..length)?;
        bytes = bytes.get(align(length)..).unwrap_or_default();
        Some((kind & NLA_TYPE, value))
    })
}

/// Appends an attribute; `kind` may carry flags.
pub(crate) fn put_attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(NLA_HEADER + value.len()).unwrap_or(u16::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(align(bytes.len()), 0);
}

/// Appends a message.
pub(crate) fn put_message(bytes: &mut Vec<u8>, kind: u16, flags: u16, body: &[u8]) {
    let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // Sequence number and sender: there is one question at a time, and the kernel knows who asks.
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes.resize(align(bytes.len()), 0);
}
