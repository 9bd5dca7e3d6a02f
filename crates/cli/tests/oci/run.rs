//! Programs that run in a mounted root: chroot, unshare, crun and podman.

use crate::debian::{ALONE, debian};

/// Mounts `v2.weald` at `$root`, for the rest of a script.
const MOUNT: &str = "
    export WEALD_RUNTIME_DIR=$PWD/run
    root=$(mktemp -d -p .); root=$(realpath $root)
    $WEALD mount v2.weald $root
    trap '$WEALD umount $root' EXIT
";

/// Would catch: a mounted image whose programs do not run, in any of the ways to enter it.
#[test]
fn programs_run_in_a_mounted_root() {
    let bench = debian();
    let said = bench.sh(&format!(
        "{MOUNT}
        chroot $root /bin/true
        unshare --mount --pid --fork --root=$root /bin/true
        chroot $root /usr/bin/hello"
    ));
    assert_eq!(said, "Hello, world!\n");
}

/// Would catch: a mount that crun or overlayfs cannot use as the root of a container.
#[test]
fn crun_runs_a_container_on_a_mount() {
    let bench = debian();
    let script = "
        mkdir -p bundle upper work merged
        (cd bundle; alone crun spec)
        set_up() {
            jq \".process.terminal = false | .root = {path: \\\"$1\\\", readonly: $2}
                | .process.args = [\\\"/bin/dash\\\", \\\"-c\\\", \\\"$3\\\"]\" \
                bundle/config.json > config.json
            mv config.json bundle
        }
        run() {
            alone crun --root \"$PWD/crun\" --cgroup-manager=disabled run -b bundle weald-test
        }
        set_up $root true 'echo read-only; echo x > /root/new || echo refused'
        run 2> log
        grep -o 'Read-only file system' log
        mount -t overlay overlay -o lowerdir=$root,upperdir=upper,workdir=work merged
        trap 'umount merged; $WEALD umount $root' EXIT
        set_up \"$PWD/merged\" false 'echo written > /root/new; cat /root/new; rm /bin/sed'
        run
        cat upper/root/new
        test -c upper/bin/sed
        test -e $root/bin/sed";
    let said = bench.sh(&format!("{ALONE}{MOUNT}{script}"));
    assert_eq!(
        said,
        "read-only\nrefused\nRead-only file system\nwritten\nwritten\n"
    );
}

/// Would catch: a mount that `podman run --rootfs` refuses, or a layout that podman cannot pull.
#[test]
fn podman_runs_a_container_on_a_mount_and_from_a_layout() {
    let bench = debian();
    let script = "
        cat > in-podman <<'END'
podman() {
    command podman --root \"$PWD/storage\" --runroot \"$PWD/runroot\" \\
        --cgroup-manager=cgroupfs \"$@\"
}
# Without these limits podman asks for more open files than a container may have.
run=(run --cgroups=disabled --network=none --ulimit nofile=1024:1024
    --ulimit nproc=1000:1000 --log-driver k8s-file)
# What a container that ends at once writes may not reach whoever is attached to it.
say() {
    podman logs $1
    podman rm $1 > removed
}
podman \"${run[@]}\" --name one --rootfs $root:O \
    /bin/dash -c 'echo written > /root/new; cat /root/new' > attached
say one
podman pull -q oci:container:v2 > pulled
podman \"${run[@]}\" --name two $(cat pulled) /usr/bin/hello > attached
say two
podman save -q -o podman.tar $(cat pulled)
podman rmi -f $(cat pulled) > removed
END
        $WEALD export oci -q v2.weald container:v2
        export root
        alone bash -euo pipefail in-podman
        test ! -e $root/root/new
        $WEALD import oci -q -l 1 podman.tar podman.weald
        $WEALD diff podman.weald v2.weald";
    let said = bench.sh(&format!("{ALONE}{MOUNT}{script}"));
    assert_eq!(said, "written\nHello, world!\n");
}
