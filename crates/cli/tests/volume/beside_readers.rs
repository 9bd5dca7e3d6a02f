//! Writers beside commands that read snapshots, and what these read meanwhile.

use super::*;
use std::io::Read;
use std::process::{Child, ChildStdout, Stdio};

/// A command whose pipe is full, so that it is in the midst of reading until somebody takes the
/// rest.
struct Reader {
    child: Child,
    pipe: ChildStdout,
    read: Vec<u8>,
}

impl Reader {
    fn start(ground: &Ground, args: &[&str]) -> Self {
        let mut command = ground.0.command();
        let mut child = command
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("weald");
        let mut pipe = child.stdout.take().expect("a pipe");
        let mut read = vec![0; 1000];
        pipe.read_exact(&mut read).expect("read");
        Self { child, pipe, read }
    }

    fn finish(mut self) -> Vec<u8> {
        self.pipe.read_to_end(&mut self.read).expect("read");
        assert!(self.child.wait().expect("wait").success());
        self.read
    }
}

/// Would catch: a writer, a mount or a collection that fails or waits because a command reads a
/// snapshot; a snapshot that is removed below its reader; bytes of it that are other ones after its
/// blocks have moved.
#[test]
fn writers_go_on_beside_a_reader_of_a_snapshot() {
    let ground = Ground::new();
    ground.mount(&[]);
    // Blocks between blocks that go, so that those of the snapshot move.
    ground.sh("for i in $(seq 40); do head -c 300000 /dev/urandom > mnt/$i
        head -c 300000 /dev/urandom > mnt/gone$i; done; sync mnt
        mkdir kept; cp mnt/? mnt/?? kept; rm mnt/gone*; sync mnt
        for name in s0 s1 s2; do $WEALD snapshot create -q store:v@$name; done");
    ground.umount();
    let files: Vec<String> = (1..=40).map(|number| number.to_string()).collect();
    let mut args = vec!["cat", "store:v@s1"];
    args.extend(files.iter().map(String::as_str));
    let reader = Reader::start(&ground, &args);
    // Each fails beside a command that keeps the store.
    ground.sh("$WEALD volume create -q store:w; $WEALD volume ls store | grep -q w");
    ground.refused(&["snapshot", "rm", "store:v@s1"], &["@s1", "being read"]);
    ground.sh("$WEALD snapshot ls store:v | grep -q s1");
    let prune = || ground.weald(&["snapshot", "prune", "--keep-last", "1", "store:v"]);
    let stays = "store:v@s1: stays: is being read\n";
    assert_eq!(prune(), format!("store:v@s0: removed\n{stays}"));
    ground.sh("$WEALD store gc --copy-below 100 store");
    let dir = ground.mount(&[]);
    ground.refused(&["snapshot", "rm", "store:v@s1"], &["@s1", "being read"]);
    assert_eq!(prune(), stays);
    ground.sh("echo new > mnt/1; rm mnt/2; sync mnt; $WEALD store gc --copy-below 100 store");
    assert_eq!(fs::read(dir.join("1")).expect("read"), b"new\n");
    let kept = files.iter().map(|name| ground.at("kept").join(name));
    let kept: Vec<Vec<u8>> = kept.map(|path| fs::read(path).expect("read")).collect();
    assert!(reader.finish() == kept.concat(), "other bytes");
    ground.weald(&["snapshot", "rm", "-q", "store:v@s1"]);
    ground.umount();
    ground.sh("$WEALD store check --data store");
}

/// Would catch: a command that is shown a part of a snapshot and prints something else than of an
/// image of it, as a link count or the size of a directory.
#[test]
fn a_part_of_a_snapshot_is_read_like_an_image() {
    let ground = Ground::new();
    ground.sh(TREE);
    ground.mount(&[]);
    ground.sh(
        "rsync -aHAX --numeric-ids tree/ mnt/; ln -s etc mnt/way; ln -s /way/deep mnt/far
        mkdir -p mnt/a/b/c/d; seq 100 > mnt/a/b/c/d/e; ln mnt/a/b/c/d/e mnt/a/b/f; touch 'mnt/a/[x]'
        $WEALD snapshot create -q store:v@s1; rm -rf mnt/a; echo other > mnt/etc/main",
    );
    ground.umount();
    ground.weald(&["volume", "seal", "-q", "store:v@s1", "--image", "image"]);
    for command in [
        "stat SOURCE etc/twin a/b a/b/c/d/e noise way",
        "stat -L SOURCE way far",
        "stat SOURCE:/a b/f 'b/c/d/*'",
        "ls -l SOURCE",
        "ls -l SOURCE a a/b way",
        "ls SOURCE far a/../etc none",
        "ls -lR SOURCE:/a b",
        "ls -ld SOURCE a etc",
        "cat SOURCE way/twin a/b/f",
        "cat SOURCE 'a/b/f*' 'a/[x]'",
        "find SOURCE a --max-depth 2 --printf '%p %s %n\\n'",
        "find SOURCE:/a",
        "tree -L 2 SOURCE a",
        "sum SOURCE a etc/main",
        "tar SOURCE a/b 'e*/tw*' | tar tv",
        "tar SOURCE:/a | tar tv",
    ] {
        let of = |source: &str| {
            let script = command.replace("SOURCE", source);
            let ended = ground.run(&format!("$WEALD {script}"));
            // Numbers in the image that was made of the part.
            let text = ended.text();
            let lines = text.lines().filter(|line| !line.starts_with("  inode: "));
            (
                ended.code,
                lines.collect::<Vec<_>>().join("\n"),
                ended.stderr,
            )
        };
        let (wanted, found) = (of("image"), of("store:v@s1"));
        assert!(
            wanted.0 == Some(0) || command.contains("none"),
            "{command}: {}",
            wanted.2
        );
        assert_eq!(found, wanted, "{command}");
    }
    ground.sh("$WEALD extract -q store:v@s1 out a etc/main; $WEALD extract -q image in a etc/main");
    assert_same(&ground.at("in"), &ground.at("out"), &EXTRACTED);
}
