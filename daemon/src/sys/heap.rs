//! How much memory the C library's allocator keeps.
//!
//! By default it opens a heap for every thread (namespaces are entered on
//! threads that live for a moment), and raises the size from which it gives
//! memory back with every large block that it sees. An agent that shares its
//! node with pods wants neither.

#[cfg(target_env = "gnu")]
mod gnu {
    /// Heaps: one per worker thread.
    const ARENAS: libc::c_int = 2;
    /// Blocks from this size on are the kernel's, and go back to it when freed.
    const MAPPED: libc::c_int = 64 * 1024;
    /// Free memory at a heap's end that goes back to the kernel.
    const TRIM: libc::c_int = 128 * 1024;

    /// Bounds what the allocator keeps. Call it first of all, before there are threads.
    pub fn bound_heap() {
        for (parameter, value) in
            [(libc::M_ARENA_MAX, ARENAS), (libc::M_MMAP_THRESHOLD, MAPPED), (libc::M_TRIM_THRESHOLD, TRIM)]
        {
            // SAFETY: takes two numbers. A refusal leaves the default, which works too.
            unsafe { libc::mallopt(parameter, value) };
        }
    }

    /// Gives free pages back to the kernel, wherever in the heaps they are. Milliseconds.
    pub fn trim_heap() {
        // SAFETY: takes a number; may be called at any time from any thread.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(not(target_env = "gnu"))]
mod other {
    /// Only the GNU library keeps that much.
    pub fn bound_heap() {}

    /// Only the GNU library keeps that much.
    pub fn trim_heap() {}
}

#[cfg(target_env = "gnu")]
pub use gnu::{bound_heap, trim_heap};
#[cfg(not(target_env = "gnu"))]
pub use other::{bound_heap, trim_heap};
