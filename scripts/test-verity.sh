#!/bin/bash
# test-verity.sh: weald mount --kernel --verity require in a guest whose kernel has fs-verity.
#
# QEMU emulates the guest (TCG), so that no virtualisation is needed. Its kernel is Debian's 6.12, of the release or of
# its backports, which apt verifies and which is kept in target/verity.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

profile=${WEALD_PROFILE:-dev}
bin=$target/${profile/#dev/debug}
weald=$bin/weald
keep=$target/verity
mirror=${WEALD_DEBIAN_MIRROR:-http://deb.debian.org/debian}
# Seconds that the guest may take: it boots in about 30.
guest_seconds_max=900

need apt-get dpkg cpio depmod xz qemu-system-x86_64 mkfs.ext4 ldd
busybox=$(command -v busybox || true)
[ -n "$busybox" ] || die "busybox is missing: run 'bash scripts/setup.sh verity'"
if ldd "$busybox" >/dev/null 2>&1; then die "$busybox is not static: install busybox-static"; fi

# Downloads the kernel with apt, with lists and sources of its own.
fetch_kernel() {
    local codename options package
    codename=$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")
    mkdir -p "$keep/lists/partial" "$keep/cache/archives/partial"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
        "$mirror" "$codename-backports" "$mirror" "$codename" >"$keep/sources.list"
    options=(-o "Dir::Etc::sourcelist=$keep/sources.list" -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root
        -o "Dir::State::lists=$keep/lists" -o "Dir::Cache=$keep/cache")
    step "apt-get download of a kernel with fs-verity"
    apt-get "${options[@]}" update -q >&2
    package=$(apt-cache "${options[@]}" depends linux-image-amd64/"$codename-backports" |
        sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
    [ -n "$package" ] || die "no kernel in $codename-backports: give another Debian by WEALD_DEBIAN_MIRROR"
    (cd "$keep" && rm -f linux-image-*.deb && apt-get "${options[@]}" download "$package" >&2)
    rm -rf "$keep/kernel"
    dpkg -x "$keep"/linux-image-*.deb "$keep/kernel"
}

# add_program FILE: copies a program and its libraries into the guest's root.
add_program() {
    local file
    for file in "$1" $(ldd "$1" | grep -o '/[^ ]*'); do
        mkdir -p "$guest$(dirname "$file")"
        cp -L "$file" "$guest$file"
    done
}

# Makes the initial file system of the guest: busybox, weald, modules, an image and the script that it runs.
make_guest() {
    local version module
    guest=$work/guest
    mkdir -p "$guest"/{bin,dev,proc,sys,disk,mnt,run,tmp}
    cp "$busybox" "$guest/bin/busybox"
    add_program "$weald"
    ln -s "$weald" "$guest/bin/weald"
    version=$(basename "$keep"/kernel/lib/modules/*)
    depmod -b "$keep/kernel" "$version"
    mkdir "$guest/modules"
    for module in virtio_blk crc32c_generic ext4 loop erofs overlay; do
        modprobe -d "$keep/kernel" -S "$version" --show-depends "$module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r module; do
        xz -dc "$module" >"$guest/modules/$(basename "${module%.xz}")"
        basename "${module%.xz}" >>"$guest/modules/order"
    done
    mkdir "$work/tree"
    seq 1 20000 >"$work/tree/numbers"
    printf 'short\n' >"$work/tree/short"
    cp "$busybox" "$work/tree/busybox"
    "$weald" build --quiet "$work/tree" "$guest/a.weald"
    (cd "$work/tree" && sha256sum numbers short busybox) >"$guest/sums"
    cp "$root/scripts/test-verity-guest.sh" "$guest/init"
    chmod 755 "$guest/init"
    (cd "$guest" && find . | cpio --quiet -o -H newc) >"$work/initrd"
}

run_guest() {
    # A smaller disk gets blocks of 1 KiB, which are smaller than those of the hash tree.
    truncate -s 600M "$work/disk"
    mkfs.ext4 -q -b 4096 -O verity "$work/disk"
    step "a guest with $(basename "$keep"/kernel/lib/modules/*)"
    timeout "$guest_seconds_max" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m 1024 -smp 2 -nographic \
        -no-reboot -kernel "$keep"/kernel/boot/vmlinuz-* -initrd "$work/initrd" \
        -append 'console=ttyS0 panic=-1 quiet' -drive "file=$work/disk,if=virtio,format=raw" \
        </dev/null | tr -d '\r' >"$work/console" || true
    grep -a '^test-verity: ' "$work/console" >&2 || true
    grep -aq '^test-verity: done$' "$work/console" || {
        tail -n 40 "$work/console" >&2
        die "the guest did not come to its end"
    }
    ! grep -aq '^test-verity: FAILED' "$work/console" || die "see above"
}

step "cargo build --profile $profile"
(cd "$root" && cargo build --profile "$profile" --locked --quiet -p weald-cli --bins)
make_work
ls "$keep"/kernel/boot/vmlinuz-* >/dev/null 2>&1 || fetch_kernel
make_guest
run_guest
say "test-verity: the kernel verified what it read"
