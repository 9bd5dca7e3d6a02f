//! Numbers of devices, as the kernel shows them.

use std::fmt;

/// Number of the device of a mounted file system, shown as `MAJOR:MINOR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DeviceNo {
    /// What drives the device; 0 for a file system without a block device.
    pub major: u32,
    /// Which of these devices.
    pub minor: u32,
}

impl DeviceNo {
    /// Parses `MAJOR:MINOR`.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
        Some(Self { major, minor })
    }
}

impl fmt::Display for DeviceNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}
