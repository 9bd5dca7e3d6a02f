//! What the allocator keeps.

/// Gives memory that the allocator keeps for later back to the system, whole pages of it. glibc keeps what was freed between two things
/// that live on, for each of its arenas, and never gives it back by itself; other allocators are left to themselves.
///
/// # Cost
/// A walk over all that is free, under the lock of one arena after the other: milliseconds.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it has no preconditions, and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
