//! A Debian root in two versions, from mmdebstrap, in the layers that umoci makes.

use crate::support::Bench;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Makes `layout` with the tags v1 (one layer) and v2 (two layers), `v1.weald` and `v2.weald`, and
/// what umoci unpacks. The second layer adds packages, removes a directory, and adds a hard link to
/// a file of the first. The packages are unpacked only: their scripts would need minutes.
const MAKE: &str = r#"
    . /etc/os-release
    mapfile -t sources < <(find /etc/apt/sources.list /etc/apt/sources.list.d -type f \
        '(' -name '*.list' -o -name '*.sources' ')' 2> find.log)
    debian() {
        mmdebstrap --quiet --variant=extract --include="$1" "$VERSION_CODENAME" "$2" \
            "${sources[@]}"
    }
    debian base-files,base-passwd,coreutils,dash one.tar
    debian base-files,base-passwd,coreutils,dash,hello,sed two.tar
    umoci init --layout layout
    umoci new --image layout:v1
    umoci unpack --image layout:v1 bundle
    tar -xpf one.tar -C bundle/rootfs --numeric-owner --xattrs --xattrs-include='*'
    umoci repack --image layout:v1 bundle
    rm -rf bundle
    umoci unpack --image layout:v1 bundle
    tar -xpf two.tar -C bundle/rootfs --numeric-owner --xattrs --xattrs-include='*'
    rm -r bundle/rootfs/usr/share/doc/libc6
    ln bundle/rootfs/bin/true bundle/rootfs/root/right
    umoci repack --image layout:v2 bundle
    umoci config --image layout:v2 --config.cmd /bin/true --config.env A=1
    rm -rf bundle one.tar two.tar
    for tag in v1 v2; do
        $WEALD import oci -q -l 2 --config $tag.json layout:$tag $tag.weald
    done"#;

/// Defines `alone`, which runs a command with an empty `/run`, `/dev/shm` and `/var/lib`, so that
/// skopeo, crun and podman leave nothing there, and with cgroups of version 2 alone, because crun
/// refuses to run beside version 1.
pub const ALONE: &str = r#"
    alone() {
        unshare -m bash -euc '
            for dir in /run /dev/shm /var/lib; do mount -t tmpfs tmpfs $dir; done
            umount -R /sys/fs/cgroup 2> /dev/null || true
            mount -t cgroup2 cgroup2 /sys/fs/cgroup
            exec "$@"' alone "$@"
    }
"#;

/// A directory with the layout and the images. Tests that run at the same time share it.
pub fn debian() -> Arc<Bench> {
    static MADE: Mutex<Weak<Bench>> = Mutex::new(Weak::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(bench) = made.upgrade() {
        return bench;
    }
    let bench = Arc::new(Bench::new());
    bench.sh(MAKE);
    *made = Arc::downgrade(&bench);
    bench
}
