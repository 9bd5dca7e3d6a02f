//! How bad a network is, and what is on its way.

use super::Random;

#[derive(Debug)]
pub(super) struct NetworkState {
    pub random: Random,
    /// One of so many calls fails; none if zero.
    pub fails_one_in: u64,
    /// What arrives later.
    pub late: Vec<(String, Vec<u8>)>,
}
