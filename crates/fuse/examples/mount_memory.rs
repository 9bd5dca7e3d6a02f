//! Mounts an empty file system in memory on the directory that the first argument names, until it
//! is unmounted. For suites that test a mount, such as pjdfstest.

#[path = "../tests/support/memory.rs"]
#[allow(dead_code, missing_docs)]
mod memory;

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use weald_fuse::{MountOptions, MountPoint, mount_writable};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let dir = arguments
        .next()
        .ok_or("usage: mount_memory DIRECTORY [OPTIONS]")?;
    let list = arguments.next().unwrap_or_default();
    let list = list.to_string_lossy();
    let (options, writable) = MountOptions::parse_writable([list], &mut |_| Ok(false))?;
    let point = MountPoint::open(Path::new(&dir))?;
    let fs = Arc::new(memory::Memory::default());
    let mount = mount_writable(fs, OsStr::new("memory"), &point, &options, &writable, None)?;
    mount.wait()?;
    Ok(())
}
