//! How many bytes of a page a group may take.

/// Most bytes of key and value with which a leaf of one pair fits into a page of 4,096 bytes. redb
/// adds a head of 4 bytes and two ends of 4.
const PAIR_LEN_MAX: usize = 4096 - 12;

/// Most bytes of a group.
#[cfg(not(any(test, feature = "planted-bugs")))]
pub(super) const fn pair_len_max() -> usize {
    PAIR_LEN_MAX
}

/// Most bytes of a group. Simulations make it small, since their tables would fit into a page.
#[cfg(any(test, feature = "planted-bugs"))]
pub(super) fn pair_len_max() -> usize {
    trial::PAIR_LEN_MAX_HERE.get()
}

/// Settings of simulations, which hold for the thread that makes them.
#[cfg(any(test, feature = "planted-bugs"))]
pub mod trial {
    use std::cell::Cell;

    thread_local! {
        pub(super) static PAIR_LEN_MAX_HERE: Cell<usize> = const { Cell::new(super::PAIR_LEN_MAX) };
        static LOSES_ROWS: Cell<bool> = const { Cell::new(false) };
    }

    /// Sets the limit of groups by `seed`, and whether a divided group loses its last rows.
    pub fn set(seed: u64, loses_rows: bool) {
        let lens = [super::PAIR_LEN_MAX, 200, 600];
        PAIR_LEN_MAX_HERE.set(lens[(seed % 3) as usize]);
        LOSES_ROWS.set(loses_rows);
    }

    /// Whether a divided group loses its last rows.
    pub(crate) fn loses_rows() -> bool {
        LOSES_ROWS.get()
    }
}
