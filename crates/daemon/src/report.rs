//! Status report of a server and its mounts.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use weald_codec::CodecSpec;
use weald_fuse::{Counters, LiveOptions, OperationCount};
use weald_image::CacheCounts;
use weald_volume::{Status, VolumeInfo};

/// State of a server at one moment.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ServerReport {
    /// Version of the server's program.
    pub version: String,
    /// Process id, in the server's own PID namespace.
    pub pid: u32,
    /// Whether new mounts join this server.
    pub is_shared: bool,
    /// Start time in seconds since 1970. After a take-over it is the start of the new process.
    pub started: u64,
    /// Resident memory (RSS) in bytes.
    pub resident_len: u64,
    /// Number of open file descriptors.
    pub descriptor_count: u64,
    /// Cache that the mounts share.
    pub cache: CacheReport,
    /// Number of mounts.
    pub mount_count: u64,
    /// Mounts of the server, oldest first.
    pub mounts: Vec<MountReport>,
}

/// State of a cache of decoded data.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct CacheReport {
    /// Size limit in bytes.
    pub len_max: u64,
    /// Bytes in the cache.
    pub used_len: u64,
    /// Number of cache hits.
    pub hit_count: u64,
    /// Number of cache misses.
    pub miss_count: u64,
}

/// State of a mount at one moment.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct MountReport {
    /// Mount point.
    pub dir: OsString,
    /// Path of the image file.
    pub image: OsString,
    /// Image digest, 64 hexadecimal digits.
    pub image_digest: String,
    /// Mounted generation of the image.
    pub generation: u64,
    /// Time of the mount in seconds since 1970.
    pub started: u64,
    /// Device number, `MAJOR:MINOR`.
    pub device: String,
    /// Arguments of `-o`.
    pub options: Vec<String>,
    /// Whether the kernel has ended the mount, and the server closes what it had mounted.
    pub is_over: bool,
    /// Options of a writable mount as they are now; a remount may have changed them.
    pub live: Option<LiveOptions>,
    /// Number of requests answered with EIO, because the image is damaged or unreadable.
    pub error_count: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Bytes of content read from files.
    pub read_len: u64,
    /// Cache of the mount: its own hits and misses, also in a shared cache.
    pub cache: CacheReport,
    /// Requests per operation.
    pub operations: Vec<OperationReport>,
    /// Properties of a volume; `None` for an image.
    pub volume: Option<VolumeProperties>,
    /// Figures of a volume, if the client asked for its space.
    pub space: Option<VolumeReport>,
}

/// Properties of a mounted volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeProperties {
    /// Length of a chunk in bytes.
    pub chunk_len: u32,
    /// Codec of new data, as the command line names it.
    pub codec: String,
    /// Whether names are found without regard to case.
    pub is_case_insensitive: bool,
}

impl From<&VolumeInfo> for VolumeProperties {
    fn from(info: &VolumeInfo) -> Self {
        Self {
            chunk_len: info.chunk_len,
            codec: codec_word(info.codec),
            is_case_insensitive: info.is_case_insensitive,
        }
    }
}

/// The word for a codec of volumes, as the command line takes it.
fn codec_word(codec: CodecSpec) -> String {
    match codec {
        CodecSpec::None => "none".to_owned(),
        CodecSpec::Lz4 => "lz4".to_owned(),
        CodecSpec::Zstd(level) => format!("zstd:{level}"),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// Space of a volume at one moment, and what a power cut would take.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Bytes of all files, holes left out.
    pub logical_len: u64,
    /// Bytes of distinct data.
    pub unique_len: u64,
    /// Bytes that are stored once and used more than once.
    pub shared_len: u64,
    /// Bytes on disk, after compression.
    pub stored_len: u64,
    /// Bytes of names and values of extended attributes.
    #[serde(default)]
    pub attribute_len: u64,
    /// Bytes of segments on the disk that belong to no block, and those of blocks that no file
    /// needs any more: the debt of the cleaner.
    #[serde(default)]
    pub dead_len: u64,
    /// Bytes that are written and not yet on disk.
    pub dirty_len: u64,
    /// Age of the oldest change that is not on disk, in seconds.
    pub risk_seconds: f64,
    /// Reason why the volume became read-only.
    pub failure: Option<String>,
    /// When that was, in seconds since 1970.
    #[serde(default)]
    pub failed_at: Option<u64>,
}

impl From<Status> for VolumeReport {
    fn from(status: Status) -> Self {
        Self {
            logical_len: status.logical_len,
            unique_len: status.unique_len,
            shared_len: status.shared_len,
            stored_len: status.stored_len,
            attribute_len: status.attribute_len,
            dead_len: status.dead_len,
            dirty_len: status.dirty_len,
            risk_seconds: status.at_risk,
            failure: status.failure,
            failed_at: status.failed_at.map(|at| {
                let since = at.duration_since(std::time::UNIX_EPOCH);
                since.map_or(0, |since| since.as_secs())
            }),
        }
    }
}

/// Requests of one operation of the FUSE protocol.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct OperationReport {
    /// Name of the operation, such as `lookup`.
    pub name: String,
    /// Number of requests.
    pub count: u64,
    /// Number of requests answered with EIO.
    pub error_count: u64,
    /// Sum of latencies in nanoseconds.
    pub total_ns: u64,
    /// Latency histogram. Entry `i` counts requests below 2^`i` microseconds that no earlier entry
    /// counts; the last entry counts all longer ones.
    pub latency_counts: Vec<u64>,
}

/// Quantile of the request latency, as precise as the histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantile {
    /// No requests.
    None,
    /// Below this number of microseconds.
    Below(u64),
    /// This number of microseconds or more.
    AtLeast(u64),
}

impl CacheReport {
    /// Share of hits in all cache requests, from 0 to 1; `None` without requests.
    pub fn hit_rate(&self) -> Option<f64> {
        let count = self.hit_count.saturating_add(self.miss_count);
        (count > 0).then(|| self.hit_count as f64 / count as f64)
    }
}

impl MountReport {
    /// Number of requests of all operations.
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
    /// Mean latency in microseconds; `None` without requests.
    pub fn mean_us(&self) -> Option<f64> {
        (self.count > 0).then(|| self.total_ns as f64 / self.count as f64 / 1000.0)
    }

    /// Latency that `share` (0 to 1) of the requests stay below, as precise as the histogram.
    pub fn quantile(&self, share: f64) -> Quantile {
        let count: u64 = self.latency_counts.iter().sum();
        if count == 0 {
            return Quantile::None;
        }
        // Rank 1 at least: quantile 0 is the fastest request.
        let rank = ((count as f64 * share).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        for (index, bucket_count) in self.latency_counts.iter().enumerate() {
            seen += bucket_count;
            if seen >= rank {
                return if index + 1 == self.latency_counts.len() {
                    Quantile::AtLeast(bound_us(index.saturating_sub(1)))
                } else {
                    Quantile::Below(bound_us(index))
                };
            }
        }
        Quantile::None
    }
}

/// Upper bound of bucket `index` in microseconds, exclusive.
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

/// Number of open file descriptors of this process; 0 if `/proc` is unreadable.
pub(crate) fn descriptor_count() -> u64 {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return 0;
    };
    // The open `/proc/self/fd` itself is one of the entries.
    (entries.count() as u64).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_bounds_of_buckets() {
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
    fn rates_and_means_without_requests_are_none() {
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
