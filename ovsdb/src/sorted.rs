//! Persistent ordered collections: what a set or map column holds.
//!
//! A logical switch refers to its ports by one set column, which can hold a
//! hundred thousand elements and changes with every pod. A change keeps the old
//! row alive (consumers get old and new), so a plain B-tree would be copied whole
//! each time. These collections share structure instead: small ones (nearly all)
//! are one sorted slice, big ones a list of sorted chunks, of which a change
//! copies one. Cloning is one reference count.
//!
//! [`AtomSet`] and [`AtomMap`] have the parts of the interface of the standard
//! B-tree collections that callers need, and convert from and to them.

use std::cmp::Ordering;
use std::sync::Arc;

/// Chunks are split above this length, so one insertion copies at most this many.
const MAX_CHUNK: usize = 256;
/// Neighbours that together are below this are merged after a removal.
const MIN_CHUNK: usize = 64;

/// An element of a sorted collection: a set's atom or a map's pair.
pub(crate) trait Entry: Clone {
    /// What it is sorted by.
    type Key: Ord;
    /// Its key.
    fn key(&self) -> &Self::Key;
}

/// Sorted, duplicate-free, persistent.
#[derive(Clone)]
pub(crate) enum Sorted<E> {
    /// Up to [`MAX_CHUNK`] entries.
    Flat(Option<Arc<[E]>>),
    /// More: non-empty chunks in order.
    Chunked(Arc<Chunks<E>>),
}

/// The chunks of a big collection.
#[derive(Clone)]
pub(crate) struct Chunks<E> {
    len: usize,
    chunks: Vec<Arc<[E]>>,
}

impl<E: Entry> Sorted<E> {
    pub(crate) const fn new() -> Self {
        Self::Flat(None)
    }

    /// From entries in strictly ascending order.
    fn from_ascending(entries: Vec<E>) -> Self {
        if entries.is_empty() {
            return Self::new();
        }
        if entries.len() <= MAX_CHUNK {
            return Self::Flat(Some(entries.into()));
        }
        let len = entries.len();
        let mut chunks = Vec::with_capacity(len / (MAX_CHUNK / 2) + 1);
        let mut rest = entries.into_iter();
        loop {
            let chunk: Vec<E> = rest.by_ref().take(MAX_CHUNK / 2).collect();
            if chunk.is_empty() {
                break;
            }
            chunks.push(chunk.into());
        }
        Self::Chunked(Arc::new(Chunks { len, chunks }))
    }

    /// From entries in any order; of two with one key the later wins.
    pub(crate) fn from_unsorted(mut entries: Vec<E>) -> Self {
        let ascending = entries.windows(2).all(|w| w[0].key() < w[1].key());
        if !ascending {
            // The sort is stable, so the later duplicate comes second: keep it.
            entries.sort_by(|a, b| a.key().cmp(b.key()));
            let mut unique: Vec<E> = Vec::with_capacity(entries.len());
            for entry in entries {
                match unique.last_mut() {
                    Some(last) if last.key() == entry.key() => *last = entry,
                    _ => unique.push(entry),
                }
            }
            entries = unique;
        }
        Self::from_ascending(entries)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Flat(None) => 0,
            Self::Flat(Some(entries)) => entries.len(),
            Self::Chunked(c) => c.len,
        }
    }

    pub(crate) fn iter(&self) -> Iter<'_, E> {
        let (chunks, current): (&[Arc<[E]>], &[E]) = match self {
            Self::Flat(None) => (&[], &[]),
            Self::Flat(Some(entries)) => (&[], entries),
            Self::Chunked(c) => (&c.chunks, &[]),
        };
        Iter { left: self.len(), chunks: chunks.iter(), current: current.iter() }
    }

    pub(crate) fn get(&self, key: &E::Key) -> Option<&E> {
        let slice: &[E] = match self {
            Self::Flat(entries) => entries.as_deref()?,
            Self::Chunked(c) => &c.chunks[c.chunk_of(key)],
        };
        slice.binary_search_by(|e| e.key().cmp(key)).ok().map(|i| &slice[i])
    }

    /// Inserts or replaces; returns what was there.
    pub(crate) fn insert(&mut self, entry: E) -> Option<E> {
        match self {
            Self::Flat(None) => {
                *self = Self::Flat(Some(Arc::new([entry])));
                None
            }
            Self::Flat(Some(entries)) => {
                let (new, old) = inserted(entries, entry);
                *self = Self::from_ascending(new);
                old
            }
            Self::Chunked(c) => {
                let c = Arc::make_mut(c);
                let at = c.chunk_of(entry.key());
                let (mut new, old) = inserted(&c.chunks[at], entry);
                if new.len() > MAX_CHUNK {
                    let upper = new.split_off(new.len() / 2);
                    c.chunks.insert(at + 1, upper.into());
                }
                c.chunks[at] = new.into();
                c.len += usize::from(old.is_none());
                old
            }
        }
    }

    /// Removes; returns what was there.
    pub(crate) fn remove(&mut self, key: &E::Key) -> Option<E> {
        match self {
            Self::Flat(entries) => {
                let slice = entries.as_deref()?;
                let at = slice.binary_search_by(|e| e.key().cmp(key)).ok()?;
                let (new, old) = removed(slice, at);
                *self = Self::from_ascending(new);
                Some(old)
            }
            Self::Chunked(c) => {
                let at = c.chunk_of(key);
                let within = c.chunks[at].binary_search_by(|e| e.key().cmp(key)).ok()?;
                let c = Arc::make_mut(c);
                let (new, old) = removed(&c.chunks[at], within);
                c.len -= 1;
                c.chunks[at] = new.into();
                c.merge_around(at);
                if c.len <= MAX_CHUNK / 2 {
                    let all: Vec<E> = self.iter().cloned().collect();
                    *self = Self::from_ascending(all);
                }
                Some(old)
            }
        }
    }
}

impl<E: Entry> Chunks<E> {
    /// Index of the chunk where `key` is or belongs. There is at least one chunk.
    fn chunk_of(&self, key: &E::Key) -> usize {
        self.chunks.partition_point(|c| c[0].key() <= key).saturating_sub(1)
    }

    fn merge_around(&mut self, at: usize) {
        if self.chunks[at].is_empty() {
            self.chunks.remove(at);
            return;
        }
        for left in [at, at.wrapping_sub(1)] {
            if left.checked_add(1).is_some_and(|right| right < self.chunks.len())
                && self.chunks[left].len() + self.chunks[left + 1].len() < MIN_CHUNK
            {
                let mut both = self.chunks[left].to_vec();
                both.extend_from_slice(&self.chunks[left + 1]);
                self.chunks[left] = both.into();
                self.chunks.remove(left + 1);
                return;
            }
        }
    }
}

fn inserted<E: Entry>(entries: &[E], entry: E) -> (Vec<E>, Option<E>) {
    let mut new = Vec::with_capacity(entries.len() + 1);
    match entries.binary_search_by(|e| e.key().cmp(entry.key())) {
        Ok(at) => {
            new.extend_from_slice(entries);
            let old = std::mem::replace(&mut new[at], entry);
            (new, Some(old))
        }
        Err(at) => {
            new.extend_from_slice(&entries[..at]);
            new.push(entry);
            new.extend_from_slice(&entries[at..]);
            (new, None)
        }
    }
}

fn removed<E: Entry>(entries: &[E], at: usize) -> (Vec<E>, E) {
    let mut new = Vec::with_capacity(entries.len() - 1);
    new.extend_from_slice(&entries[..at]);
    new.extend_from_slice(&entries[at + 1..]);
    (new, entries[at].clone())
}

impl<E: Entry + PartialEq> PartialEq for Sorted<E> {
    fn eq(&self, other: &Self) -> bool {
        let same = match (self, other) {
            (Self::Flat(Some(a)), Self::Flat(Some(b))) => Arc::ptr_eq(a, b),
            (Self::Chunked(a), Self::Chunked(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        same || (self.len() == other.len() && self.iter().eq(other.iter()))
    }
}

impl<E: Entry + PartialEq> Sorted<E> {
    /// What has to go from `self` and what has to come to make it `newer`. Costs as
    /// much as the parts that both do not share: of two versions of one collection
    /// a few chunks, however long it is.
    pub(crate) fn delta(&self, newer: &Self) -> (Vec<E>, Vec<E>) {
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        let (old, new) = (self.parts(), newer.parts());
        let (mut a, mut b) = (Place::default(), Place::default());
        loop {
            if a.offset == 0 && b.offset == 0 {
                let shared = old[a.chunk..].iter().zip(&new[b.chunk..]);
                let shared = shared.take_while(|(x, y)| Arc::ptr_eq(x, y)).count();
                a.chunk += shared;
                b.chunk += shared;
            }
            match (a.get(old), b.get(new)) {
                (None, None) => return (gone, come),
                (Some(x), Some(y)) if x.key() == y.key() => {
                    if x != y {
                        gone.push(x.clone());
                        come.push(y.clone());
                    }
                    a.advance(old);
                    b.advance(new);
                }
                (Some(x), y) if y.is_none_or(|y| x.key() < y.key()) => {
                    gone.push(x.clone());
                    a.advance(old);
                }
                (_, Some(y)) => {
                    come.push(y.clone());
                    b.advance(new);
                }
                (Some(_), None) => return (gone, come),
            }
        }
    }

    fn parts(&self) -> &[Arc<[E]>] {
        match self {
            Self::Flat(None) => &[],
            Self::Flat(Some(entries)) => std::slice::from_ref(entries),
            Self::Chunked(c) => &c.chunks,
        }
    }
}

/// A place in a list of chunks, none of which is empty.
#[derive(Default)]
struct Place {
    chunk: usize,
    offset: usize,
}

impl Place {
    fn get<'a, E>(&self, chunks: &'a [Arc<[E]>]) -> Option<&'a E> {
        chunks.get(self.chunk)?.get(self.offset)
    }

    fn advance<E>(&mut self, chunks: &[Arc<[E]>]) {
        self.offset += 1;
        if chunks.get(self.chunk).is_none_or(|chunk| self.offset >= chunk.len()) {
            self.chunk += 1;
            self.offset = 0;
        }
    }
}

impl<E: Entry + Ord> Sorted<E> {
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        self.iter().cmp(other.iter())
    }
}

/// Ascending iterator over the entries of a collection.
pub(crate) struct Iter<'a, E> {
    left: usize,
    chunks: std::slice::Iter<'a, Arc<[E]>>,
    current: std::slice::Iter<'a, E>,
}

impl<E> Clone for Iter<'_, E> {
    fn clone(&self) -> Self {
        Self { left: self.left, chunks: self.chunks.clone(), current: self.current.clone() }
    }
}

impl<'a, E> Iterator for Iter<'a, E> {
    type Item = &'a E;
    fn next(&mut self) -> Option<&'a E> {
        loop {
            if let Some(entry) = self.current.next() {
                self.left -= 1;
                return Some(entry);
            }
            self.current = self.chunks.next()?.iter();
        }
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<E> ExactSizeIterator for Iter<'_, E> {}
