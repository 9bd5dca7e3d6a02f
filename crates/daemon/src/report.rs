//! What a server tells of itself and of its mounts.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use weald_fuse::{Counters, OperationCount};
use weald_image::CacheCounts;

/// A server, as it is at one moment.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ServerReport {
    /// Version of its program.
    pub version: String,
    /// Its process id, in its own PID namespace.
    pub pid: u32,
    /// Whether further mounts join it.
    pub is_shared: bool,
    /// When it began: seconds since 1970; a server that took over keeps no older time.
    pub started: u64,
    /// Bytes of memory it holds (RSS).
    pub resident_len: u64,
    /// Files it has open.
    pub descriptor_count: u64,
    /// The cache that its mounts share.
    pub cache: CacheReport,
    /// How many mounts it has.
    pub mount_count: u64,
    /// Its mounts, the oldest first.
    pub mounts: Vec<MountReport>,
}

/// A cache of decoded data.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct CacheReport {
    /// Limit in bytes.
    pub len_max: u64,
    /// Bytes in it.
    pub used_len: u64,
    /// Requests that it could answer.
    pub hit_count: u64,
    /// Requests that it could not.
    pub miss_count: u64,
}

/// A mount, as it is at one moment.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct MountReport {
    /// The directory it is mounted on.
    pub dir: OsString,
    /// The file of the image.
    pub image: OsString,
    /// Image digest, 64 hexadecimal digits.
    pub image_digest: String,
    /// Generation of the image that is mounted.
    pub generation: u64,
    /// When it was mounted: seconds since 1970.
    pub started: u64,
    /// Device number, `MAJOR:MINOR`.
    pub device: String,
    /// The arguments of `-o`.
    pub options: Vec<String>,
    /// Requests of the kernel that failed because the image could not be read (EIO).
    pub error_count: u64,
    /// Requests under way.
    pub in_flight: u64,
    /// Bytes of content handed out.
    pub read_len: u64,
    /// Hits and misses of this mount, in whatever cache it has.
    pub cache: CacheReport,
    /// Requests by operation.
    pub operations: Vec<OperationReport>,
}

/// The requests of one operation of the kernel's protocol.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct OperationReport {
    /// Its name, as in `LOOKUP`.
    pub name: String,
    /// Requests answered.
    pub count: u64,
    /// Those answered by an error, whatever it was.
    pub error_count: u64,
    /// Nanoseconds that all of them took.
    pub total_ns: u64,
    /// How many took less than 2^i microseconds, but not less than half of that; the last: all that
    /// took longer.
    pub latency_counts: Vec<u64>,
}

/// A time that a share of all requests did not reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantile {
    /// There were no requests.
    None,
    /// Less than so many microseconds.
    Below(u64),
    /// So many microseconds or more.
    AtLeast(u64),
}

impl CacheReport {
    /// Share of requests answered, from 0 to 1; `None` where there were none.
    pub fn hit_rate(&self) -> Option<f64> {
        let count = self.hit_count.saturating_add(self.miss_count);
        (count > 0).then(|| self.hit_count as f64 / count as f64)
    }
}

impl MountReport {
    /// Requests of all operations.
    pub fn request_count(&self) -> u64 {
        self.operations
            .iter()
            .map(|operation| operation.count)
            .sum()
    }

    pub(crate) fn count(&mut self, counters: Counters) {
        self.error_count = counters.error_count;
        self.in_flight = counters.in_flight;
        self.read_len = counters.read_len;
        self.operations = counters.operations.into_iter().map(Into::into).collect();
    }
}

impl OperationReport {
    /// Mean time in microseconds; `None` where there were no requests.
    pub fn mean_us(&self) -> Option<f64> {
        (self.count > 0).then(|| self.total_ns as f64 / self.count as f64 / 1000.0)
    }

    /// The time that `share` of the requests (0 to 1) did not reach, as exactly as the buckets
    /// tell.
    pub fn quantile(&self, share: f64) -> Quantile {
        let count: u64 = self.latency_counts.iter().sum();
        if count == 0 {
            return Quantile::None;
        }
        // At least one: the least of all requests is the quantile 0.
        let wanted = ((count as f64 * share).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        for (index, bucket_count) in self.latency_counts.iter().enumerate() {
            seen += bucket_count;
            if seen >= wanted {
                return match index + 1 == self.latency_counts.len() {
                    true => Quantile::AtLeast(bound_us(index.saturating_sub(1))),
                    false => Quantile::Below(bound_us(index)),
                };
            }
        }
        Quantile::None
    }
}

/// The end of bucket `index` in microseconds.
pub(crate) fn bound_us(index: usize) -> u64 {
    u32::try_from(index)
        .ok()
        .and_then(|shift| 1u64.checked_shl(shift))
        .unwrap_or(u64::MAX)
}

impl From<CacheCounts> for CacheReport {
    fn from(counts: CacheCounts) -> Self {
        Self {
            len_max: counts.len_max,
            used_len: counts.used_len,
            hit_count: counts.hit_count,
            miss_count: counts.miss_count,
        }
    }
}

impl From<OperationCount> for OperationReport {
    fn from(count: OperationCount) -> Self {
        Self {
            name: count.name,
            count: count.count,
            error_count: count.error_count,
            total_ns: count.total_ns,
            latency_counts: count.latency_counts,
        }
    }
}

/// Files that this process has open; 0 where `/proc` does not say.
pub(crate) fn descriptor_count() -> u64 {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return 0;
    };
    // The directory that is read is one of them.
    (entries.count() as u64).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_name_the_bucket_that_holds_them() {
        let of = |counts: &[u64], share| {
            let operation = OperationReport {
                latency_counts: counts.to_vec(),
                ..OperationReport::default()
            };
            operation.quantile(share)
        };
        assert_eq!(of(&[], 0.5), Quantile::None);
        assert_eq!(of(&[0, 0], 0.5), Quantile::None);
        assert_eq!(of(&[1, 0, 0], 0.0), Quantile::Below(1));
        assert_eq!(of(&[50, 49, 1, 0], 0.5), Quantile::Below(1));
        assert_eq!(of(&[50, 49, 1, 0], 0.51), Quantile::Below(2));
        assert_eq!(of(&[50, 49, 1, 0], 1.0), Quantile::Below(4));
        assert_eq!(of(&[0, 0, 0, 7], 0.99), Quantile::AtLeast(4));
    }

    #[test]
    fn rates_and_means_of_nothing_are_none() {
        assert_eq!(CacheReport::default().hit_rate(), None);
        assert_eq!(OperationReport::default().mean_us(), None);
        let cache = CacheReport {
            hit_count: 3,
            miss_count: 1,
            ..CacheReport::default()
        };
        assert_eq!(cache.hit_rate(), Some(0.75));
    }
}
