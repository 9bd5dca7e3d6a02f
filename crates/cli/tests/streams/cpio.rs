//! Archives of cpio as sources, compared with what cpio(1) unpacks.

use super::{rich, same_as_unpacked, status, tree_digest};
use crate::support::Bench;

/// Unpacks, and sets the times that cpio(1) does not: of symlinks, and of directories in which it
/// makes links later.
const UNPACK: &str = "cd out && cpio -idm --quiet --no-absolute-filenames 2> /dev/null
                      test \"$(stat -c %Y large)\" = 1400000000
                      find . -depth -exec touch -h -d @1400000000 {} +; touch -d @1500000000 .";

/// Would catch: members, links or times that are not those of cpio(1), in both formats.
#[test]
fn archives_of_cpio_equal_their_unpacked_tree() {
    let bench = rich();
    // The format has whole seconds, and no holes, sockets and xattrs.
    bench.sh("cd source; ln large large-too; : > twin-a; ln twin-a twin-b
        find . -depth -print0 | while IFS= read -r -d '' f; do
         for x in $(getfattr -h -m - --absolute-names \"$f\" 2> /dev/null | grep -v '^#'); do
         setfattr -h -x $x \"$f\"; done; touch -h -d @1400000000 \"$f\"; done
        touch -d @1500000000 .");
    for format in ["newc", "crc"] {
        for order in ["sort -z", "sort -rz"] {
            let make = format!(
                "cd source; find . -print0 | {order} | cpio -0 -o -H {format} --quiet 2>/dev/null"
            );
            same_as_unpacked(&bench, &make, UNPACK);
        }
    }
    bench.sh("cd source; find . -print0 | cpio -0 -o -H newc --quiet > ../a");
    let expected = tree_digest(&bench, "streamed.weald");
    for make in ["gzip -c a", "zstd -qc a", "xz -c a", "cat a"] {
        bench.sh(&format!("{make} > b; $WEALD build -q -l 1 -f b image"));
        assert_eq!(tree_digest(&bench, "image"), expected, "{make}");
        bench.sh(&format!(
            "{make} | $WEALD build -q -l 1 -f --from cpio - image"
        ));
        assert_eq!(tree_digest(&bench, "image"), expected, "{make}");
    }
}

/// Would catch: an initramfs of which only the microcode is packed, and links of bsdcpio, which
/// has the data behind each name.
#[test]
fn several_archives_and_other_writers_are_read() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p a/kernel b/bin; seq 9 > a/kernel/code; seq 5000 > b/bin/sh; ln b/bin/sh b/sh
        ln -s bin b/sbin; find a b -exec touch -h -d @1500000000 {} +
        (cd a; find . -mindepth 1 | cpio -o -H newc --quiet) > init
        (cd b; find . | cpio -o -H newc --quiet | gzip) >> init
        mkdir both; cp -a a/. b/. both; touch -d @1500000000 both
        $WEALD build -q -l 1 both direct; $WEALD build -q -l 1 init image
        bsdtar -cf bsd --format newc -C both .; $WEALD build -q -l 1 bsd again
        $WEALD tar --format cpio direct | $WEALD build -q - own",
    );
    for image in ["image", "again", "own"] {
        if tree_digest(&bench, image) != tree_digest(&bench, "direct") {
            panic!("{image}: {}", bench.weald(["diff", image, "direct"]).text());
        }
    }
    // Members below a symlink of the archive lie where the kernel puts them.
    bench.sh(
        "rm -rf x y z; mkdir -p x/usr/bin y/bin z; ln -s usr/bin x/bin; echo 1 > y/bin/foo
        (cd x; find . | sort | cpio -o -H newc --quiet) > init
        (cd y; echo bin/foo | cpio -o -H newc --quiet) >> init
        $WEALD build -q -f init image; test \"$($WEALD cat image usr/bin/foo)\" = 1",
    );
}

/// Would catch: an archive that is cut, lies or leads out of the tree, and is packed.
#[test]
fn bad_archives_are_refused() {
    let bench = Bench::new();
    bench.sh(
        "mkdir source; seq 5000 > source/n; cd source; ls | cpio -o -H newc --quiet > ../new
        ls | cpio -o -H crc --quiet 2> /dev/null | sed 's/^4999$/4998/' > ../sum
        ls | cpio -o -H odc --quiet > ../odc; ls | cpio -o -H bin --quiet > ../bin
        echo $PWD/n | cpio -o -H newc --quiet > ../absolute; mkdir d
        (cd d; echo ../n | cpio -o -H newc --quiet) > ../above; cd ..
        head -c 2000 new > short; head -c 900 /dev/zero >> short; head -c 60 new > head
        (head -c 54 new; printf ffffffff; tail -c +63 new) > long
        (head -c 94 new; printf ffffffff; tail -c +103 new) > name
        (head -c 14 new; printf 0000d1b4; tail -c +23 new) > mode
        (cat new; echo more) > more; (head -c 30 new; printf 'x'; tail -c +32 new) > digit",
    );
    for (name, expected) in [
        ("sum", "the data have the sum"),
        ("odc", "an old format of cpio"),
        ("bin", "an old format of cpio"),
        ("absolute", "an absolute path"),
        ("above", "a path with '..'"),
        ("short", "cut short"),
        ("head", "cut short"),
        ("long", "cut short"),
        ("name", "a path of 4294967295 bytes"),
        ("mode", "a mode of no type"),
        ("digit", "a field of a header has no number"),
    ] {
        let (code, said) = status(&bench, &format!("$WEALD build -q {name} image"));
        assert!(
            code == 2 && said.contains(expected),
            "{name}: {code} {said}"
        );
        assert!(!bench.at("image").exists());
    }
    let (code, said) = status(&bench, "$WEALD build -q more image");
    assert!(code == 1 && said.contains("data follows the end"), "{said}");
}
