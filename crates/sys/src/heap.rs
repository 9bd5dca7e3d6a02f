//! Controls how much free memory the allocator keeps.

/// Returns free memory of the allocator to the system, in whole pages. glibc keeps, in each of its
/// arenas, memory that was freed between two live allocations, and never returns it by itself.
/// Other allocators are not affected.
///
/// # Cost
/// A walk over all free memory, under the lock of one arena after the other: milliseconds.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function has no preconditions, and does not move live allocations.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes all threads allocate from one heap. Use it in a long-lived process whose large values are
/// allocated by one thread and freed by another. By default glibc gives each thread an arena, up to
/// eight per processor, and memory that is free in one arena is not available to others. Other
/// allocators are not affected. Call it before threads are started: existing arenas remain.
///
/// # Cost
/// Threads contend for the heap's lock on allocations of more than a kilobyte.
pub fn share_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function sets a number that is read when a thread needs an arena.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
