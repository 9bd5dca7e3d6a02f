//! Mounts that show other owners than the image has.

use crate::ground::Ground;

/// A tree of several owners, its image `image`, the directory `mnt`, and the function `as UID GID
/// COMMAND…`.
const TREE: &str = r#"
    set -eu; WEALD=$0
    as() { setpriv --reuid="$1" --regid="$2" --clear-groups "${@:3}" 2> /dev/null; }
    mkdir -p tree/sub mnt; chmod 755 . tree
    echo own > tree/own; chown 1000:0 tree/own; chmod 600 tree/own
    echo group > tree/group; chown 0:2000 tree/group; chmod 640 tree/group
    echo acl > tree/acl; chmod 600 tree/acl; setfacl -m u:1001:r,g:2001:r tree/acl
    setfacl -d -m u:1001:rwx tree/sub
    for id in $(seq 5000 5004); do
        echo $id > tree/$id; chown $id:$id tree/$id; chmod 400 tree/$id
    done
    ln -s own tree/link; chown -h 1000:2000 tree/link
    "$WEALD" build -q tree image
"#;

/// Would catch: owners that are shown and do not count, or count and are not shown, ids of ACLs
/// that stay, ends of ranges that are left out, and maps of one word that another one replaces.
#[test]
fn the_kernel_decides_by_the_mapped_owners() {
    let ground = Ground::new();
    let maps = "--map-uid 1000:65534 --map-uid 5000-5003:7000 --map-uid 1001:65533 \
                --map-gid 2000-2001:3000";
    ground.script(&format!(
        "{TREE}
        \"$WEALD\" mount {maps} image mnt
        test \"$(as 65534 9 cat mnt/own)\" = own
        test \"$(as 65534 9 cat mnt/link)\" = own
        as 1000 9 cat mnt/own && exit 1
        test \"$(as 9 3000 cat mnt/group)\" = group
        as 9 2000 cat mnt/group && exit 1
        test \"$(as 65533 9 cat mnt/acl)\" = acl
        test \"$(as 9 3001 cat mnt/acl)\" = acl
        as 1001 9 cat mnt/acl && exit 1
        as 9 2001 cat mnt/acl && exit 1
        test \"$(as 7003 9 cat mnt/5003)\" = 5003
        as 5003 9 cat mnt/5003 && exit 1
        test \"$(as 5004 9 cat mnt/5004)\" = 5004
        # What is shown is what a script makes of the tree.
        python3 -I - <<'END'
import os
uids = {{1000: 65534, 1001: 65533, **{{5000 + n: 7000 + n for n in range(4)}}}}
gids = {{2000: 3000, 2001: 3001}}
for name in ['.'] + os.listdir('tree'):
    a, b = os.lstat('tree/' + name), os.lstat('mnt/' + name)
    wanted = uids.get(a.st_uid, a.st_uid), gids.get(a.st_gid, a.st_gid), a.st_mode
    assert (b.st_uid, b.st_gid, b.st_mode) == wanted, name
END
        diff <(cd tree; getfacl -n acl sub | sed 's/1001/65533/; s/2001/3001/') \\
            <(cd mnt; getfacl -n acl sub)
        \"$WEALD\" umount mnt"
    ));
}

/// Would catch: words of fstab that do something else than the options, names that are not found,
/// and maps that change what uid= shows.
#[test]
fn maps_are_words_and_take_names() {
    let ground = Ground::new();
    ground.script(&format!(
        "{TREE}
        fails() {{
            ! \"$WEALD\" \"$@\" 2> said && grep -q \"$part\" said || {{ cat said >&2; exit 1; }}
        }}
        \"$WEALD\" mount -o map_uid=1000:7,map_uid=0:8,map_uid=5000:8,map_gid=0:9 image mnt
        test \"$(stat -c %u:%g mnt/own mnt/group mnt/5000 | tr '\\n' ' ')\" = '7:9 8:2000 8:5000 '
        \"$WEALD\" umount mnt
        \"$WEALD\" mount --map-uid root:nobody --map-gid root:nogroup image mnt
        test \"$(stat -c %U:%G:%u mnt/acl)\" = \"nobody:nogroup:$(id -u nobody)\"
        \"$WEALD\" umount mnt
        \"$WEALD\" mount --map-uid 1000:7 -o uid=5 image mnt
        test \"$(stat -c %u mnt/own)\" = 5
        test -z \"$(getfacl -cp mnt/acl | grep 1001)\"
        \"$WEALD\" umount mnt
        # The same names elsewhere.
        \"$WEALD\" build -q --owner nobody:nogroup tree owned
        \"$WEALD\" build -q --map-uid root:nobody --map-gid 0:nogroup tree mapped
        for image in owned mapped; do
            \"$WEALD\" mount $image mnt
            test \"$(stat -c %U:%G mnt/acl)\" = nobody:nogroup
            \"$WEALD\" umount mnt
        done
        part='no user in /etc/passwd' fails mount --map-uid nosuchuser:5 image mnt
        part='no group in /etc/group' fails mount --map-gid 5:nosuchgroup image mnt
        part='expected FROM:TO' fails mount --map-uid 9-5:1 image mnt
        part='expected FROM:TO' fails mount -o map_gid=x image mnt
        \"$WEALD\" store create -q store; \"$WEALD\" volume create -q store:home
        part='an option of images' fails mount -o map_uid=1:2 store:home mnt"
    ));
}
