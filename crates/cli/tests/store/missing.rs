//! Segments whose files are missing, as after the disk of a tier was unplugged: everything that
//! does not lie in them works, and all of it works when they are back.

use crate::ground::Ground;

/// A store of small segments with the volumes `v` and `w` and three images, one of which is a base.
/// `files` has the files of `v`, `more` those of `w`.
fn with_small_segments() -> Ground {
    let ground = Ground::new();
    ground.sh("$WEALD store create -q --segment-size 1M st
         $WEALD volume create -q st:v; $WEALD volume create -q st:w
         mkdir files more i1 i2 i3 mv mw mi keep
         for n in 1 2 3 4; do head -c 700000 /dev/urandom > files/f$n; done
         for n in 1 2; do head -c 600000 /dev/urandom > more/g$n; done
         for n in 1 2 3; do head -c 500000 /dev/urandom > i$n/x; seq $n 9000 > i$n/y; done
         cp i1/x i3/from-the-base
         $WEALD mount st:v mv; $WEALD mount st:w mw
         for n in 1 2 3 4; do cp files/f$n mv/; sync mv/f$n; done
         cp more/* mw/; $WEALD umount mv; $WEALD umount mw
         $WEALD store add -q st:i1 i1; $WEALD store add -q st:i2 i2
         $WEALD build -q --base st:i1 i3 i3.weald; $WEALD store import -q st i3.weald");
    ground
}

/// Reads all files of a mount; prints those that differ, with the error of a file that cannot be
/// read. `ENOENT` of a file that is listed is wrong.
const READ: &str = r#"
read_all() { # MOUNT SOURCE
    for file in "$1"/*; do
        name=${file##*/}; [ -e "$2/$name" ] || continue
        if ! said=$(cat "$file" 2>&1 > copied); then
            case $said in *'Input/output error'*) echo "lost $2/$name";; *) echo "BAD $said";; esac
        else cmp -s copied "$2/$name" || echo "BAD $file differs"; fi
    done
}
"#;

/// Would catch: a missing segment that makes volumes read-only or keeps a writer from opening the
/// store, a command that fails because of what it does not need, ENOENT for a file that is there,
/// and a store that does not come back with its segment.
#[test]
fn a_missing_segment_takes_only_what_lies_in_it() {
    let whole = with_small_segments();
    let segments = whole.sh("ls st/segments");
    assert!(segments.lines().count() >= 6, "{segments}");
    let mut lost_count = 0;
    for segment in segments.lines() {
        for is_salvaged in [false, true] {
            whole.sh("rm -rf st.away keep; cp -a st st.away");
            let said = whole.sh(&format!(
                "{READ}\nSEGMENT={segment} SALVAGED={is_salvaged}\n{DRILL}"
            ));
            assert!(
                !said.contains("BAD"),
                "segment {segment}, {is_salvaged}: {said}"
            );
            lost_count += said
                .lines()
                .filter(|line| line.starts_with("lost "))
                .count();
        }
    }
    assert!(lost_count > 0);
}

/// The drill in the store `st.away`, without the segment `$SEGMENT`.
const DRILL: &str = r#"
st=st.away
fail() { echo "BAD $*"; }
mv $st/segments/$SEGMENT keep
if $SALVAGED; then
    $WEALD store salvage $st > salvaged 2>&1 || [ $? = 1 ] || fail "$(cat salvaged)"
fi
for image in i1 i2 i3; do
    if said=$($WEALD mount $st:$image mi 2>&1); then
        read_all mi $image; $WEALD umount mi
    else case $said in *'No such file'*) $SALVAGED || fail "$said";; esac; fi
done
# The commands that read a whole image: what is lost is told as such, never as "no such file".
for image in i1 i2 i3; do
    for command in "cat $st:$image x" "tar $st:$image" "check $st:$image"; do
        if said=$($WEALD $command 2>&1 > copied); then
            case $command in cat*) cmp -s copied $image/x || fail "$command: other bytes";; esac
        else
            # A check prints what it finds.
            case $command in check*) said=$said$(cat copied);; esac
            case $said in
            *'the segment is missing'* | *'Input/output error'*) echo "lost $command";;
            *'damaged: x: content is damaged'*) echo "lost $command";;
            *'no such image'*) $SALVAGED || fail "$command: $said";;
            *) $SALVAGED || fail "$command: $said";;
        esac; fi
    done
done
$WEALD mount $st:v mv || fail mount v
$WEALD mount $st:w mw || fail mount w
read_all mv files; read_all mw more
# What dies in the segment, what is written again, and what is new.
rm mv/f1 || fail rm
cp files/f1 mv/again || fail "a file with the bytes of a lost one"
cp more/g1 mw/again || fail again
printf new > mw/new || fail new
dd if=/dev/urandom of=more.bin bs=100000 count=5 status=none; cp more.bin mv/; cp more.bin mw/
sync mv/again mv/more.bin mw/again mw/new mw/more.bin || fail sync
cmp files/f1 mv/again || fail other bytes; cmp more/g1 mw/again || fail other bytes
$WEALD store gc -q $st || fail gc beside a mount
cmp more.bin mv/more.bin || fail more.bin
for m in mv mw; do $WEALD umount $m || { fail umount $m; $WEALD umount --lazy $m; }; done
$WEALD store gc -q $st || fail gc
$WEALD store add -q $st:new more || fail add
$WEALD store check $st > checked 2>&1 || [ $? = 1 ] || fail "$(cat checked)"
$WEALD store rm $st:i2 > removed 2>&1 || $SALVAGED || fail "$(cat removed)"
$WEALD mount $st:v mv; $WEALD mount $st:w mw
cmp files/f1 mv/again || fail again after a mount; cmp more.bin mw/more.bin || fail more.bin
echo x > mv/last || fail last; rm mw/new || fail rm
$WEALD umount mv || fail umount; $WEALD umount mw || fail umount
# The segment is back.
cp keep $st/segments/$SEGMENT
$WEALD mount $st:v mv; $WEALD mount $st:w mw
for n in 2 3 4; do cmp files/f$n mv/f$n || fail f$n of a whole store; done
cmp more/g1 mw/g1 || fail g1; cmp more/g2 mw/g2 || fail g2; cmp files/f1 mv/again || fail again
$WEALD umount mv; $WEALD umount mw
$WEALD store gc -q $st || fail gc of a whole store
$WEALD store check --data $st > checked 2>&1 || $SALVAGED || fail "$(cat checked)"
$WEALD check -q $st:new || fail new
if ! $SALVAGED; then
    $WEALD mount $st:i1 mi; cmp i1/x mi/x || fail i1; $WEALD umount mi
    $WEALD mount $st:i3 mi; cmp i3/x mi/x || fail i3; cmp i1/x mi/from-the-base || fail base
    $WEALD umount mi
fi
"#;
