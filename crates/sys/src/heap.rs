//! What the allocator keeps.

/// Gives memory that the allocator keeps for later back to the system, whole pages of it. glibc
/// keeps what was freed between two things that live on, for each of its arenas, and never gives it
/// back by itself; other allocators are left to themselves.
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

/// Has all threads allocate from one heap, for a process that lives long and whose large values are
/// made by one thread and dropped by another. glibc gives each thread an arena of its own, up to
/// eight for each processor, in which what another thread would need lies free. Other allocators
/// are left to themselves. To be called before threads are started: an arena that is there stays.
///
/// # Cost
/// Threads wait for each other where they allocate more than a kilobyte at once.
pub fn share_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets a number that is looked at when a thread needs an arena.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
