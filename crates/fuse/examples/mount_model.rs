//! Mounts an empty model of a file system on the directory that the first argument names, until it
//! is unmounted. For suites that test a mount, such as pjdfstest.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use weald_fuse::{MountOptions, MountPoint, mount_writable};
use weald_model::ModelFs;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let dir = arguments
        .next()
        .ok_or("usage: mount_model DIRECTORY [OPTIONS]")?;
    let list = arguments.next().unwrap_or_default();
    let list = list.to_string_lossy();
    let (options, writable) = MountOptions::parse_writable([list], &mut |_| Ok(false))?;
    let point = MountPoint::open(Path::new(&dir))?;
    let fs = Arc::new(ModelFs::new(0o755, 0));
    let mount = mount_writable(fs, OsStr::new("model"), &point, &options, &writable, None)?;
    mount.wait()?;
    Ok(())
}
