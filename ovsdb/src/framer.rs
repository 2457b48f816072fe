//! Cuts a byte stream into JSON messages.
//!
//! OVSDB sends JSON objects one after the other, without lengths and often
//! without white space. The framer counts braces outside of strings. It keeps its
//! state between reads and never looks at a byte twice, so a message of
//! 100 MB that comes in 4 KiB reads costs what it weighs.
//!
//! What comes out depends on the bytes alone, not on how they were cut into reads:
//! `fuzz/` holds it to that, and to its bound on memory.

use bytes::{Buf, Bytes, BytesMut};

/// The stream is not a sequence of JSON objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A byte between messages that begins none.
    #[error("byte {0:#04x} where a message should begin")]
    Garbage(u8),
    /// A message beyond the limit.
    #[error("a message is longer than {0} bytes")]
    TooLong(usize),
}

/// The resumable scanner and its buffer.
#[derive(Debug)]
pub struct Framer {
    buffer: BytesMut,
    /// Bytes of `buffer` already looked at; the message begins at 0.
    scanned: usize,
    depth: usize,
    in_string: bool,
    /// The last byte looked at was a backslash within a string.
    escaped: bool,
    max: usize,
    /// What was wrong with the stream. There is no way to find back into it.
    failed: Option<FrameError>,
}

/// Room that each read is offered.
const READ: usize = 64 << 10;
/// The buffer that a longer message needed is not kept.
const LARGE: usize = 1 << 20;

impl Framer {
    /// A framer that refuses messages longer than `max` bytes.
    pub fn new(max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            scanned: 0,
            depth: 0,
            in_string: false,
            escaped: false,
            max,
            failed: None,
        }
    }

    /// Where to read into: append bytes at its end, take none away.
    pub fn buffer(&mut self) -> &mut BytesMut {
        self.buffer.reserve(READ);
        &mut self.buffer
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes of memory held.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Whether part of a message is waiting for its rest.
    pub fn is_mid_message(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// The next whole message, `None` until more bytes are there. An error is for good.
    pub fn next_message(&mut self) -> Result<Option<Bytes>, FrameError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let result = self.scan();
        if let Err(error) = result {
            self.failed = Some(error);
            self.buffer = BytesMut::new();
        }
        result
    }

    fn scan(&mut self) -> Result<Option<Bytes>, FrameError> {
        if self.depth == 0 {
            let blank = self.buffer.iter().take_while(|b| b.is_ascii_whitespace()).count();
            self.buffer.advance(blank);
            match self.buffer.first() {
                None => return Ok(None),
                Some(b'{') => {}
                Some(&other) => return Err(FrameError::Garbage(other)),
            }
        }
        while self.scanned < self.buffer.len() {
            if self.in_string {
                self.scan_string();
                continue;
            }
            let byte = self.buffer[self.scanned];
            self.scanned += 1;
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        if self.scanned > self.max {
                            return Err(FrameError::TooLong(self.max));
                        }
                        let message = self.buffer.split_to(self.scanned).freeze();
                        self.scanned = 0;
                        if message.len() > LARGE {
                            // Part from the big allocation, so that it is freed with the message.
                            self.buffer = BytesMut::from(&self.buffer[..]);
                        }
                        return Ok(Some(message));
                    }
                }
                _ => {}
            }
        }
        if self.buffer.len() > self.max { Err(FrameError::TooLong(self.max)) } else { Ok(None) }
    }

    /// Goes on within a string, up to after its end or to the end of the buffer.
    fn scan_string(&mut self) {
        if self.escaped {
            self.escaped = false;
            self.scanned += 1;
            return;
        }
        match memchr::memchr2(b'"', b'\\', &self.buffer[self.scanned..]) {
            None => self.scanned = self.buffer.len(),
            Some(at) => {
                self.escaped = self.buffer[self.scanned + at] == b'\\';
                self.in_string = self.escaped;
                self.scanned += at + 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(framer: &mut Framer) -> Vec<Bytes> {
        std::iter::from_fn(|| framer.next_message().unwrap()).collect()
    }

    #[test]
    fn strings_hide_braces_and_escapes_hide_quotes() {
        let messages = [r#"{"a":"}{\"]["}"#, r#"{"b":["\\",{"c":"\\\""}]}"#, "{}"];
        let mut framer = Framer::new(1000);
        framer.push(format!("  {}\n{}{} ", messages[0], messages[1], messages[2]).as_bytes());
        assert_eq!(all(&mut framer), messages);
        assert!(!framer.is_mid_message());
    }

    #[test]
    fn garbage_and_length_are_refused() {
        let mut framer = Framer::new(10);
        framer.push(b"{} x");
        assert!(framer.next_message().unwrap().is_some());
        assert_eq!(framer.next_message(), Err(FrameError::Garbage(b'x')));
        let mut framer = Framer::new(10);
        framer.push(b"{\"aaaaaaaaaaaaaa");
        assert_eq!(framer.next_message(), Err(FrameError::TooLong(10)));
        let mut framer = Framer::new(10);
        framer.push(b"}");
        assert_eq!(framer.next_message(), Err(FrameError::Garbage(b'}')));
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(Into::into),
            "[\\[\\]{}\"\\\\a-zé\n]{0,12}".prop_map(serde_json::Value::String)
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::Array),
                prop::collection::btree_map("[{}\"\\\\a]{0,4}", inner, 0..4)
                    .prop_map(|m| serde_json::Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_chunks_give_the_same_messages(bodies in prop::collection::vec(json(), 1..8), cuts in prop::collection::vec(1usize..40, 1..60)) {
            let messages: Vec<String> = bodies.iter().map(|b| serde_json::json!({"x": b}).to_string()).collect();
            let stream = messages.concat();
            let mut framer = Framer::new(1 << 20);
            let mut got = Vec::new();
            let mut rest = stream.as_bytes();
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (chunk, tail) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                framer.push(chunk);
                rest = tail;
                got.extend(all(&mut framer));
            }
            prop_assert_eq!(got, messages);
        }
    }
}
