//! Queueing disciplines: what a link has, and one of ours at the root (`tbf`).
//!
//! The library knows few kinds; the options of the others are read and written here as the kernel's headers
//! (`linux/pkt_sched.h`) lay them out.

use netlink_packet_core::{DefaultNla, Emitable, NLM_F_CREATE, NLM_F_REPLACE, Nla, NlaBuffer, NlasIterator};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};

use super::{Error, Netlink, Result};

const TCA_OPTIONS: u16 = 2;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_CEIL64: u16 = 7;
const TCA_NETEM_LATENCY64: u16 = 10;
const TCA_NETEM_JITTER64: u16 = 11;
/// `TC_LINKLAYER_ETHERNET`: the kernel computes costs itself and wants no table.
const ETHERNET: u8 = 1;
/// Length of `struct tc_ratespec`; its `rate` is the last word.
const RATESPEC: usize = 12;
pub(super) const RATE_AT: usize = 8;
/// Length of `struct tc_netem_qopt`: words latency, limit, loss, gap, duplicate, jitter. Attributes follow.
const NETEM: usize = 24;
/// Nanoseconds of a tick, in which the kernel's older fields tell times.
const TICK: u64 = 64;

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tbf {
    /// Bytes a second.
    pub rate: u64,
    /// Bytes that may leave at once.
    pub burst: u32,
    /// Bytes that may wait.
    pub limit: u32,
}

/// Delays and losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Netem {
    /// Delay in ns.
    pub latency: u64,
    /// Its deviation in ns.
    pub jitter: u64,
    /// Packets that may wait.
    pub limit: u32,
    /// Share of packets that are lost; `u32::MAX` is all.
    pub loss: u32,
}

/// A queueing discipline of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// `noqueue`, `htb`, `tbf`, `ingress` …
    pub kind: String,
    /// Major number of its handle, 0 for the kernel's defaults.
    pub major: u16,
    /// It is the link's root.
    pub root: bool,
    /// Its parameters, if it is a `tbf`.
    pub tbf: Option<Tbf>,
    /// Its parameters, if it is a `netem`.
    pub netem: Option<Netem>,
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

pub(super) fn long(bytes: &[u8]) -> Option<u64> {
    bytes.get(..8)?.try_into().ok().map(u64::from_ne_bytes)
}

/// The bytes of an attribute.
pub(super) fn bytes_of(nla: &impl Nla) -> Vec<u8> {
    let mut bytes = vec![0; nla.value_len()];
    nla.emit_value(&mut bytes);
    bytes
}

/// An attribute among others.
pub(super) fn attribute(bytes: &[u8], wanted: u16) -> Option<Vec<u8>> {
    let mut all = NlasIterator::new(bytes).flatten();
    all.find(|nla: &NlaBuffer<&[u8]>| nla.kind() == wanted).map(|nla| nla.value().to_vec())
}

/// The options of a kind that the library does not know.
fn options(message: &TcMessage) -> Option<Vec<u8>> {
    message.attributes.iter().find_map(|attribute| {
        let TcAttribute::Options(options) = attribute else { return None };
        options.iter().find_map(|option| match option {
            TcOption::Other(nla) => Some(bytes_of(nla)),
            _ => None,
        })
    })
}

/// An attribute inside the options of a kind that the library does not know.
pub(super) fn option(message: &TcMessage, wanted: u16) -> Option<Vec<u8>> {
    attribute(&options(message)?, wanted)
}

pub(super) fn kind_of(message: &TcMessage) -> &str {
    message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            TcAttribute::Kind(kind) => Some(kind.as_str()),
            _ => None,
        })
        .unwrap_or_default()
}

impl Tbf {
    fn read(message: &TcMessage) -> Option<Self> {
        let parameters = option(message, TCA_TBF_PARMS)?;
        let rate = option(message, TCA_TBF_RATE64)
            .and_then(|bytes| long(&bytes))
            .or_else(|| word(&parameters, RATE_AT).map(u64::from))?;
        let limit = word(&parameters, 2 * RATESPEC)?;
        let ticks = word(&parameters, 2 * RATESPEC + 4)?;
        let burst = u128::from(ticks) * u128::from(TICK) * u128::from(rate) / 1_000_000_000;
        Some(Self { rate, burst: u32::try_from(burst).unwrap_or(u32::MAX), limit })
    }

    fn options(&self) -> Vec<u8> {
        let mut parameters = vec![0u8; 2 * RATESPEC + 12];
        let rate = u32::try_from(self.rate).unwrap_or(u32::MAX);
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(place) = parameters.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        put(1, &[ETHERNET]);
        put(RATE_AT, &rate.to_ne_bytes());
        put(2 * RATESPEC, &self.limit.to_ne_bytes());
        let mut attributes = vec![
            DefaultNla::new(TCA_TBF_PARMS, parameters),
            DefaultNla::new(TCA_TBF_BURST, self.burst.to_ne_bytes().to_vec()),
        ];
        if self.rate > u64::from(u32::MAX) {
            attributes.push(DefaultNla::new(TCA_TBF_RATE64, self.rate.to_ne_bytes().to_vec()));
        }
        let attributes = attributes.as_slice();
        let mut bytes = vec![0; attributes.buffer_len()];
        attributes.emit(&mut bytes);
        bytes
    }

    /// Whether the kernel's rounding of `self` is what it shows as `shown`.
    pub fn is_shown_as(&self, shown: &Self) -> bool {
        let tolerance =
            (self.burst / 100).max(64).max(u32::try_from(self.rate / 1_000_000).unwrap_or(u32::MAX));
        self.rate == shown.rate && self.limit == shown.limit && self.burst.abs_diff(shown.burst) <= tolerance
    }
}

impl Netem {
    fn read(message: &TcMessage) -> Option<Self> {
        let options = options(message)?;
        let time = |kind, at| {
            let exact =
                options.get(NETEM..).and_then(|rest| attribute(rest, kind)).and_then(|bytes| long(&bytes));
            exact.or_else(|| word(&options, at).map(|ticks| u64::from(ticks) * TICK))
        };
        Some(Self {
            latency: time(TCA_NETEM_LATENCY64, 0)?,
            jitter: time(TCA_NETEM_JITTER64, 20)?,
            limit: word(&options, 4)?,
            loss: word(&options, 8)?,
        })
    }
}

impl Netlink {
    /// Queueing disciplines of a link.
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub async fn qdiscs(&self, index: u32) -> Result<Vec<Qdisc>> {
        let wanted = signed(index)?;
        // The kernel lists those of all links.
        let read = move |message: TcMessage| {
            (message.header.index == wanted).then(|| Qdisc {
                kind: kind_of(&message).to_owned(),
                major: message.header.handle.major,
                root: message.header.parent == TcHandle::ROOT,
                tbf: if kind_of(&message) == "tbf" { Tbf::read(&message) } else { None },
                netem: if kind_of(&message) == "netem" { Netem::read(&message) } else { None },
            })
        };
        let what = format!("list the queueing disciplines of link {index}");
        self.list(what, move |handle| handle.qdisc().get().index(wanted).execute(), read).await
    }

    /// Ceiling, in bytes a second, of the `htb` class `1:<minor>` of a link; ovs-vswitchd gives queue n class n + 1.
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub async fn htb_ceiling(&self, index: u32, minor: u16) -> Result<Option<u64>> {
        let wanted = signed(index)?;
        let read = move |message: TcMessage| {
            let header = &message.header;
            let is_it = header.index == wanted && header.handle == (TcHandle { major: 1, minor });
            if !is_it || kind_of(&message) != "htb" {
                return None;
            }
            let long_one = option(&message, TCA_HTB_CEIL64).and_then(|bytes| long(&bytes));
            long_one.or_else(|| word(&option(&message, TCA_HTB_PARMS)?, RATESPEC + RATE_AT).map(u64::from))
        };
        let what = format!("list the traffic classes of link {index}");
        let request = move |handle: rtnetlink::Handle| handle.traffic_class(wanted).get().execute();
        Ok(self.list(what, request, read).await?.pop())
    }

    /// Puts a token bucket at the root of a link, or changes it.
    ///
    /// # Errors
    /// `ENOENT` when the kernel has no such discipline.
    pub async fn set_tbf(&self, index: u32, major: u16, tbf: &Tbf) -> Result<()> {
        let mut message = TcMessage::with_index(signed(index)?);
        message.header.parent = TcHandle::ROOT;
        message.header.handle = TcHandle { major, minor: 0 };
        message.attributes = vec![
            TcAttribute::Kind("tbf".to_owned()),
            TcAttribute::Other(DefaultNla::new(TCA_OPTIONS, tbf.options())),
        ];
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let message = RouteNetlinkMessage::NewQueueDiscipline(message);
        self.acknowledged(message, flags, format!("limit what leaves by link {index}")).await
    }

    /// Removes the discipline at the root of a link; a missing one is a success.
    ///
    /// # Errors
    /// Any other refusal.
    pub async fn delete_root_qdisc(&self, index: u32, major: u16) -> Result<()> {
        let mut message = TcMessage::with_index(signed(index)?);
        message.header.parent = TcHandle::ROOT;
        message.header.handle = TcHandle { major, minor: 0 };
        let message = RouteNetlinkMessage::DelQueueDiscipline(message);
        match self.acknowledged(message, 0, format!("end the limit of link {index}")).await {
            Err(error) if error.is_missing() || error.errno() == Some(libc::EINVAL) => Ok(()),
            result => result,
        }
    }
}

pub(super) fn signed(index: u32) -> Result<i32> {
    let wrong = |_| Error::io(format!("link {index}"), std::io::Error::from_raw_os_error(libc::ENODEV));
    i32::try_from(index).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_rounding_is_no_difference() {
        let wanted = Tbf { rate: 1_250_000, burst: 100_000, limit: 200_000 };
        assert!(wanted.is_shown_as(&Tbf { burst: 99_960, ..wanted }));
        assert!(!wanted.is_shown_as(&Tbf { burst: 50_000, ..wanted }));
        assert!(!wanted.is_shown_as(&Tbf { rate: 1_250_001, ..wanted }));
        assert!(!wanted.is_shown_as(&Tbf { limit: 1, ..wanted }));
    }

    #[test]
    fn options_read_back() {
        for rate in [1_250_000, 5_000_000_000] {
            let tbf = Tbf { rate, burst: 100_000, limit: 200_000 };
            let nla = DefaultNla::new(TCA_OPTIONS, tbf.options());
            let mut message = TcMessage::default();
            message.attributes = vec![TcAttribute::Options(vec![TcOption::Other(nla)])];
            let read = Tbf::read(&message).unwrap();
            assert_eq!((read.rate, read.limit), (rate, 200_000));
        }
    }

    /// As the kernel lays it out, which has no netem where these tests run: the struct, then attributes.
    fn netem(words: [u32; 6], exact: &[(u16, u64)]) -> TcMessage {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        for (kind, value) in exact {
            bytes.extend(12u16.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value.to_ne_bytes());
        }
        let mut message = TcMessage::default();
        let options = TcOption::Other(DefaultNla::new(TCA_OPTIONS, bytes));
        message.attributes = vec![TcAttribute::Kind("netem".to_owned()), TcAttribute::Options(vec![options])];
        message
    }

    #[test]
    fn a_netem_reads_back() {
        // 100 ms and 5 ms in ticks, 2,000 packets, a half.
        let words = [1_562_500, 2000, u32::MAX / 2, 0, 0, 78_125];
        let read = Netem { latency: 100_000_000, jitter: 5_000_000, limit: 2000, loss: u32::MAX / 2 };
        assert_eq!(Netem::read(&netem(words, &[])), Some(read));
        // What ticks of 32 bits can't tell, newer kernels tell in ns; the order of attributes is theirs.
        let exact = [(1, 0), (TCA_NETEM_JITTER64, 7), (TCA_NETEM_LATENCY64, 400_000_000_000)];
        let read = Netem { latency: 400_000_000_000, jitter: 7, ..read };
        assert_eq!(Netem::read(&netem([u32::MAX, 2000, u32::MAX / 2, 0, 0, 0], &exact)), Some(read));
        let mut short = netem(words, &[]);
        short.attributes = vec![TcAttribute::Options(vec![TcOption::Other(DefaultNla::new(2, vec![1; 20]))])];
        assert_eq!(Netem::read(&short), None);
    }
}
