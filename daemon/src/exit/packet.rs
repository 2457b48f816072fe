//! BFD control packets (RFC 5880 §4.1), without authentication.

/// Bytes of a packet.
pub const LENGTH: usize = 24;

/// State of a session, or of its other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Switched off by hand.
    AdminDown,
    /// No session.
    #[default]
    Down,
    /// The other end is heard, but does not hear us yet.
    Init,
    /// Both hear each other.
    Up,
}

impl State {
    fn code(self) -> u8 {
        match self {
            Self::AdminDown => 0,
            Self::Down => 1,
            Self::Init => 2,
            Self::Up => 3,
        }
    }

    fn of(code: u8) -> Self {
        match code & 3 {
            0 => Self::AdminDown,
            1 => Self::Down,
            2 => Self::Init,
            _ => Self::Up,
        }
    }
}

/// Why a session went down (RFC 5880 §4.1).
pub mod diagnostic {
    /// Nothing to say.
    pub const NONE: u8 = 0;
    /// Nothing was heard in time.
    pub const EXPIRED: u8 = 1;
    /// The other end said so.
    pub const NEIGHBOUR_DOWN: u8 = 3;
    /// Switched off.
    pub const ADMIN_DOWN: u8 = 7;
}

/// A control packet. Intervals are in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// Why the session of the sender is not up.
    pub diagnostic: u8,
    /// The sender's state.
    pub state: State,
    /// The sender wants an answer.
    pub poll: bool,
    /// This is an answer.
    pub last: bool,
    /// So many intervals without a packet mean that the sender is gone.
    pub detect_mult: u8,
    /// The sender's session.
    pub mine: u32,
    /// The receiver's session, 0 while it is not known.
    pub yours: u32,
    /// How often the sender would like to send.
    pub desired_min_tx: u32,
    /// How often it can receive; 0: not at all.
    pub required_min_rx: u32,
}

const POLL: u8 = 0x20;
const FINAL: u8 = 0x10;
const AUTHENTICATED: u8 = 0x04;
const MULTIPOINT: u8 = 0x01;

impl Packet {
    /// From bytes, if they are a packet that may be acted on (RFC 5880 §6.8.6, as far as the session does not matter).
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; LENGTH] = bytes.first_chunk()?;
        let [first, second, detect_mult, length, rest @ ..] = head;
        let flags = *second;
        let word = |at: usize| -> Option<u32> { Some(u32::from_be_bytes(*rest.get(at..)?.first_chunk()?)) };
        let packet = Self {
            diagnostic: first & 0x1f,
            state: State::of(flags >> 6),
            poll: flags & POLL != 0,
            last: flags & FINAL != 0,
            detect_mult: *detect_mult,
            mine: word(0)?,
            yours: word(4)?,
            desired_min_tx: word(8)?,
            required_min_rx: word(12)?,
        };
        let stranger = packet.yours == 0 && !matches!(packet.state, State::Down | State::AdminDown);
        let usable = first >> 5 == 1
            && usize::from(*length) == LENGTH
            && packet.detect_mult != 0
            && flags & (AUTHENTICATED | MULTIPOINT) == 0
            && packet.mine != 0
            && !stranger;
        usable.then_some(packet)
    }

    /// As bytes.
    pub fn bytes(&self) -> [u8; LENGTH] {
        let mut flags = self.state.code() << 6;
        if self.poll {
            flags |= POLL;
        }
        if self.last {
            flags |= FINAL;
        }
        let [a, b, c, d] = self.mine.to_be_bytes();
        let [e, f, g, h] = self.yours.to_be_bytes();
        let [i, j, k, l] = self.desired_min_tx.to_be_bytes();
        let [m, n, o, p] = self.required_min_rx.to_be_bytes();
        let head = (1 << 5) | (self.diagnostic & 0x1f);
        let length = 24;
        // No echo.
        [head, flags, self.detect_mult, length, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, 0, 0, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A packet as another implementation writes it (RFC 5880 §4.1 by hand).
    const UP: [u8; 24] =
        [0x20, 0xc0, 3, 24, 0, 0, 0, 7, 0, 0, 0, 9, 0, 1, 0x86, 0xa0, 0, 1, 0x86, 0xa0, 0, 0, 0, 0];

    #[test]
    fn a_packet_is_read_and_written_as_it_stands() {
        let packet = Packet::parse(&UP).unwrap();
        let expected = Packet {
            state: State::Up,
            detect_mult: 3,
            mine: 7,
            yours: 9,
            desired_min_tx: 100_000,
            required_min_rx: 100_000,
            ..Packet::default()
        };
        assert_eq!(packet, expected);
        assert_eq!(packet.bytes(), UP);
    }

    #[test]
    fn what_may_not_be_acted_on_is_dropped() {
        let with = |at: usize, value: u8| {
            let mut bytes = UP;
            bytes[at] = value;
            bytes
        };
        for (why, bytes) in [
            ("version", with(0, 0x40)),
            ("authentication", with(1, 0xc4)),
            ("multipoint", with(1, 0xc1)),
            ("detection multiplier", with(2, 0)),
            ("length", with(3, 23)),
            ("no session of its own", with(7, 0)),
            ("up without knowing us", with(11, 0)),
        ] {
            assert_eq!(Packet::parse(&bytes), None, "{why}");
        }
        assert_eq!(Packet::parse(&UP[..23]), None);
        assert!(Packet::parse(&[&UP[..], &[0; 8]].concat()).is_some(), "padding is no harm");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_and_what_is_read_is_written_back(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(packet) = Packet::parse(&bytes) {
                prop_assert_eq!(Packet::parse(&packet.bytes()), Some(packet));
            }
        }
    }
}
