#!/bin/bash
# annex-test.sh [PART...]: git-annex of the system on Weald: remote, ciphers, import, jobs,
# interrupted, volume, requests, image; and the slow ones: whole, testremote without --fast; metadata, bytes of
# an annexed file in an image; suite, the whole of `git annex test`. Without arguments, all but the
# slow ones. Needs root.
# DATALAD=PROGRAM gets files with DataLad in the part image.
set -euo pipefail
export WEALD_PROFILE=${WEALD_PROFILE:-dev}
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

need git git-annex gpg
need_root "making mounts"
[ -x "$weald" ] || die "$weald is missing: run 'cargo build -p weald-cli' first, or set WEALD_PROFILE=release"
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

# try_testremote NAME [OPTION]...: git-annex's own tests of a remote, which make and remove keys.
try_testremote() {
    local name=$1 start
    shift
    start=$(seconds)
    step "git annex testremote $* $name"
    quiet git annex testremote "$@" "$name"
    grep -E 'All [0-9]+ tests passed' "$work/log" | sort | uniq -c >&2 || die "testremote $name ran no tests"
    ! grep -q FAIL "$work/log" || die "testremote $name: $(grep FAIL "$work/log")"
    [ -z "$(find "$volume/$name" -type f)" ] || die "testremote $name left $(find "$volume/$name" -type f)"
    # The slowest tests, with their seconds.
    say "   took $(since "$start") s; slowest: $(sed -n 's/^ *\(.*[^ ]\): *OK (\([0-9.]*\)s)$/\2 s \1/p' "$work/log" |
        sort -rn | head -n 1)"
}

# stat_of FIELD: a figure of the volume.
stat_of() { "$weald" volume stat --json "$work/store:v" | python3 -I -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

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
        try_testremote "$name" --fast --size=200KiB
    done
    # A version that differs in one byte shares its other chunks with the first, below the keys.
    local first second
    head -c 8M /dev/urandom >versions
    quiet git annex add versions
    quiet git annex copy --to plain versions
    sync "$volume"
    first=$(stat_of stored_len)
    quiet git annex unlock versions
    printf 'changed!' | dd of=versions bs=1 seek=4000000 conv=notrunc status=none
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
    cd "$root"
}

# git-annex encrypts and cuts before the remote gets anything: with a secret in the repository
# (shared), with one that a GnuPG key protects (hybrid), and by that key alone (pubkey).
try_ciphers() {
    local cipher name settings count chunk
    export GNUPGHOME=$work/gnupg
    mkdir -m 700 "$GNUPGHOME"
    quiet gpg --batch --passphrase '' --quick-generate-key 'weald <weald@example.org>' default default never
    new_repository "$work/ciphers"
    cd "$work/ciphers"
    # Text, of which nothing may be readable, in three chunks.
    head -c 3M >data < <(base64 /dev/urandom)
    cp data "$work/data"
    quiet git annex add data
    for cipher in shared hybrid pubkey; do
        step "encryption=$cipher chunk=1MiB"
        name=cipher-$cipher
        settings=("encryption=$cipher" chunk=1MiB)
        [ "$cipher" = shared ] || settings+=(keyid=weald@example.org)
        new_remote "$name" "${settings[@]}"
        quiet git annex copy --to "$name" data
        count=$(find "$volume/$name" -type f | wc -l)
        [ "$count" = 3 ] || die "$name: 3 MiB are $count chunks of 1 MiB"
        if grep -rqF "$(head -n 1 "$work/data")" "$volume/$name"; then die "$name: a chunk is not encrypted"; fi
        quiet git annex fsck --from "$name" data
        quiet git annex drop data
        [ ! -e data ] || die "$name: the dropped file is there"
        quiet git annex get --from "$name" data
        cmp data "$work/data"
        quiet git annex fsck data
        # A changed byte is found, and a new copy is whole.
        chunk=$(find "$volume/$name" -type f | head -n 1)
        chmod u+w "$chunk"
        printf 'damaged!' | dd of="$chunk" bs=1 seek=2000 conv=notrunc status=none
        if git annex fsck --from "$name" data >"$work/log" 2>&1; then die "$name: fsck found no damage"; fi
        quiet git annex drop --from "$name" data
        quiet git annex copy --to "$name" data
        quiet git annex fsck --from "$name" data
        quiet git annex drop --from "$name" data
        [ -z "$(find "$volume/$name" -type f)" ] || die "$name: a dropped key stays"
        try_testremote "$name" --fast
    done
    gpgconf --kill all
    unset GNUPGHOME
    cd "$root"
}

# What others do to an exported tree comes back. The protocol of external remotes has no request
# for that yet, so that git-annex's own remote of a directory does it, on the volume.
try_import() {
    local branch=main
    new_repository "$work/import"
    cd "$work/import"
    mkdir "$volume/external" "$volume/both-ways"
    if git annex initremote external type=external externaltype=weald "directory=$volume/external" \
        encryption=none exporttree=yes importtree=yes >"$work/log" 2>&1; then
        die "this git-annex imports from external remotes: git-annex-remote-weald can learn it"
    fi
    grep -qi 'importtree' "$work/log" || die "no word about importtree: $(cat "$work/log")"
    quiet git annex initremote both-ways type=directory "directory=$volume/both-ways" encryption=none \
        exporttree=yes importtree=yes
    mkdir few
    for name in one two three; do seq "$RANDOM" >"few/$name"; done
    quiet git annex add .
    git commit -qm few
    quiet git annex export "$branch" --to both-ways
    # A new file, a changed one, a renamed one and a removed one.
    seq 2000 >"$volume/both-ways/from outside"
    seq 3000 >"$work/changed"
    cp "$work/changed" "$volume/both-ways/few/one"
    mv "$volume/both-ways/few/two" "$volume/both-ways/moved"
    rm "$volume/both-ways/few/three"
    quiet git annex import "$branch" --from both-ways
    quiet git annex merge --allow-unrelated-histories "both-ways/$branch"
    seq 2000 | cmp - 'from outside'
    cmp "$work/changed" few/one
    [ -e moved ] || die "a renamed file was not imported"
    if [ -L few/two ] || [ -L few/three ]; then die "files that are gone on the volume stay"; fi
    # A file that changed on the volume since is not overwritten by an export.
    quiet git annex unlock few/one
    echo ours >few/one
    quiet git annex add few/one
    git commit -qm ours
    echo theirs >"$volume/both-ways/few/one"
    if git annex export "$branch" --to both-ways >"$work/log" 2>&1; then die "an export overwrote a change"; fi
    [ "$(cat "$volume/both-ways/few/one")" = theirs ] || die "an export overwrote a change"
    cd "$root"
}

# With ASYNC, one process serves all jobs. A wrapper counts processes; it can hide the extension.
try_jobs() {
    local mode start real=$work/bin/git-annex-remote-weald round hide
    local -A count=() took=([async]=0 [each]=0)
    new_repository "$work/jobs"
    cd "$work/jobs"
    new_remote jobs encryption=none
    mkdir files
    for ((i = 0; i < 40; i++)); do head -c 100K /dev/urandom >"files/$i"; done
    quiet git annex add .
    git commit -qm files
    mkdir "$work/counting"
    for round in 1 2 3; do
        for mode in async each; do
            hide=cat
            [ "$mode" = async ] || hide='sed -u "s/^\(EXTENSIONS.*\) ASYNC/\1/"'
            cat >"$work/counting/git-annex-remote-weald" <<SHELL
#!/bin/sh
echo started >>"$work/started-$mode"
$hide | exec "$real"
SHELL
            chmod +x "$work/counting/git-annex-remote-weald"
            : >"$work/started-$mode"
            start=$(seconds)
            PATH=$work/counting:$PATH quiet git annex copy -J4 --to jobs files
            PATH=$work/counting:$PATH quiet git annex drop -J4 files
            PATH=$work/counting:$PATH quiet git annex get -J4 files
            took[$mode]=$(awk -v a="${took[$mode]}" -v b="$(since "$start")" 'BEGIN { print a + b }')
            count[$mode]=$(wc -l <"$work/started-$mode")
            quiet git annex fsck files
            [ "$(find "$volume/jobs" -type f | wc -l)" = 40 ] || die "$mode: keys are missing"
            quiet git annex drop --from jobs files
        done
    done
    say "   processes for copy, drop, get with -J4: ${count[async]} with ASYNC, ${count[each]} without"
    say "   seconds of three rounds by turns: ${took[async]} with ASYNC, ${took[each]} without"
    [ "${count[async]}" -lt "${count[each]}" ] || die "jobs did not share a process"
    cd "$root"
}

# Tests without --fast cut a file into a thousand chunks and more, whatever its size. With encryption,
# git-annex starts GnuPG for each: there, below 1000 bytes, a hundred chunks are the most.
try_whole() {
    new_repository "$work/whole"
    cd "$work/whole"
    new_remote whole encryption=none
    new_remote whole-tree encryption=none exporttree=yes
    new_remote whole-shared encryption=shared
    try_testremote whole --size=200KiB
    try_testremote whole-tree --size=999B
    try_testremote whole-shared --size=999B
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

# requests OPERATION: what the kernel asked the server of the volume so far; "all" for any operation.
requests() {
    "$weald" mounts --json | python3 -I -c 'import json, sys
mounts = [one for one in map(json.loads, sys.stdin) if one.get("dir") == sys.argv[1]]
assert len(mounts) == 1, mounts
one, operation = mounts[0], sys.argv[2]
counts = {each["name"]: each["count"] for each in one["operations"]}
print(one["request_count"] if operation == "all" else counts.get(operation, 0))' \
        "$volume" "$1"
}

# What `git annex get` from a clone on the same volume asks of the server: as it is; with a cp in
# PATH that shares blocks where FUSE refuses a reflink; with hard links; without extended attributes;
# and with the databases of git-annex elsewhere, and git's objects renamed instead of linked.
try_requests() {
    local mode what before=()
    local -A asked
    mkdir "$work/cp" "$work/databases"
    # The lines of docs/datalad.md.
    sed -n '/^#!\/bin\/sh$/,/^```$/p' "$root/docs/datalad.md" | grep -v '^```$' >"$work/cp/cp"
    grep -q reflink "$work/cp/cp" || die "docs/datalad.md has no cp"
    chmod +x "$work/cp/cp"
    new_repository "$volume/source"
    cd "$volume/source"
    mkdir small
    for ((i = 0; i < 100; i++)); do head -c 6K /dev/urandom >"small/$i"; done
    head -c 20M /dev/urandom >large
    quiet git annex add .
    git commit -qm files
    for mode in plain cp hardlink noxattr settings; do
        if [ $mode = noxattr ]; then
            cd "$root"
            "$weald" umount "$volume"
            "$weald" mount -o noxattr "$work/store:v" "$volume"
            cd "$volume/source"
        elif [ $mode = settings ]; then
            git config --global annex.dbdir "$work/databases"
            git config --global core.createObject rename
        fi
        if [ $mode = hardlink ]; then
            quiet git clone -q --shared "$volume/source" "$volume/get-$mode"
        else
            quiet git clone -q "$volume/source" "$volume/get-$mode"
        fi
        quiet git -C "$volume/get-$mode" annex init $mode
        for what in small large; do
            before=("$(requests all)" "$(requests write)" "$(requests copy_file_range)")
            if [ $mode = cp ]; then
                PATH=$work/cp:$PATH quiet git -C "$volume/get-$mode" annex get $what
            else
                quiet git -C "$volume/get-$mode" annex get $what
            fi
            asked[$mode-$what]=$(($(requests all) - before[0]))
            asked[$mode-$what-copy]=$(($(requests copy_file_range) - before[2]))
            say "   $mode, $what: ${asked[$mode-$what]} requests, of which $(($(requests write) - before[1])) write and" \
                "${asked[$mode-$what-copy]} share blocks"
        done
        cmp large "$volume/get-$mode/large"
        quiet git -C "$volume/get-$mode" annex fsck
    done
    git config --global --unset annex.dbdir
    git config --global --unset core.createObject
    cd "$root"
    "$weald" umount "$volume"
    "$weald" mount "$work/store:v" "$volume"
    [ "${asked[noxattr-small]}" -lt $((asked[plain-small] * 19 / 20)) ] || die "noxattr saves no requests"
    [ "${asked[settings-small]}" -lt $((asked[plain-small] * 17 / 20)) ] || die "the settings save no requests"
    [ "${asked[cp-large-copy]}" = 1 ] || die "cp did not share the blocks"
    [ "${asked[plain-large]}" -gt $((2 * asked[cp-large])) ] || die "a copy asks no more than shared blocks"
    [ "${asked[plain-large]}" -gt $((2 * asked[hardlink-large])) ] || die "a copy asks no more than a hard link"
    [ "$(stat -Lc %h "$volume/get-hardlink/large")" = 2 ] || die "annex.hardlink made no hard link"
}

# metadata_len IMAGE: bytes of all metadata of the image.
metadata_len() { "$weald" info --json "$1" | python3 -I -c 'import json, sys; print(json.load(sys.stdin)["tree_len"])'; }

# Bytes of metadata of an annexed file. A key is 32 bytes that nothing can predict, its length and
# the names of two directories; it stands in a link, in the name of a directory and in that of a file.
try_metadata() {
    local count=2000 name keep equal
    local -A len
    PYTHONDONTWRITEBYTECODE=1 python3 -I "$root/lab/src/weald_lab/makerepo.py" "$work/data-set" 20 $((count / 20)) 1:0
    git -C "$work/data-set" gc -q --prune=now
    git clone -q "$work/data-set" "$work/data-set.clone"
    mkdir "$work/files"
    cp -rL "$work/data-set"/dir* "$work/files/"
    for name in data-set data-set.clone files; do
        "$weald" build -q "$work/$name" "$work/$name.weald"
        "$weald" build -q --mtime 0 "$work/$name" "$work/$name.equal"
        keep=$(metadata_len "$work/$name.weald")
        equal=$(metadata_len "$work/$name.equal")
        len[$name]=$equal
        say "   $name: $(ratio "$keep" $count) bytes of metadata for each annexed file, $(ratio "$equal" $count) with equal times"
    done
    say "   above the files alone and the 32 bytes of a key: $(ratio $((len[data-set] - len[files] - 32 * count)) $count)"
    # Ten times as many files, whose links and objects no longer fit into one block of entries.
    python3 -I - "$work/many" $((10 * count)) <<'PYTHON'
import hashlib, os, random, sys
root, count = sys.argv[1], int(sys.argv[2])
dice = random.Random(1)
letters = "0123456789zqjxkmvwgpfZQJXKMVWGPF"
for i in range(count):
    data = dice.randbytes(50)
    key = f"SHA256E-s{dice.randrange(512, 16384)}--{hashlib.sha256(data).hexdigest()}.dat"
    bits = int.from_bytes(hashlib.md5(key.encode()).digest()[:4], "little")
    a, b, c, d = (letters[bits >> 6 * j & 31] for j in range(4))
    place = f".git/annex/objects/{b}{a}/{d}{c}/{key}"
    os.makedirs(f"{root}/{place}")
    with open(f"{root}/{place}/{key}", "wb") as file:
        file.write(data)
    os.makedirs(f"{root}/dir{i // 100}", exist_ok=True)
    os.symlink(f"../{place}/{key}", f"{root}/dir{i // 100}/file{i % 100}.dat")
PYTHON
    "$weald" build -q --mtime 0 "$work/many" "$work/many.equal"
    say "   ten times as many files: $(ratio "$(metadata_len "$work/many.equal")" $((10 * count))) bytes with equal times"
    python3 -I - "$work/data-set" <<'PYTHON' >&2
import os, subprocess, sys
links = []
for folder in sorted(os.listdir(sys.argv[1])):
    if folder.startswith("dir"):
        where = f"{sys.argv[1]}/{folder}"
        links += [os.readlink(f"{where}/{name}").encode() for name in sorted(os.listdir(where))]
keys = [link.rpartition(b"/")[2] for link in links]
objects = sorted(link[len("../.git/annex/objects/"):].split(b"/") for link in links)
names = b"".join(b"".join((key, second, first)) for first, second, key, _ in objects)
parts = {
    "digests, hexadecimal": b"".join(key.split(b"--")[1][:64] for key in keys),
    "keys": b"".join(keys),
    "lengths in keys": b"".join(key.split(b"--")[0] for key in keys),
    "links without their last name": b"".join(link.rpartition(b"/")[0] for link in links),
    "links": b"".join(links),
    "links, and names of objects": b"".join(links) + names,
}
for name, data in parts.items():
    stored = subprocess.run(["zstd", "-19", "-c"], input=data, capture_output=True, check=True).stdout
    print(f"   {name}, by zstd -19: {len(stored) / len(links):.1f} bytes for each file")
PYTHON
    [ $((len[data-set] - len[files] - 32 * count)) -lt $((30 * count)) ] || die "an annexed file takes more metadata than before"
    [ "${len[data-set.clone]}" -lt "${len[data-set]}" ] || die "a clone without contents takes more than one with contents"
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
[ -n "${parts[0]}" ] || parts=(remote ciphers import jobs interrupted volume requests image)
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
