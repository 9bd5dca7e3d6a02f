#!/bin/bash
# annex-test.sh [PART...]: git-annex of the system on Weald: remote, interrupted, volume, image,
# and suite, the whole of `git annex test`. Without arguments, all but suite. Needs root.
# DATALAD=PROGRAM gets files with DataLad in the part image.
set -euo pipefail
export WEALD_PROFILE=${WEALD_PROFILE:-dev}
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

need git git-annex
need_root "making mounts"
need_fuse

# quiet COMMAND...: shows the output only if the command fails.
quiet() {
    "$@" >"$work/log" 2>&1 || {
        tail -n 60 "$work/log" >&2
        die "failed: $*"
    }
}

# new_repository DIR: makes a repository with git-annex.
new_repository() {
    git init -q "$1"
    quiet git -C "$1" annex init "$(basename "$1")"
}

# new_remote NAME [SETTING]...: makes a directory on the volume and a special remote in it.
new_remote() {
    local name=$1
    shift
    mkdir "$volume/$name"
    quiet git annex initremote "$name" type=external externaltype=weald "directory=$volume/$name" "$@"
}

# Without --fast (fast=), each remote is also tested with other chunk sizes and ciphers, for minutes.
fast=${fast---fast}

# stat_of FIELD: a figure of the volume.
stat_of() { "$weald" volume stat --json "$work/store:v" | python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

# Chunks and encryption are git-annex's. The tests of a remote make keys of their own.
try_remote() {
    new_repository "$work/remote"
    cd "$work/remote"
    new_remote plain encryption=none
    new_remote shared encryption=shared
    new_remote chunked encryption=none chunk=64KiB
    new_remote both encryption=shared chunk=64KiB
    new_remote tree encryption=none exporttree=yes
    local name
    for name in plain shared chunked both tree; do
        step "git annex testremote $name"
        # shellcheck disable=SC2086 # nothing, or --fast
        quiet git annex testremote $fast --size=200KiB "$name"
        grep -E 'All [0-9]+ tests passed' "$work/log" | sort | uniq -c >&2 || die "testremote $name ran no tests"
        ! grep -q FAIL "$work/log" || die "testremote $name: $(grep FAIL "$work/log")"
        [ -z "$(find "$volume/$name" -type f)" ] || die "testremote $name left $(find "$volume/$name" -type f)"
    done
    # A version that differs in one byte shares its other chunks with the first, below the keys.
    local first second
    head -c 8M /dev/urandom >versions
    quiet git annex add versions
    quiet git annex copy --to plain versions
    sync "$volume"
    first=$(stat_of stored_len)
    quiet git annex unlock versions
    printf x | dd of=versions bs=1 seek=4000000 conv=notrunc status=none
    quiet git annex add versions
    quiet git annex copy --to plain versions
    sync "$volume"
    second=$(stat_of stored_len)
    say "   stored: $(human "$first") with one version of 8 MiB, $(human "$second") with two"
    [ $((second - first)) -lt 1000000 ] || die "two versions share nothing"
    # A tree with names of every kind; renamed, removed and read back.
    mkdir -p 'a dir/b'
    seq 1000 >'a dir/b/numbers with spaces'
    head -c 1M /dev/urandom >$'a dir/caf\u00e9'
    quiet git annex add .
    git commit -qm files
    quiet git annex export HEAD --to tree
    diff -r 'a dir' "$volume/tree/a dir"
    git mv 'a dir/b/numbers with spaces' renamed
    git commit -qm renamed
    quiet git annex export HEAD --to tree
    cmp renamed "$volume/tree/renamed"
    [ ! -e "$volume/tree/a dir/b" ] || die "an empty directory of the exported tree stays"
    # git-annex never counts an exported tree as a copy.
    quiet git annex drop --force renamed
    quiet git annex get --from tree renamed
    seq 1000 | cmp - renamed
    # Import is no request of external remotes: git-annex's own directory remote does it.
    mkdir "$volume/both-ways"
    quiet git annex initremote both-ways type=directory "directory=$volume/both-ways" encryption=none \
        exporttree=yes importtree=yes
    quiet git annex export HEAD --to both-ways
    seq 2000 >"$volume/both-ways/from outside"
    quiet git annex import "$(git branch --show-current)" --from both-ways
    quiet git annex merge --allow-unrelated-histories "both-ways/$(git branch --show-current)"
    seq 2000 | cmp - 'from outside'
    cd "$root"
}

# A transfer whose remote is killed leaves no file, and the next one succeeds.
try_interrupted() {
    local pid key
    new_repository "$work/interrupted"
    cd "$work/interrupted"
    new_remote killed encryption=none
    head -c 4M /dev/urandom >file
    quiet git annex add file
    key=$(git annex lookupkey file)
    # The remote reads the file of this transfer from a pipe that stays open: it cannot end.
    mkfifo "$work/pipe" "$work/requests" "$work/replies"
    "$work/bin/git-annex-remote-weald" <"$work/requests" >"$work/replies" &
    pid=$!
    exec 5>"$work/requests" 6<"$work/replies" 7<>"$work/pipe"
    printf 'PREPARE\nVALUE %s\nTRANSFER STORE %s %s\nVALUE abc/def/\n' "$volume/killed" "$key" "$work/pipe" >&5
    head -c 10M /dev/zero >&7
    local line
    while read -r -t 60 line <&6 && [[ $line != PROGRESS* ]]; do
        [[ $line != *FAILURE* ]] || die "the remote said: $line"
    done
    [[ $line = PROGRESS* ]] || die "the remote reported no progress"
    kill -KILL "$pid"
    wait "$pid" 2>"$work/log" || true
    exec 5>&- 6<&- 7>&-
    [ -z "$(find "$volume/killed" -type f)" ] || die "a killed transfer left $(find "$volume/killed" -type f)"
    quiet git annex copy --to killed file
    quiet git annex drop file
    quiet git annex get file
    quiet git annex fsck file
    # A removed key gives its space back, and an unmounted volume is no removed key.
    quiet git annex drop --from killed file
    [ -z "$(find "$volume/killed" -type f)" ] || die "a dropped key stays"
    quiet git annex copy --to killed file
    "$weald" umount "$volume"
    if git annex drop file >"$work/log" 2>&1; then die "drop trusted a volume that is not mounted"; fi
    if git annex fsck --fast --from killed >"$work/log" 2>&1; then die "fsck took an unmounted volume for an empty one"; fi
    git annex whereis file >"$work/log"
    grep -q killed "$work/log" || die "an unmounted volume lost its keys"
    "$weald" mount "$work/store:v" "$volume"
    quiet git annex fsck --from killed
    cd "$root"
}

# The life of a repository on the volume: unlocked and thin files, hard links, clones, fsck.
try_volume() {
    local before after shared
    new_repository "$volume/origin"
    cd "$volume/origin"
    head -c 20M /dev/urandom >big
    mkdir few
    for name in one two three; do head -c 100K /dev/urandom >"few/$name"; done
    quiet git annex add .
    git commit -qm files
    git config annex.thin true
    quiet git annex unlock big
    [ "$(stat -c %h big)" = 2 ] || die "annex.thin made no hard link"
    printf x >>big
    quiet git annex add big
    git commit -qm changed
    quiet git annex lock big
    quiet git annex fsck
    sync "$volume"
    before=$(stat_of stored_len)
    # Both clones copy: git-annex makes hard links between repositories for shared clones only.
    for name in first second; do
        quiet git clone -q "$volume/origin" "$volume/$name"
        quiet git -C "$volume/$name" annex init "$name"
        quiet git -C "$volume/$name" annex get .
        quiet git -C "$volume/$name" annex fsck
        cmp big "$volume/$name/big"
    done
    sync "$volume"
    after=$(stat_of stored_len)
    shared=$(stat_of shared_len)
    say "   stored: $(human "$before") before and $(human "$after") after two clones of 20 MB; shared: $(human "$shared")"
    [ $((after - before)) -lt 2000000 ] || die "two clones stored their data again"
    cd "$root"
}

# What docs/datalad.md shows: a data set published as an image, and keys in a sealed volume.
try_image() {
    local get=(git -C "$work/user" annex get)
    new_repository "$volume/study"
    cd "$volume/study"
    mkdir scans
    for name in one two; do head -c 300K /dev/urandom >"scans/$name.nii"; done
    quiet git annex add .
    git commit -qm scans
    new_remote keys encryption=none
    quiet git annex copy --to keys .
    cd "$root"
    "$weald" umount "$volume"
    "$weald" volume seal "$work/store:v" --name published >"$work/log"
    mkdir "$work/published"
    "$weald" mount "$work/store:published" "$work/published"
    # From the repository in the image, which git-annex cannot change.
    quiet git clone -q "$work/published/study" "$work/user"
    if [ -n "${DATALAD:-}" ]; then
        (cd "$work/user" && quiet "$DATALAD" get scans/one.nii)
    else
        quiet "${get[@]}" scans/one.nii
    fi
    cmp "$work/user/scans/one.nii" "$work/published/study/scans/one.nii"
    # From the special remote in the image.
    quiet git -C "$work/user" annex enableremote keys "directory=$work/published/keys"
    quiet "${get[@]}" --from keys scans/two.nii
    cmp "$work/user/scans/two.nii" "$work/published/study/scans/two.nii"
    printf new >"$work/user/new"
    quiet git -C "$work/user" annex add new
    if git -C "$work/user" annex copy --to keys new >"$work/log" 2>&1; then die "an image was changed"; fi
    grep -qi 'read-only' "$work/log" || die "no word about a read-only image: $(cat "$work/log")"
    "$weald" umount "$work/published"
    "$weald" mount "$work/store:v" "$volume"
}

# The whole of git-annex's own tests, on the volume. They make and remove their own directory.
try_suite() {
    mkdir "$volume/suite"
    cd "$volume/suite"
    git annex test >"$work/suite.log" 2>&1 || {
        grep -nE 'FAIL' -A 20 "$work/suite.log" | head -n 100 >&2
        die "git annex test failed on the volume"
    }
    ! grep -q FAIL "$work/suite.log" || die "git annex test: $(grep FAIL "$work/suite.log")"
    grep -cE 'OK( |$)' "$work/suite.log" | sed 's/^/   tests passed: /' >&2
    cd "$root"
}

parts=("${@:-}")
[ -n "${parts[0]}" ] || parts=(remote interrupted volume image)
make_work
export HOME=$work/home
mkdir "$HOME" "$work/bin" "$work/volume"
ln -s "$weald" "$work/bin/git-annex-remote-weald"
export PATH=$work/bin:$PATH
git config --global user.name weald
git config --global user.email weald@example.org
git config --global init.defaultBranch main
git config --global gc.auto 0
git config --global maintenance.auto false
volume=$work/volume
"$weald" store create -q "$work/store"
"$weald" volume create -q "$work/store:v"
"$weald" mount "$work/store:v" "$volume"
for part in "${parts[@]}"; do
    start=$(seconds)
    step "git-annex: $part"
    "try_$part"
    say "   took $(since "$start") s"
done
"$weald" umount "$volume"
"$weald" volume check "$work/store:v"
