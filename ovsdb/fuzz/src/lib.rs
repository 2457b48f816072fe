//! What the fuzzers check, as plain functions of their input: `fuzz_targets/` call
//! them with what libFuzzer thinks up, `tests/fuzz_corpus.rs` (stable toolchain)
//! with the committed corpus.

pub mod delta;
pub mod framer;
pub mod notation;

/// Fuzzer input, taken from the front. Zeroes when it is used up.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of it.
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }
    /// Whether it is used up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }
    /// The next `count` bytes, or what is left.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
    /// Whatever is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }
    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }
    /// One of these.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
