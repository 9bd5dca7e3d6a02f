#!/bin/bash
# volume-suites.sh [SUITE...]: runs test suites and real programs on a mounted volume: posix, fsx,
# stress, git, sqlite, postgresql, cargo, rsync, devices. Without arguments, all of them.
# FSX_SEEDS (5) and FSX_COUNT (20000) say how long fsx runs, STRESS_SECONDS (20) stress-ng. Needs
# root.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

need_root "making devices and foreign owners"
need_fuse
tools=$target/tools

# A mount namespace of its own, where mount(8) finds its helpers for Weald in /sbin.
if [ -z "${WEALD_SUITES_INSIDE:-}" ]; then
    WEALD_SUITES_INSIDE=1 exec unshare --mount --propagation private bash "$0" "$@"
fi
install_helpers() {
    local sbin
    sbin=$(realpath /sbin)
    mkdir "$work/sbin"
    mount -t tmpfs none "$work/sbin"
    mkdir "$work/sbin/upper" "$work/sbin/work"
    ln -s "$weald" "$work/sbin/upper/mount.weald"
    for name in {mount,umount}.{fuse,fuseblk}.weald; do ln -s "$weald" "$work/sbin/upper/$name"; done
    mount -t overlay overlay -o "lowerdir=$sbin,upperdir=$work/sbin/upper,workdir=$work/sbin/work" "$sbin"
}

# install_tool NAME VERSION: a program from the registry of Rust, built once.
install_tool() {
    [ -x "$tools/bin/$1" ] && return
    step "cargo install $1 $2"
    cargo install "$1@$2" --locked --quiet --root "$tools"
}

# new_volume NAME [OPTION]...: makes a volume and mounts it at $work/NAME.
new_volume() {
    local name=$1
    shift
    "$weald" volume create "$work/store:$name" "$@"
    mkdir "$work/$name"
    "$weald" mount "$work/store:$name" "$work/$name" -o allow_other,dev,suid
}

# new_clone NAME: as new_volume, of a snapshot of a volume that goes on with other content.
new_clone() {
    new_volume origin
    (cd "$root" && git ls-files -z docs scripts | xargs -0 cp --parents -t "$work/origin")
    (cd "$work/origin" && find . -type f -exec sha256sum {} +) | sort >"$work/origin.sums"
    "$weald" snapshot create -q "$work/store:origin@start"
    rm -r "${work:?}/origin/docs"
    "$weald" umount "$work/origin"
    "$weald" snapshot clone -q "$work/store:origin@start" "$work/store:$1"
    mkdir "$work/$1"
    "$weald" mount "$work/store:$1" "$work/$1" -o allow_other,dev,suid
    same_sums "$work/$1" "$work/origin.sums"
}

# end_clone NAME: ends a clone and its origin. Neither has changed what is in the snapshot.
end_clone() {
    end_volume "$1"
    "$weald" mount "$work/store:origin" "$work/origin"
    same_sums "$work/origin/.snapshots/start" "$work/origin.sums"
    [ ! -e "$work/origin/docs" ] || die "the origin has what only its clone should have"
    "$weald" snapshot rm -q "$work/store:origin@start"
    end_volume origin
}

# same_sums DIR FILE: fails unless the files below DIR that FILE names have the digests in it.
same_sums() { [ ! -s "$2" ] || (cd "$1" && sha256sum --quiet --check "$2") >&2 || die "$1: other files than before"; }

# end_volume NAME: unmounts the volume, checks it and removes it.
end_volume() {
    "$weald" umount "$work/$1"
    "$weald" volume check "$work/store:$1"
    "$weald" volume rm "$work/store:$1"
}

# again NAME: unmounts the volume and mounts it again.
again() {
    "$weald" umount "$work/$1"
    # A snapshot that is taken while no server is there has the store for a moment.
    "$weald" mount --wait 60 "$work/store:$1" "$work/$1" -o allow_other,dev,suid
}

try_posix() {
    local part
    install_tool pjdfstest 0.2.2
    id tests >/dev/null 2>&1 || useradd -M -U tests
    cat >"$work/pjd.toml" <<'TOML'
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
stat_st_birthtime = {}
[settings]
naptime = 0.01
allow_remount = true
[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"]]
TOML
    mkdir -p "$work/other"
    new_clone posix
    # The cases named erofs remount the file system, so that they run alone.
    "$tools/bin/pjdfstest" -c "$work/pjd.toml" -p "$work/posix" -s "$work/other" >"$work/pjd.log" 2>&1 || true
    "$tools/bin/pjdfstest" -c "$work/pjd.toml" -p "$work/posix" -s "$work/other" erofs >"$work/erofs.log" 2>&1 || true
    for part in pjd erofs; do tail -n 3 "$work/$part.log" >&2; done
    if grep -E '(FAILED|failed|panicked)' "$work/pjd.log" | grep -vE '^ *erofs|erofs_| 0 failed' | grep -qE 'FAILED|panicked' ||
        grep -qE 'FAILED|panicked' "$work/erofs.log"; then
        grep -hE 'FAILED|panicked' "$work/pjd.log" "$work/erofs.log" >&2
        die "pjdfstest: cases failed on the volume"
    fi
    # A program that refuses its configuration prints neither of these words.
    count_passed "$work/pjd.log" 100
    count_passed "$work/erofs.log" 1
    end_clone posix
}

# count_passed LOG LEAST: fails unless the summary of pjdfstest in LOG has that many passed cases.
count_passed() {
    local passed
    passed=$(sed -n 's/.*[ ,]\([0-9][0-9]*\) passed.*/\1/p' "$1" | tail -n 1)
    [ "${passed:-0}" -ge "$2" ] || die "pjdfstest: ${passed:-no} cases passed, expected at least $2: $(tail -n 3 "$1")"
}

# take_snapshots NAME: takes snapshots of the volume until there is a file stop, the server being
# away now and then, and notes the digests of their files.
take_snapshots() {
    local count=0 name
    : >"$work/taken"
    while [ -d "$work" ] && [ ! -e "$work/stop" ]; do
        count=$((count + 1))
        name=s$count
        sleep 0.3
        "$weald" snapshot create -q "$work/store:$1@$name" 2>"$work/said" || continue
        "$weald" sum -a sha256 "$work/store:$1@$name" >"$work/sums-$name" 2>>"$work/said" || continue
        attributes "$work/$1/.snapshots/$name" >"$work/attributes-$name" 2>>"$work/said" || continue
        echo "$name" >>"$work/taken"
    done
}

# attributes DIR: names, types, modes, owners, links, sizes, times and targets of all below it.
attributes() { (cd "$1" && find . -printf '%P %y %m %U %G %n %s %T@ %l\n' | LC_ALL=C sort); }

# judge_snapshots NAME: compares all snapshots that are left with what was noted of them.
judge_snapshots() {
    local name count=0
    while read -r name; do
        [ -d "$work/$1/.snapshots/$name" ] || continue
        same_sums "$work/$1/.snapshots/$name" "$work/sums-$name"
        attributes "$work/$1/.snapshots/$name" | diff "$work/attributes-$name" - >&2 ||
            die "$1@$name: other attributes than when it was taken"
        count=$((count + 1))
    done <"$work/taken"
    ((count > 1)) || die "$1: too few snapshots were taken"
    say "   $count snapshots are as they were"
}

# with_snapshots NAME COMMAND...: runs the command on the volume below snapshots, and judges these
# before and after a mount, and after most were removed.
with_snapshots() {
    local taker name=$1
    shift
    rm -f "$work/stop"
    take_snapshots "$name" &
    taker=$!
    "$@"
    touch "$work/stop"
    wait "$taker"
    judge_snapshots "$name"
    "$weald" snapshot prune -q --keep-last 3 "$work/store:$name"
    again "$name"
    judge_snapshots "$name"
    "$weald" snapshot prune -q --keep-last 1 "$work/store:$name"
    "$weald" snapshot rm -q "$work/store:$name@$(tail -n 1 "$work/taken")"
}

run_fsx() {
    local seed
    for ((seed = 1; seed <= ${FSX_SEEDS:-5}; seed++)); do
        "$tools/bin/fsx" -f "$work/fsx.toml" -N "${FSX_COUNT:-20000}" -S "$seed" -P "$work" "$work/fsx/file-$seed" >"$work/fsx.log" 2>&1 || {
            tail -n 40 "$work/fsx.log" >&2
            die "fsx: seed $seed failed"
        }
        cp "$work/fsx/file-$seed" "$work/copy"
        again fsx
        cmp "$work/copy" "$work/fsx/file-$seed" || die "fsx: seed $seed: the file differs after a remount"
    done
}

# The stressors of stress-ng that change a file system, all at once, each checking what it reads.
run_stress() {
    local stressor stressors=()
    for stressor in chmod chown copy-file dentry dir dirdeep filename flock hdd link \
        locka mknod open rename seek symlink touch utime xattr; do
        stressors+=("--$stressor" 1)
    done
    # Some stressors leave files in the working directory, whatever --temp-path says.
    (cd "$work" && stress-ng --temp-path "$work/stress" --timeout "${STRESS_SECONDS:-20}s" --verify \
        --hdd-bytes 16M --copy-file-bytes 128M --seek-size 16M "${stressors[@]}") >"$work/stress.log" 2>&1 || {
        grep -v "^stress-ng: info" "$work/stress.log" | tail -n 40 >&2
        die "stress-ng failed"
    }
}

try_fsx() {
    install_tool fsx 0.3.2
    cat >"$work/fsx.toml" <<'TOML'
flen = 2097152
[opsize]
max = 131072
[weights]
truncate = 2
punch_hole = 3
posix_fallocate = 2
fsync = 1
fdatasync = 1
copy_file_range = 3
sendfile = 1
close_open = 1
invalidate = 1
TOML
    new_volume fsx
    with_snapshots fsx run_fsx
    end_volume fsx
}

try_stress() {
    new_volume stress
    with_snapshots stress run_stress
    end_volume stress
}

git_here() { git -c gc.auto=0 -c maintenance.auto=false -c safe.directory='*' -c user.name=w -c user.email=w@example.org "$@"; }

try_git() {
    new_volume git
    git_here clone -q "$root" "$work/git/clone"
    git_here -C "$work/git/clone" checkout -q -b work
    git_here -C "$work/git/clone" rm -rq docs
    git_here -C "$work/git/clone" commit -qm "remove docs"
    git_here -C "$work/git/clone" gc -q
    again git
    git_here -C "$work/git/clone" fsck --full --strict 2>"$work/fsck.log" || {
        cat "$work/fsck.log" >&2
        die "git fsck failed on the volume"
    }
    [ -z "$(git_here -C "$work/git/clone" status --porcelain)" ] || die "git status shows changes"
    end_volume git
}

try_sqlite() {
    local mode
    new_volume sqlite
    for mode in wal delete; do
        python3 -I - "$work/sqlite/$mode.db" "$mode" <<'PYTHON'
import sqlite3, sys
path, mode = sys.argv[1:]
db = sqlite3.connect(path)
assert db.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
db.execute("create table t (id integer primary key, text text)")
for batch in range(50):
    with db:
        db.executemany("insert into t (text) values (?)", [("x" * (i % 300),) for i in range(200)])
    with db:
        db.execute("delete from t where id % 7 = ?", (batch % 7,))
assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
PYTHON
    done
    again sqlite
    for mode in wal delete; do
        [ "$(python3 -I -c 'import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("pragma integrity_check").fetchone()[0])' "$work/sqlite/$mode.db")" = ok ] ||
            die "SQLite: the database ($mode) is damaged after a remount"
    done
    end_volume sqlite
}

try_postgresql() {
    local programs
    programs=$(find /usr/lib/postgresql -name initdb -printf '%h\n' | sort -V | tail -n 1)
    [ -n "$programs" ] || die "initdb is missing: run 'make setup'"
    new_volume postgresql
    install -d -o nobody -g nogroup -m 700 "$work/postgresql/data"
    install -d -o nobody -g nogroup -m 700 "$work/socket"
    as() { setpriv --reuid nobody --regid nogroup --clear-groups env -C / "$@"; }
    as "$programs/initdb" -D "$work/postgresql/data" -A trust -U weald >"$work/initdb.log" 2>&1 || {
        cat "$work/initdb.log" >&2
        die "initdb failed on the volume"
    }
    start() {
        as "$programs/pg_ctl" -D "$work/postgresql/data" -l "$work/postgresql/data/log" -w -t 120 \
            -o "-k $work/socket -c listen_addresses= " start >/dev/null
    }
    stop() { as "$programs/pg_ctl" -D "$work/postgresql/data" -w -t 120 -m fast stop >/dev/null; }
    start
    as "$programs/pgbench" -h "$work/socket" -U weald -q -i -s 2 postgres >"$work/pgbench.log" 2>&1
    as "$programs/pgbench" -h "$work/socket" -U weald -c 2 -t 200 postgres >>"$work/pgbench.log" 2>&1
    stop
    again postgresql
    start
    as "$programs/psql" -h "$work/socket" -U weald -qAt -c 'select count(*) from pgbench_history' postgres >"$work/count"
    stop
    [ "$(cat "$work/count")" = 400 ] || die "PostgreSQL: $(cat "$work/count") rows after a remount, expected 400"
    end_volume postgresql
}

try_cargo() {
    new_volume cargo
    cargo new -q --vcs none --lib "$work/cargo/small"
    (cd "$work/cargo/small" && CARGO_TARGET_DIR='' && unset CARGO_TARGET_DIR && cargo test -q --offline) >"$work/cargo.log" 2>&1 || {
        cat "$work/cargo.log" >&2
        die "cargo test failed on the volume"
    }
    end_volume cargo
}

try_rsync() {
    new_volume rsync
    cp -a "$root/crates" "$work/tree"
    ln "$work/tree/format/Cargo.toml" "$work/tree/hard-link"
    setfattr -n user.weald-test -v value "$work/tree/format/Cargo.toml"
    setfacl -m u:1234:r "$work/tree/format/src"
    rsync -aHAX "$work/tree/" "$work/rsync/tree/"
    again rsync
    rsync -aHAX "$work/rsync/tree/" "$work/back/"
    rsync_differences "$work/tree" "$work/back" -H || die "rsync: the copy of the copy differs: $differences"
    end_volume rsync
}

# Images of block devices on the volume, used as loop devices.
try_devices() {
    local kind device before after
    new_volume devices
    mkdir "$work/device"
    for kind in ext4 xfs btrfs; do
        truncate -s 400M "$work/devices/$kind.img"
        "mkfs.$kind" -q "$work/devices/$kind.img" >/dev/null
        device=$(losetup --find --show "$work/devices/$kind.img")
        mount "$device" "$work/device"
        cp -a "$root/crates" "$work/device/tree"
        head -c 40M /dev/urandom >"$work/device/random"
        sync --file-system "$work/device"
        rsync_differences "$root/crates" "$work/device/tree" || die "$kind on the volume: $differences"
        [ "$kind" != btrfs ] || btrfs scrub start -B "$work/device" >"$work/scrub.log" || die "btrfs scrub failed"
        before=$(stat -c %b "$work/devices/$kind.img")
        rm "$work/device/random"
        sync --file-system "$work/device"
        # XFS frees the extents of removed files a moment later.
        for _ in {1..40}; do
            fstrim "$work/device"
            sync "$work/devices/$kind.img"
            after=$(stat -c %b "$work/devices/$kind.img")
            [ "$after" -ge $((before - 60000)) ] || break
            sleep 0.5
        done
        umount "$work/device"
        losetup --detach "$device"
        case $kind in
        ext4) fsck.ext4 -fn "$work/devices/ext4.img" >/dev/null 2>&1 || die "ext4 on the volume is damaged" ;;
        xfs) xfs_repair -n -f "$work/devices/xfs.img" >/dev/null 2>&1 || die "xfs on the volume is damaged" ;;
        btrfs) btrfs check -p "$work/devices/btrfs.img" >/dev/null 2>&1 || die "btrfs on the volume is damaged" ;;
        esac
        [ "$after" -lt $((before - 60000)) ] || die "$kind on the volume: fstrim gave back $(((before - after) / 2)) KiB of 40 MiB"
    done
    end_volume devices
}

suites=("${@:-}")
[ -n "${suites[0]}" ] || suites=(posix fsx stress git sqlite postgresql cargo rsync devices)
make_work
chmod 755 "$work"
install_helpers
"$weald" store create "$work/store"
for suite in "${suites[@]}"; do
    start=$(seconds)
    step "volume: $suite"
    "try_$suite"
    say "   took $(since "$start") s"
done
