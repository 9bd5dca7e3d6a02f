//! Programs that carry their files: they start, share a mount, and leave none behind. Each test
//! runs with the command `weald` before the image, and with the small runtime.

use crate::ground::Ground;
use std::fs;
use weald_testkit::command::{runtime_bin, weald_bin};

/// Functions for scripts, and a tree with a program of the shell.
const PREPARE: &str = r#"
    set -euo pipefail
    fails() { if "$@"; then echo "did not fail: $*"; exit 1; fi; }
    export -f fails
    apps=$WEALD_RUNTIME_DIR/apps
    # Waits until no mount of a program is left.
    gone() {
        for _ in $(seq 300); do
            if ! grep -q " $apps/" /proc/self/mountinfo &&
                ! ls "$apps" | grep -qvE 'lock|start'; then return; fi
            sleep 0.05
        done
        grep "$apps" /proc/self/mountinfo; ls "$apps"; exit 1
    }
    mounted() { grep -c " $apps/" /proc/self/mountinfo || true; }
    tree() {
        mkdir -p tree/bin
        cat >tree/AppRun <<'RUN'
#!/bin/bash
case ${1:-} in
sum) sha256sum <"$APPDIR/blob" || exit 9; exit 7 ;;
children) read -r own <"/proc/$$/task/$$/children" || true; echo "$own" ;;
show) echo "$#:$2:$APPIMAGE:$ARGV0:$OWD:$HOME"; cat "$APPDIR/data"; exit 7 ;;
wait) touch "$2.ready"; while [ ! -e "$2" ]; do sleep 0.02; done; cat "$APPDIR/data" ;;
leave) (while [ ! -e "$2" ]; do sleep 0.02; done; cat "$APPDIR/data" >"$2.read") & ;;
esac
RUN
        chmod 755 tree/AppRun; echo some data >tree/data
    }
    # What stands before the image is what the test is about.
    pack() { "$weald" build -q --self-mounting --runtime "$runtime" "$@"; }
    tree; export HOME=$PWD/home XDG_CACHE_HOME=; mkdir home
"#;

/// The grounds on which `script` ran: with either program before the image.
fn grounds(script: &str) -> Vec<Ground> {
    let run = |runtime: &str| {
        let ground = Ground::new();
        let set = format!("weald=$0 runtime='{runtime}'");
        ground.script(&format!("{set}{PREPARE}{script}"));
        ground
    };
    vec![run(weald_bin()), run(&runtime_bin())]
}

/// Would catch: arguments, variables or a status that are lost, a mount that stays, in each way of
/// starting; files with odd names, through a symlink, and from another directory.
#[test]
fn a_program_starts_and_leaves_nothing() {
    grounds(
        r#"
        pack tree app
        for name in app 'odd %s
name'; do
            [ "$name" = app ] || mv app "$name"
            for how in mount extract auto; do
                code=0; WEALD_APP=$how ./"$name" show 'a  b' >said || code=$?
                test $code = 7
                printf '%s\nsome data\n' "2:a  b:$PWD/$name:./$name:$PWD:$HOME" | cmp - said
                gone
            done
        done
        mv odd* app; ln -s ../app tree/link; cd tree; ./link show x >../said || test $? = 7; cd ..
        grep -q "^2:x:$PWD/app:./link:$PWD/tree:" said
        APPIMAGE_EXTRACT_AND_RUN=1 ./app show x >said || test $? = 7
        ./app --appimage-extract-and-run show y >>said || test $? = 7
        test "$(grep -c 'some data' said)" = 2
        # The program has no child that it did not start.
        for how in mount extract; do test -z "$(WEALD_APP=$how ./app children)"; gone; done
        # The runtime of an image whose program does not exist says so.
        rm tree/link; printf 'a\0' | pack --from listing --run bin/x - none
        fails ./none 2>said; gone
        grep -q "/bin/x of the image cannot be started: No such file" said"#,
    );
}

/// Would catch: a mount for each start, one that ends under a process that lives, also one in the
/// background, and one that stays after a kill.
#[test]
fn processes_share_a_mount_until_the_last_ends() {
    grounds(
        r#"
        pack tree app
        for i in $(seq 8); do ./app wait go >said.$i & done
        for i in $(seq 8); do :; done
        while [ ! -e go.ready ]; do sleep 0.02; done
        test "$(mounted)" = 1
        touch go; wait
        for i in $(seq 8); do grep -q 'some data' said.$i; done
        gone
        # What the program leaves in the background keeps its files.
        ./app leave later; sleep 0.3; test "$(mounted)" = 1
        touch later; while [ ! -s later.read ]; do sleep 0.02; done; gone
        # No cleaning up was possible.
        ./app wait never >/dev/null & while [ ! -e never.ready ]; do sleep 0.02; done
        disown $!; kill -9 $!; gone
        # Kept for the next start.
        WEALD_APP_KEEP=3 ./app show x >/dev/null || test $? = 7
        before=$(grep " $apps/" /proc/self/mountinfo | cut -d' ' -f1)
        ./app show x >/dev/null || test $? = 7
        test "$(grep " $apps/" /proc/self/mountinfo | cut -d' ' -f1)" = "$before"; gone
        # A new file under the name is another program, while the old one goes on.
        ./app wait old >said & while [ ! -e old.ready ]; do sleep 0.02; done
        echo new data >tree/data; pack --force tree app
        ./app show x >new || test $? = 7; grep -q 'new data' new
        touch old; wait; grep -q 'some data' said; gone"#,
    );
}

/// Would catch: a program that needs FUSE, one that other users can change, a message that does not
/// help.
#[test]
fn without_fuse_and_for_other_users() {
    let grounds = grounds(
        r#"
        chmod 755 .; pack tree app; $0 build -q tree image
        unshare -m bash -euc 'mount --bind /dev/null /dev/fuse; export HOME=$PWD/home
            ./app show x >said || test $? = 7; grep -q "some data" said
            fails env WEALD_APP=mount ./app show x >said 2>told; grep -q "WEALD_APP=extract" told'
        install -d -o nobody -m 700 nobody nobody/run nobody/home
        unshare -m bash -euc '
            mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
            export WEALD_RUNTIME_DIR=$PWD/nobody/run HOME=$PWD/nobody/home
            for how in mount extract; do
                WEALD_APP=$how setpriv --reuid nobody --regid nogroup --clear-groups ./app show x \
                    >said || test $? = 7
                grep -q "some data" said
            done
            for i in $(seq 100); do
                grep -q " $WEALD_RUNTIME_DIR" /proc/self/mountinfo || exit 0; sleep 0.05
            done; exit 1'
        # A tree that was not removed completely, with a directory that is read-only.
        WEALD_APP=extract WEALD_APP_KEEP=always ./app show x >said || test $? = 7
        dir=$(echo home/.cache/weald-apps/*); chmod 500 "$dir/bin"; mv "$dir" "$dir.unfinished"
        rm -f "$dir.unfinished/data"; touch "$dir.unfinished/other"
        WEALD_APP=extract ./app show x >said || test $? = 7; grep -q 'some data' said
        for i in $(seq 100); do [ -n "$(ls home/.cache/weald-apps)" ] || break; sleep 0.05; done
        test -z "$(ls home/.cache/weald-apps)"
        # A directory of the cache that another user made.
        mkdir -p home/.cache; install -d -o nobody -m 777 home/.cache/weald-apps
        fails env WEALD_APP=extract ./app show x 2>told; grep -q 'other users could change it' told
        rm -rf home/.cache
        fails env WEALD_APP=maybe ./app 2>told; grep -q 'expected mount, extract or auto' told
        fails env WEALD_APP_KEEP=x ./app 2>told; grep -q 'expected seconds or always' told
        fails ./app --appimage-x 2>told; grep -q -- '--appimage-help' told"#,
    );
    // A download that was cut says so, wherever it was cut.
    for ground in grounds {
        let whole = fs::read(ground.at("app")).expect("read");
        let image_len = fs::metadata(ground.at("image")).expect("image").len() as usize;
        for cut in [1, image_len, image_len + 1, image_len + 5000] {
            fs::write(ground.at("cut"), &whole[..whole.len() - cut]).expect("write");
            ground.script(
                "set -e; fails() { if \"$@\"; then exit 1; fi; }
                 export HOME=$PWD/home; chmod 755 cut; fails ./cut >said 2>told; test ! -s said
                 grep -qE 'cut short|truncated|no image ends' told || { cat told; exit 1; }
                 fails grep -q panicked told",
            );
        }
    }
}

/// Would catch: damage behind the program that is shown as the data, that ends in a panic, or after
/// which a mount or a directory stays.
#[test]
fn damage_is_told_and_never_shown() {
    let grounds = grounds(
        r#"
        head -c 300000 /dev/urandom >tree/blob; seq 30000 >tree/text
        pack --level 1 tree app; sha256sum <tree/blob >sum"#,
    );
    for ground in grounds {
        let whole = fs::read(ground.at("app")).expect("read");
        let image_len = 300_000;
        for round in 0..8 {
            // Everywhere in the image, its first and its last bytes among them.
            let at = whole.len() - image_len + round * (image_len - 16) / 7;
            let mut damaged = whole.clone();
            damaged[at..at + 16]
                .iter_mut()
                .for_each(|byte| *byte ^= 0x5a);
            fs::write(ground.at("damaged"), &damaged).expect("write");
            for how in ["mount", "extract"] {
                ground.script(&format!(
                    r#"set -u; export HOME=$PWD/home; chmod 755 damaged
                    code=0; WEALD_APP={how} timeout 60 ./damaged sum >said 2>told || code=$?
                    ! grep -q panicked told || {{ cat told; exit 1; }}
                    if [ $code = 7 ]; then cmp said sum; exit; fi
                    test $code != 124; test ! -s said; test -s told"#
                ));
            }
        }
        ground.script(
            r#"for i in $(seq 300); do
                grep -q " $WEALD_RUNTIME_DIR/apps/" /proc/self/mountinfo ||
                    test -n "$(ls -A home/.cache/weald-apps)" || exit 0
                sleep 0.05
            done; ls -A home/.cache/weald-apps; exit 1"#,
        );
    }
}

/// Would catch: an image that is not found behind what stands before it, a self-mounting image that
/// Weald's own commands or the tools of AppImage do not know.
#[test]
fn the_image_behind_the_program_is_one() {
    grounds(
        r#"
        $0 build -q tree image; pack tree app
        offset=$(./app --appimage-offset); test $((offset % 4096)) = 0
        tail -c +$((offset + 1)) app | cmp - image
        test "$(od -An -c -j8 -N3 app | tr -d ' ')" = 'AI002'
        $0 check -q --offset auto app; $0 diff --offset auto app tree
        if [ "$runtime" = "$weald" ]; then WEALD_AS_ITSELF=1 ./app diff --offset $offset app tree
        else
            fails env WEALD_AS_ITSELF=1 ./app ls app 2>told; grep -q 'no image is behind' told
            "$runtime" --version | grep -q '^weald-runtime [0-9]'; "$runtime" --help | grep -q weald
            fails "$runtime" ls image 2>told; grep -q 'weald build --self-mounting' told
        fi
        ./app --appimage-extract; $0 diff --offset auto app squashfs-root; rm -rf squashfs-root
        ./app --appimage-extract data; test "$(find squashfs-root -type f)" = squashfs-root/data
        ./app --appimage-version | grep -q '^weald '; ./app --appimage-help | grep -q -- -extract
        ./app --appimage-mount >said & while [ ! -s said ]; do sleep 0.02; done
        $0 diff "$(cat said)" tree; kill -INT $!; wait $!; gone
        # One program carries another, and is no part of it.
        ./app --appimage-offset >first
        if [ "$runtime" = "$weald" ]; then
            WEALD_AS_ITSELF=1 ./app build -q --self-mounting --runtime ./app tree app2
        else $0 build -q --self-mounting --runtime ./app tree app2; fi
        ./app2 --appimage-offset | cmp - first; cmp app app2
        # Any bytes may stand before an image.
        head -c 12345 /dev/urandom >front; $0 build -q --header front tree behind
        head -c 12345 behind | cmp - front; tail -c +12346 behind | cmp - image
        $0 check -q --offset auto behind; test ! -x behind
        $0 build -q --header front --parity 5% tree - 2>told && exit 1 || true
        tar -C tree -c . | $0 build -q --header front - streamed; $0 check -q --offset auto streamed
        tar -C tree -c . | pack - app3
        ./app3 show x >/dev/null || test $? = 7; gone
        fails pack --run bin tree x 2>told; grep -q 'it is no program' told
        fails pack --run gone tree x 2>told; grep -q 'No such file' told
        fails $0 build --self-mounting --runtime /etc/passwd tree x 2>told
        grep -q 'no 64-bit ELF' told
        test ! -e x"#,
    );
}

/// Would catch: an installed runtime that is not used, or one that nobody is told of.
#[test]
fn the_installed_runtime_stands_before_the_image() {
    let ground = Ground::new();
    ground.script(&format!(
        r#"weald=$0 runtime='{}'{PREPARE}
        mkdir -p prefix/bin prefix/libexec/weald; cp "$weald" prefix/bin/weald
        weald=$PWD/prefix/bin/weald
        "$weald" build --self-mounting tree whole >report 2>told
        grep -q '^weald: before the image: this program, ' told
        cp "$runtime" prefix/libexec/weald/weald-runtime
        "$weald" build --self-mounting tree small >report 2>told
        grep -qE '^weald: before the image: .*/weald-runtime, [0-9]+ bytes$' told
        "$weald" build -q --self-mounting tree again 2>told; test ! -s told; cmp small again
        pack tree app; cmp small app; fails cmp -s whole small
        ./small show x >said || test $? = 7; grep -q 'some data' said; gone"#,
        runtime_bin()
    ));
}
