//! The framer cuts a stream into the same messages however the stream was cut
//! into reads, and holds no more memory than its limit asks for.
//!
//! Input: limit, number of times that the stream is repeated, number and lengths
//! of reads, stream.

use ovsdb::framer::{FrameError, Framer};

use super::Input;

/// What came out of a stream: messages, what ended it, whether a message is unfinished.
type Cut = (Vec<Vec<u8>>, Option<FrameError>, bool);

/// Memory that the framer may hold beside what it was given: its own rounding.
const SLACK: usize = 192 << 10;

/// Longest stream made by repetition.
const MOST: usize = 200 << 10;

/// Checks one input.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let max = input.one_of(&[8, 16, 64, 1 << 10, 64 << 10]);
    let repeat = match input.byte() {
        255 => 512,
        n => 1 + usize::from(n) / 64,
    };
    let count = 1 + input.below(16);
    let reads: Vec<usize> = input.take(count).iter().map(|&b| 1 + usize::from(b)).collect();
    let stream = input.rest();
    let stream = stream.repeat(repeat.min(MOST / stream.len().max(1)).max(1));

    let expected = model(&stream, max);
    assert_eq!(cut(&stream, max, &[usize::MAX]), expected, "in one read");
    if !reads.is_empty() {
        assert_eq!(cut(&stream, max, &reads), expected, "in reads of {reads:?}");
    }
    if stream.len() <= 1024 {
        assert_eq!(cut(&stream, max, &[1]), expected, "byte by byte");
    }
    // A JSON parser finds the same messages, as long as it finds objects.
    let mut parser = serde_json::Deserializer::from_slice(&stream)
        .into_iter::<serde_json::Map<String, serde_json::Value>>();
    for message in &expected.0 {
        match parser.next() {
            Some(Ok(_)) => {
                let end = parser.byte_offset();
                assert!(stream[..end].ends_with(message), "a parser's message ends elsewhere");
            }
            _ => break,
        }
    }
}

fn cut(stream: &[u8], max: usize, reads: &[usize]) -> Cut {
    let mut framer = Framer::new(max);
    let mut messages = Vec::new();
    let mut rest = stream;
    for (turn, &read) in reads.iter().cycle().enumerate() {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at(read.min(rest.len()));
        rest = later;
        if turn % 2 == 0 {
            framer.push(now);
        } else {
            framer.buffer().extend_from_slice(now);
        }
        loop {
            match framer.next_message() {
                Ok(Some(message)) => messages.push(message.to_vec()),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(framer.next_message(), Err(error), "an error is for good");
                    return (messages, Some(error), false);
                }
            }
        }
        let bound = 2 * (max + now.len()) + SLACK;
        assert!(framer.capacity() <= bound, "{} bytes held of {bound}", framer.capacity());
    }
    (messages, None, framer.is_mid_message())
}

/// The same by looking at one byte after the other.
fn model(stream: &[u8], max: usize) -> Cut {
    let mut messages = Vec::new();
    let mut at = 0;
    loop {
        while stream.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        match stream.get(at) {
            None => return (messages, None, false),
            Some(b'{') => {}
            Some(&other) => return (messages, Some(FrameError::Garbage(other)), false),
        }
        let begin = at;
        let (mut depth, mut string, mut escape) = (0usize, false, false);
        loop {
            if at - begin > max {
                return (messages, Some(FrameError::TooLong(max)), false);
            }
            let Some(&byte) = stream.get(at) else { return (messages, None, true) };
            at += 1;
            match (string, escape, byte) {
                (true, true, _) => escape = false,
                (true, false, b'\\') => escape = true,
                (_, _, b'"') => string = !string,
                (false, _, b'{' | b'[') => depth += 1,
                (false, _, b'}' | b']') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        if at - begin > max {
            return (messages, Some(FrameError::TooLong(max)), false);
        }
        messages.push(stream[begin..at].to_vec());
    }
}
