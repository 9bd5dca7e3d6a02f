//! Loads memory into the cache ahead of its use.

/// Asks the processor to load `slice[index]` into its cache, for a read that follows soon at a
/// place that it cannot foresee. Does nothing for an index behind the end, and on processors other
/// than x86-64.
pub fn prefetch<T>(slice: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(item) = slice.get(index) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction is part of SSE, which every x86-64 processor has. It changes no
        // memory and raises no fault at any address; this one is that of a live item.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = slice.get(index);
}
