#!/bin/bash
# deb.sh: makes target/deb/weald_VERSION_ARCH.deb and tests it: lintian finds no error; installed in a copy of this system,
# it mounts through /etc/fstab and through autofs; removed, it leaves nothing behind.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

need cargo musl-gcc dpkg-deb dpkg-shlibdeps lintian strip gzip python3
need_root "testing: it installs the package in a copy of the system, and"
need_fuse
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n1)
architecture=$(dpkg --print-architecture)
out=$target/deb
# Whoever gives the package to others sets DEBEMAIL.
maintainer="${DEBFULLNAME:-Weald developers} <${DEBEMAIL:-root@localhost}>"
date=$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)
package=$out/weald_${version}_$architecture.deb

step "cargo build --release"
(cd "$root" && cargo build --release --locked --quiet --workspace --bins)
build_static "$root" "$target" runtime weald-runtime weald-runtime
make_work
tree=$work/tree
share=$tree/usr/share
doc=$share/doc/weald

step "files"
make -s -C "$root" install DESTDIR="$tree" PREFIX=/usr SBINDIR=/usr/sbin BIN="$target/release/weald" \
    RUNTIME="$target/static/weald-runtime" INSTALL_STRIP=
case " ${DEB_BUILD_OPTIONS:-} " in
*" nostrip "*) ;;
*) strip --strip-unneeded --remove-section=.comment --remove-section=.note "$tree/usr/bin/weald" ;;
esac
gzip -9n "$share"/man/man*/*
# The completions of zsh and fish lie where Debian's packages have them.
mkdir -p "$share/zsh/vendor-completions"
mv "$share/zsh/site-functions/_weald" "$share/zsh/vendor-completions/_weald"
rmdir "$share/zsh/site-functions"
for name in mount.fuse.weald mount.fuseblk.weald umount.fuse.weald umount.fuseblk.weald; do
    ln -s mount.weald.8.gz "$share/man/man8/$name.8.gz"
done
ln -s weald-mount.1.gz "$share/man/man1/git-annex-remote-weald.1.gz"

# unit HEADING FILE: the unit in the first code block behind HEADING in docs/mounting.md.
unit() {
    mkdir -p "$(dirname "$2")"
    awk -v words="$1" '
        index($0, words) { seen = 1 }
        /^```/ && seen { if (inside) exit; inside = 1; next }
        inside' "$root/docs/mounting.md" | sed 's:/usr/local/bin/:/usr/bin/:' >"$2"
    grep -q '^ExecStart=/usr/bin/weald ' "$2" || die "docs/mounting.md has no unit behind '$1'"
}
unit "The system's shared server" "$tree/usr/lib/systemd/system/weald-serve.service"
unit "For a user, in" "$tree/usr/lib/systemd/user/weald-serve.service"
mkdir -p "$tree/usr/lib/tmpfiles.d" "$doc"
echo 'd /run/weald 0700 root root -' >"$tree/usr/lib/tmpfiles.d/weald.conf"
cp "$root/README.md" "$root"/docs/*.md "$doc/"
gzip -9nc "$root/CHANGELOG.md" >"$doc/CHANGELOG.md.gz"
printf 'weald (%s) unstable; urgency=medium\n\n  * CHANGELOG.md.gz has what is new.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$(date -R -u -d "@$date")" | gzip -9n >"$doc/changelog.gz"
python3 -I "$root/scripts/licences.py" "$root" names >"$doc/copyright"
python3 -I "$root/scripts/licences.py" "$root" texts | gzip -9n >"$doc/licences.gz"
mkdir -p "$share/lintian/overrides"
# It stands before images on machines that have no library of this one.
echo 'weald: statically-linked-binary [usr/libexec/weald/weald-runtime]' >"$share/lintian/overrides/weald"
if [ -z "${DEBEMAIL:-}" ]; then
    printf 'weald: %s\n' bogus-mail-host bogus-mail-host-in-debian-changelog root-in-contact \
        >>"$share/lintian/overrides/weald"
fi
for link in "$tree"/usr/sbin/*; do ln -sfn ../bin/weald "$link"; done
find "$tree" -type d -exec chmod 755 {} +
find "$tree" -type f ! -perm -u+x -exec chmod 644 {} +

mkdir -p "$tree/DEBIAN" "$work/debian"
printf 'Source: weald\n\nPackage: weald\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O -e"$tree/usr/bin/weald" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
cat >"$tree/DEBIAN/control" <<CONTROL
Package: weald
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -k -s --exclude=DEBIAN "$tree" | cut -f1)
Depends: $depends
Recommends: fuse3
Suggests: autofs, git-annex, openssh-client
Section: utils
Priority: optional
Homepage: https://crates.io/crates/weald-cli
Description: compressed, verified images of large trees, and volumes over them
 Weald packs large trees of similar files, such as versions of a toolchain,
 container roots and data sets, into one small, sealed image, and serves it as
 a read-only file system. Equal files, repeats inside files and equal
 directories are stored once, and every byte is compared with a digest before
 a program reads it. A volume is a writable file system over the same blocks.
CONTROL
(cd "$tree" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
chmod 644 "$tree/DEBIAN"/*
mkdir -p "$out"
SOURCE_DATE_EPOCH=$date dpkg-deb --root-owner-group -Zxz --build "$tree" "$package" >/dev/null

step "lintian"
lintian --allow-root --fail-on error "$package"

step "install, fstab, autofs, remove"
# A copy of this system that ends with the script: overlayfs, whose layers lie on a tmpfs.
mkdir "$work/layers" "$work/system"
mount -t tmpfs weald-layers "$work/layers"
mkdir "$work/layers/upper" "$work/layers/scratch"
mount -t overlay weald-system -o "lowerdir=/,upperdir=$work/layers/upper,workdir=$work/layers/scratch" "$work/system"
for dir in proc dev run tmp; do mount -t tmpfs weald-test "$work/system/$dir"; done
mount -t proc proc "$work/system/proc"
mount --rbind /dev "$work/system/dev"
cp "$package" "$work/system/tmp/weald.deb"
printf '#!/bin/sh\nexit 101\n' >"$work/system/usr/sbin/policy-rc.d"
chmod 755 "$work/system/usr/sbin/policy-rc.d"
inside() { chroot "$work/system" env -u WEALD_RUNTIME_DIR PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
if [ ! -x /usr/sbin/automount ]; then
    inside apt-get update -q
    inside env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends autofs
fi
files() { inside find / -xdev \( -path /proc -o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache \) -prune -o -print | sort; }
files >"$work/before"
inside dpkg -i /tmp/weald.deb
inside weald -V
inside /usr/libexec/weald/weald-runtime --version
inside test -s /usr/share/man/man1/weald-build.1.gz
# shellcheck disable=SC2016 # the inner shell expands
inside bash -euc '
    mkdir -p /srv/tree /mnt/tools; echo data >/srv/tree/file; weald build -q /srv/tree /srv/tools.weald
    cp /etc/fstab /srv/fstab 2>/dev/null || : >/srv/fstab
    echo "/srv/tools.weald /mnt/tools weald ro,nofail 0 0" >/etc/fstab
    mount /mnt/tools; grep -qx data /mnt/tools/file; umount /mnt/tools
    cp /srv/fstab /etc/fstab
    mkdir /auto; echo "/auto /srv/auto.weald" >/srv/auto.master
    echo "tools -fstype=weald,ro :/srv/tools.weald" >/srv/auto.weald
    # Processes of its own group would not trigger it.
    setsid automount --foreground --debug --pid-file /srv/pid /srv/auto.master >/srv/auto.log 2>&1 & automount=$!
    # Also after a failure: it would hold the copy of the system.
    trap "kill -9 $automount 2>/dev/null || true" EXIT
    for i in $(seq 100); do [ ! -e /auto/tools/file ] || break; sleep 0.1; done
    grep -qx data /auto/tools/file || { cat /srv/auto.log; exit 1; }
    grep -q " /auto/tools fuse.weald " /proc/self/mounts
    kill -TERM $automount; wait $automount || true
    for i in $(seq 100); do grep -q " /auto" /proc/self/mounts || break; sleep 0.1; done
    if grep -q " /auto" /proc/self/mounts; then exit 1; fi
    rmdir /auto /mnt/tools; rm -r /srv/tree /srv/tools.weald /srv/fstab /srv/auto.* /srv/pid 2>/dev/null || true'
inside dpkg --purge weald
files >"$work/after"
diff "$work/before" "$work/after" || die "the package left files behind"
say "deb: $package, $(stat -c %s "$package") bytes; everything passed"
