#!/bin/busybox sh
# test-verity-guest.sh: what the guest of test-verity.sh runs as its first process. /dev/vda is an ext4 file system
# with the feature verity, /a.weald an image, /sums the SHA-256 digests of its files.
/bin/busybox --install -s /bin
export PATH=/bin LC_ALL=C WEALD_RUNTIME_DIR=/run/weald

say() { echo "test-verity: $*"; }

# check WHAT COMMAND...: says whether a command succeeds.
check() {
    what=$1
    shift
    if "$@" >/tmp/said 2>&1; then say "$what"; else
        say "FAILED: $what"
        cat /tmp/said
    fi
}

# fails COMMAND...: whether a command fails.
fails() { ! "$@"; }

mount_it() { weald mount --kernel --view-cache /disk/cache "$@" /a.weald /mnt; }
reads_all() { (cd /mnt && sha256sum -c /sums); }
object_of() { find /disk/cache/objects -type f -size "$1"; }

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order
check "the disk is mounted" mount -t ext4 /dev/vda /disk

check "weald mount --kernel --verity require mounts" mount_it --verity require
grep 'weald:' /proc/self/mountinfo
check "overlayfs verifies objects" grep -q 'weald:.*verity=require' /proc/self/mountinfo
check "no loop device is in use" fails grep -q . /sys/block/loop0/loop/backing_file
check "every file has its bytes" reads_all
check "a program of the mount runs" /mnt/busybox true
numbers=$(object_of +100k | xargs ls -S | tail -n 1)
check "an object cannot be changed" fails sh -c "echo more >>$numbers"
check "weald umount" weald umount /mnt

# A copy has other bytes and no protection.
sed 's/^7$/8/' "$numbers" >/disk/changed
mv /disk/changed "$numbers"
check "it mounts with a changed object" mount_it --verity require
check "the changed object refuses" fails cat /mnt/numbers
check "the others are read" cat /mnt/busybox
check "weald umount" weald umount /mnt
check "--verity off reads it" mount_it --verity off
check "which is seen in its bytes" fails reads_all
check "weald umount" weald umount /mnt

# A damaged object with protection of its own has another digest.
rm /disk/cache/images/*
check "an object with other bytes is found when the view is made" fails mount_it --verity require
say "$(tail -n 1 /tmp/said)"
rm "$numbers"
check "without it the view is made again" mount_it --verity require
check "every file has its bytes" reads_all
check "weald umount" weald umount /mnt

# An object that a file system without fs-verity kept gets its protection later.
cp "$numbers" /disk/copy
mv /disk/copy "$numbers"
rm /disk/cache/images/*
check "an object without protection gets it" mount_it --verity try
check "overlayfs verifies objects" grep -q 'weald:.*verity=require' /proc/self/mountinfo
check "every file has its bytes" reads_all
check "weald umount" weald umount /mnt
mkdir /ram
mount -t tmpfs tmpfs /ram
check "without fs-verity in the file system --verity require refuses" \
    fails weald mount --kernel --view-cache /ram/cache --verity require /a.weald /mnt
say "$(tail -n 1 /tmp/said)"
say done
poweroff -f
