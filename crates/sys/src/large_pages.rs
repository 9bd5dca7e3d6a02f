//! Large pages for large allocations. Programs with random access to tables of many mebibytes
//! profit: with pages of 4 KiB, each access to another page needs a page table lookup, and the
//! tables of an encoder have ten thousand pages.

#[cfg(target_env = "musl")]
use mimalloc::MiMalloc as System;
#[cfg(not(target_env = "musl"))]
use std::alloc::System;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, Ordering};

static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// Minimum length of an allocation that asks for large pages, bytes. It is shorter than a large
/// page, because neighbours may fill one together. For shorter allocations the system call costs
/// more than it saves.
const ADVISED_LEN_MIN: usize = 256 << 10;

/// The system's allocator; in a static program mimalloc, because all threads wait for one lock in
/// that of musl. It asks for large pages for large allocations after a call of
/// [`want_large_pages`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Allocator;

/// Makes large allocations through [`Allocator`] ask the kernel for large pages from now on. Has no
/// effect if the system does not have them or has them disabled.
///
/// # Cost
/// Up to a large page (2 MiB on x86) more memory per such allocation. The first access to a large
/// page clears all of it. So memory that is filled once and dropped costs more than before.
/// # Source
/// madvise(2), `MADV_HUGEPAGE`.
pub fn want_large_pages() {
    IS_WANTED.store(true, Ordering::Relaxed);
}

#[inline]
fn advise(start: *mut u8, len: usize) {
    if len >= ADVISED_LEN_MIN && IS_WANTED.load(Ordering::Relaxed) && !start.is_null() {
        advise_range(start, len);
    }
}

/// Asks for large pages in the whole pages of an allocation. A kernel without support refuses, and
/// nothing changes.
#[cfg(target_os = "linux")]
#[cold]
fn advise_range(start: *mut u8, len: usize) {
    let page_len = rustix::param::page_size();
    let skipped = start.addr().wrapping_neg() % page_len;
    let Some(rest) = len.checked_sub(skipped) else {
        return;
    };
    let start = start.wrapping_add(skipped);
    // SAFETY: the pages lie in an allocation of the caller, and the advice does not change their
    // contents.
    let _ = unsafe {
        rustix::mm::madvise(
            start.cast(),
            rest - rest % page_len,
            rustix::mm::Advice::LinuxHugepage,
        )
    };
}

#[cfg(not(target_os = "linux"))]
fn advise_range(_: *mut u8, _: usize) {}

// SAFETY: all four functions forward to the system's allocator. The advice does not change the
// contents of memory and allocates nothing.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are those that the system's allocator requires.
        let start = unsafe { System.alloc(layout) };
        advise(start, layout.size());
        start
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let start = unsafe { System.alloc_zeroed(layout) };
        advise(start, layout.size());
        start
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: as above.
        let start = unsafe { System.realloc(old, layout, len) };
        advise(start, len);
        start
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches: an advised range outside the allocation, which the kernel refuses or applies to
    /// other memory; lost bytes.
    #[test]
    #[cfg(target_os = "linux")]
    fn large_allocations_hold_what_is_written() {
        want_large_pages();
        for len in [
            ADVISED_LEN_MIN - 1,
            ADVISED_LEN_MIN,
            (4 << 20) + 5,
            (9 << 20) + 123,
        ] {
            let layout = Layout::from_size_align(len, 16).unwrap();
            let grown = Layout::from_size_align(len * 2, 16).unwrap();
            // SAFETY: each pointer is used within its layout and freed once.
            unsafe {
                let start = Allocator.alloc_zeroed(layout);
                assert!(
                    std::slice::from_raw_parts(start, len)
                        .iter()
                        .all(|&b| b == 0)
                );
                start.write_bytes(7, len);
                let start = Allocator.realloc(start, layout, len * 2);
                assert!(
                    std::slice::from_raw_parts(start, len)
                        .iter()
                        .all(|&b| b == 7)
                );
                Allocator.dealloc(start, grown);
            }
        }
        // The request is visible: "hg" marks a range with this advice.
        let layout = Layout::from_size_align(64 << 20, 16).unwrap();
        // SAFETY: as above.
        let start = unsafe { Allocator.alloc(layout) };
        let knows_large_pages = std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap();
        assert_eq!(is_advised(start.addr() + (32 << 20)), knows_large_pages);
        // SAFETY: as above.
        unsafe { Allocator.dealloc(start, layout) };
    }

    /// Whether the mapping of `address` has the advice, according to /proc/self/smaps.
    #[cfg(target_os = "linux")]
    fn is_advised(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|r| r.split_once('-'));
            let hex = |s: &str| usize::from_str_radix(s, 16).ok();
            if let Some((start, end)) = range.and_then(|(a, b)| Some((hex(a)?, hex(b)?))) {
                is_inside = (start..end).contains(&address);
            }
            if is_inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.split(' ').any(|flag| flag == "hg");
            }
        }
        false
    }
}
