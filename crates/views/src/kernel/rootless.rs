//! The mount of a user in a user namespace: overlayfs with the option `userxattr`, over metadata
//! that a server shows through FUSE, and objects as a layer of data only.
//!
//! The overlay holds the only reference to the FUSE mount, so that the server ends with it.

use super::assemble::{attach, open_type, refused, reopen, shown_source};
use super::cache::{View, ViewCache, ViewOptions};
use super::image_file::open_volume;
use super::obtain::obtain;
use super::upper::{Upper, UpperLayer, XattrKind};
use rustix::mount::{
    FsMountFlags, MountAttrFlags, fsconfig_create, fsconfig_set_fd, fsconfig_set_flag,
    fsconfig_set_string, fsmount,
};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use weald_erofs::reader::Volume;
use weald_format::{Error, ErrorKind, Result};
use weald_image::Image;

/// The first kernel whose overlayfs has layers of data only together with `userxattr`.
const LINUX_MIN: (u32, u32) = (6, 16);

/// Refuses kernels and users that cannot have such a mount.
///
/// # Errors
/// `Unsupported`.
pub fn check_rootless() -> Result<()> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    if version(&release).is_none_or(|found| found < LINUX_MIN) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "--overlay needs Linux 6.16 (layers of data only with userxattr), and this is \
                 {release}: leave it out to mount through FUSE alone"
            ),
        ));
    }
    let sets = rustix::thread::capabilities(None);
    let right = rustix::thread::CapabilitySet::SYS_ADMIN;
    if sets.is_ok_and(|sets| sets.effective.contains(right)) {
        Ok(())
    } else {
        Err(Error::new(
            ErrorKind::Unsupported,
            "--overlay needs a user namespace in which you are root, as in 'unshare \
         --map-root-user --mount' or 'podman unshare': leave it out to mount through FUSE \
         alone",
        ))
    }
}

/// Major and minor version in a release such as `6.12.0-rc1`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

/// Returns the view of `image`, which is made if it is missing, with its metadata.
///
/// # Errors
/// As [`super::mount`].
pub fn view(image: &Image, cache: &ViewCache, options: &ViewOptions<'_>) -> Result<(View, Volume)> {
    let view = obtain(image, cache, options)?;
    let file = cache.open_image(view.name())?;
    let shown = cache.shown_at(&view.image_path());
    let volume = open_volume(file, view.record.image_len, shown)?;
    Ok((view, volume))
}

/// Mounts overlayfs over `lower`, a mount without a place that shows the metadata, and over the
/// objects of `cache`, on the directory `point`. `view` is the view of `image`.
///
/// # Errors
/// As [`super::mount`].
pub fn mount_over(
    lower: &OwnedFd,
    image: &Image,
    (cache, view): (&ViewCache, &View),
    source: &OsStr,
    point: BorrowedFd<'_>,
    layer: Option<UpperLayer<'_>>,
    mut attributes: MountAttrFlags,
) -> Result<()> {
    let tree = &view.record.image_digest;
    let upper = layer.map(|layer| Upper::prepare(&layer, image, tree, XattrKind::User));
    let upper = upper.transpose()?;
    let context = open_type("overlay")?;
    let failed = |key: &str, errno| refused(&context, &format!("overlayfs, option {key}"), errno);
    let set = |key: &str, value: &[u8]| {
        fsconfig_set_string(&context, key, value).map_err(|errno| failed(key, errno))
    };
    set("source", &shown_source(source))?;
    fsconfig_set_flag(&context, "userxattr").map_err(|errno| failed("userxattr", errno))?;
    fsconfig_set_fd(&context, "lowerdir+", lower.as_fd())
        .map_err(|errno| failed("lowerdir+", errno))?;
    fsconfig_set_fd(&context, "datadir+", cache.objects().as_fd())
        .map_err(|errno| failed("datadir+", errno))?;
    let mut opened = Vec::new();
    if let Some(upper) = &upper {
        for (key, dir) in [("upperdir", &upper.dir), ("workdir", &upper.work)] {
            let (fd, words) = reopen(dir)?;
            set(key, &words)?;
            opened.push(fd);
        }
    }
    fsconfig_create(&context).map_err(|errno| refused(&context, "overlayfs", errno))?;
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, upper.is_none());
    let made = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(|errno| refused(&context, "overlayfs", errno))?;
    attach(&made, point)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a release that is compared as text.
    #[test]
    fn releases_are_compared_by_their_numbers() {
        for (release, is_new_enough) in [
            ("6.16.0", true),
            ("6.18.44-fc-v595", true),
            ("7.0-rc1", true),
            ("6.9.1", false),
            ("6.12.95+deb12-amd64", false),
            ("odd", false),
        ] {
            let found = version(release).is_some_and(|found| found >= LINUX_MIN);
            assert_eq!(found, is_new_enough, "{release}");
        }
    }
}
