//! The largest thing and the next larger one of each limit, through every door into an image or
//! a volume: each takes the first, and refuses the second or leaves it out by name. A seal and a
//! dump have the first whole.

#[path = "../../../image/tests/support/mod.rs"]
mod forged;

use super::*;
use forged::Parts;
use weald_format::limits::{
    DEPTH_MAX, FILE_LEN_MAX, NAME_LEN_MAX, NUMBER_MAX, PATH_LEN_MAX, TARGET_LEN_MAX,
    XATTR_NAME_LEN_MAX, XATTR_SET_LEN_MAX, XATTR_VALUE_LEN_MAX,
};

/// A tar stream, byte for byte.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn header(&mut self, name: &str, kind: u8, len: usize) {
        let mut block = [0; 512];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[100..107].copy_from_slice(b"0000644");
        block[108..115].copy_from_slice(b"0000000");
        block[116..123].copy_from_slice(b"0000000");
        block[124..135].copy_from_slice(format!("{len:011o}").as_bytes());
        block[136..147].copy_from_slice(b"00000000000");
        block[148..156].fill(b' ');
        block[156] = kind;
        block[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.0.extend(block);
    }

    fn data(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    /// A member with extended headers.
    fn member(&mut self, kind: u8, records: &[(Vec<u8>, Vec<u8>)]) {
        let mut pax = Vec::new();
        for (key, value) in records {
            let rest = 3 + key.len() + value.len();
            let mut len = rest + 1;
            while len != rest + len.to_string().len() {
                len += 1;
            }
            pax.extend(format!("{len} ").into_bytes());
            pax.extend([&key[..], b"=", value, b"\n"].concat());
        }
        self.header("pax", b'x', pax.len());
        self.data(&pax);
        self.header("f", kind, 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// One file of each door, with a field at its limit or beyond.
#[derive(Clone, Default)]
struct File1 {
    name: Vec<u8>,
    target: Vec<u8>,
    len: u64,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

fn named(name: Vec<u8>) -> File1 {
    File1 {
        name,
        ..File1::default()
    }
}

/// Attributes of exactly `len` bytes, as the format counts them, in values that Linux takes.
fn xattrs(len: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    /// Bytes of a name, and of what counts besides name and value.
    const BESIDE_LEN: usize = 9 + 4;
    let mut rest = len - 1;
    let mut all = Vec::new();
    while rest > 0 {
        // None may be too short for its name.
        let value_len = match rest - BESIDE_LEN {
            rest if rest <= XATTR_VALUE_LEN_MAX => rest,
            rest => XATTR_VALUE_LEN_MAX.min(rest - BESIDE_LEN),
        };
        all.push((
            format!("user.v{:03}", all.len()).into_bytes(),
            vec![b'v'; value_len],
        ));
        rest -= BESIDE_LEN + value_len;
    }
    all
}

fn tar(file: &File1) -> Vec<u8> {
    let mut records = vec![(b"path".to_vec(), file.name.clone())];
    for (name, value) in &file.xattrs {
        records.push(([b"SCHILY.xattr.", &name[..]].concat(), value.clone()));
    }
    let mut kind = b'0';
    if !file.target.is_empty() {
        kind = b'2';
        records.push((b"linkpath".to_vec(), file.target.clone()));
    }
    if file.len > 0 {
        for (key, value) in [
            ("major", "0"),
            ("minor", "1"),
            ("size", &*file.len.to_string()),
        ] {
            records.push((format!("GNU.sparse.{key}").into(), value.into()));
        }
        records.push((b"GNU.sparse.numblocks".to_vec(), b"0".to_vec()));
        records.push((b"GNU.sparse.map".to_vec(), Vec::new()));
    }
    let mut tar = Tar::default();
    tar.member(kind, &records);
    tar.end()
}

/// The same file as a line of mtree; `None` for what mtree cannot say.
fn mtree(file: &File1) -> Option<Vec<u8>> {
    if !file.xattrs.is_empty() || file.len > 0 {
        return None;
    }
    // A name without a slash lies in the directory of the line before, which is the root.
    let name = [b"./", &file.name[..]].concat();
    let line: Vec<u8> = if file.target.is_empty() {
        [&name, &b" type=file size=0 mode=0644\n"[..]].concat()
    } else {
        [
            &name,
            &b" type=link mode=0777 link="[..],
            &file.target,
            b"\n",
        ]
        .concat()
    };
    Some([b"#mtree\n. type=dir mode=0755\n", &line[..]].concat())
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect()
}

fn dump(file: &File1) -> Vec<u8> {
    let or_dash = |text: String| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text
        }
    };
    let (mode, len) = if file.target.is_empty() {
        ("100644", file.len)
    } else {
        ("120777", file.target.len() as u64)
    };
    let mut line = format!(
        "/{} {len} {mode} 1 0 0 0 0.0 {} - -",
        String::from_utf8_lossy(&file.name),
        or_dash(escaped(&file.target))
    );
    for (name, value) in &file.xattrs {
        line += &format!(" {}={}", escaped(name), escaped(value));
    }
    format!("/ 0 40755 2 0 0 0 0.0 - - -\n{line}\n").into_bytes()
}

/// Sends one file through the doors for streams: each takes it, or refuses it.
fn streams(ground: &Ground, what: &str, file: &File1, is_taken: bool) {
    fs::write(ground.at("f.tar"), tar(file)).expect("write");
    fs::write(ground.at("f.dump"), dump(file)).expect("write");
    ground.sh("mkdir -p objects");
    let mut doors: Vec<&[&str]> = vec![
        &["build", "-q", "-f", "f.tar", "--from", "tar", "i.weald"],
        &[
            "import",
            "composefs",
            "-q",
            "-f",
            "--from-dump",
            "f.dump",
            "--objects",
            "objects",
            "i.weald",
        ],
        &["import", "oci", "-q", "-f", "layout:v", "i.weald"],
    ];
    if let Some(lines) = mtree(file) {
        fs::write(ground.at("f.mtree"), lines).expect("write");
        doors.push(&["build", "-q", "-f", "f.mtree", "--from", "mtree", "i.weald"]);
    }
    for door in doors {
        if door[1] == "oci" {
            ground.sh(OCI_OF_TAR);
        }
        ground.sh("rm -f i.weald");
        let done = ground.0.weald(door);
        let shown = format!("{what}, {}: {}", door[..2].join(" "), done.stderr);
        if is_taken {
            assert_eq!(done.code, Some(0), "{shown}");
            ground.weald(&["check", "i.weald"]);
            if door[1] == "composefs" {
                // What was exported is taken again.
                ground.sh("$WEALD export dump i.weald > back.dump
                     $WEALD import composefs -qf --from-dump back.dump --objects objects b.weald
                     $WEALD diff i.weald b.weald");
            }
            if file.len <= 1 << 50 {
                let made = ["volume", "create", "-q", "store:w", "--from", "i.weald"];
                assert_eq!(ground.0.weald(made).code, Some(0), "{shown}");
                ground.weald(&["volume", "seal", "-q", "store:w", "--image", "w.weald"]);
                ground.weald(&["check", "w.weald"]);
                ground.weald(&["diff", "i.weald", "w.weald"]);
                ground.sh("rm w.weald; $WEALD volume rm store:w");
            }
        } else {
            assert_eq!(done.code, Some(2), "{shown}");
            assert_eq!(done.stderr.lines().count(), 1, "{shown}");
            assert!(!ground.at("i.weald").exists(), "{shown}");
        }
    }
}

/// A layout with the tar stream `f.tar` as its only layer.
const OCI_OF_TAR: &str = r#"
    rm -rf layout; mkdir -p layout/blobs/sha256; cd layout
    put() { d=sha256:$(sha256sum "$1" | cut -d' ' -f1); cp "$1" blobs/${d/://}; }
    refer() { echo "{\"mediaType\":\"$m.$2\",\"digest\":\"$d\",\"size\":$(stat -c %s "$1")${3-}}"; }
    m=application/vnd.oci.image
    put ../f.tar; layer=$(refer ../f.tar layer.v1.tar)
    echo "{\"architecture\":\"amd64\",\"os\":\"linux\",
        \"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"$d\"]}}" > c
    put c; config=$(refer c config.v1+json)
    echo "{\"schemaVersion\":2,\"mediaType\":\"$m.manifest.v1+json\",\"config\":$config,
        \"layers\":[$layer]}" > n
    put n; name=',"annotations":{"org.opencontainers.image.ref.name":"v"}'
    echo "{\"schemaVersion\":2,\"manifests\":[$(refer n manifest.v1+json "$name")]}" > index.json
    echo '{"imageLayoutVersion":"1.0.0"}' > oci-layout; rm c n"#;

/// Would catch: a limit that one writer knows and another does not.
#[test]
fn streams_take_what_an_image_holds_and_no_more() {
    let ground = Ground::new();
    let name = |len| named(vec![b'n'; len]);
    let target = |len| File1 {
        target: vec![b't'; len],
        ..named(b"link".to_vec())
    };
    let path = |len: usize| {
        // Names of 127 bytes and a slash.
        let mut path = [vec![b'p'; 127], b"/".to_vec()].concat().repeat(len / 128);
        path.resize(len, b'e');
        if path.last() == Some(&b'/') {
            path.pop();
            path.push(b'e');
        }
        named(path)
    };
    // As deep as a path can be: every second byte is a slash.
    let depth = |len: usize| named(b"d/".repeat(len / 2).into_iter().chain([b'e']).collect());
    let set = |len| File1 {
        xattrs: xattrs(len),
        ..named(b"set".to_vec())
    };
    let xattr_name = |len: usize| File1 {
        xattrs: vec![([b"user.", &vec![b'x'; len - 5][..]].concat(), b"v".to_vec())],
        ..named(b"xattr".to_vec())
    };
    for (what, taken, refused) in [
        ("name", name(NAME_LEN_MAX), name(NAME_LEN_MAX + 1)),
        ("path", path(PATH_LEN_MAX - 2), path(PATH_LEN_MAX + 1)),
        ("depth", depth(PATH_LEN_MAX - 4), depth(PATH_LEN_MAX)),
        ("target", target(TARGET_LEN_MAX), target(TARGET_LEN_MAX + 1)),
        (
            "xattr set",
            set(XATTR_SET_LEN_MAX),
            set(XATTR_SET_LEN_MAX + 1),
        ),
        (
            "xattr name",
            xattr_name(XATTR_NAME_LEN_MAX),
            xattr_name(XATTR_NAME_LEN_MAX + 1),
        ),
    ] {
        streams(&ground, what, &taken, true);
        streams(&ground, what, &refused, false);
    }
    // Many small attributes: each counts with four bytes more than its name and value.
    let small = |count: usize| {
        let all = (0..count).map(|no| (format!("user.{no:06}").into_bytes(), Vec::new()));
        File1 {
            xattrs: all.collect(),
            ..named(b"small".to_vec())
        }
    };
    let count = (XATTR_SET_LEN_MAX - 1) / 15;
    streams(&ground, "small xattrs", &small(count), true);
    streams(&ground, "small xattrs", &small(count + 1), false);
}

/// Would catch: a length of files, or of all together, that only some writers refuse.
#[test]
fn lengths_of_files_have_one_limit() {
    let ground = Ground::new();
    for (len, is_taken) in [(FILE_LEN_MAX, true), (FILE_LEN_MAX + 1, false)] {
        let file = File1 {
            len,
            ..named(b"long".to_vec())
        };
        fs::write(ground.at("f.tar"), tar(&file)).expect("write");
        let built = ground
            .0
            .weald(["build", "-q", "-f", "f.tar", "--from", "tar", "i.weald"]);
        assert_eq!(
            built.code,
            Some(if is_taken { 0 } else { 2 }),
            "{len}: {}",
            built.stderr
        );
        // tmpfs has files of any length.
        ground.sh("mkdir -p tmp && mount -t tmpfs none tmp && echo other > tmp/other");
        File::create(ground.at("tmp/long"))
            .and_then(|file| file.set_len(len))
            .expect("tmpfs");
        let built = ground.0.weald(["build", "-q", "-f", "tmp", "i.weald"]);
        ground.sh("umount tmp");
        if is_taken {
            built.expect(0)
        } else {
            let built = built.expect(1);
            assert!(
                built.stderr.starts_with("weald: long: left out"),
                "{}",
                built.stderr
            );
            built
        };
        ground.weald(&["check", "i.weald"]);
        assert_eq!(ground.weald(&["cat", "i.weald", "other"]), "other\n");
    }
}

/// Would catch: files that no image holds together, and an error that names none of them.
#[test]
fn files_that_are_too_long_together_are_named() {
    let ground = Ground::new();
    ground.sh("mkdir -p tmp && mount -t tmpfs none tmp && mkdir tmp/d && echo other > tmp/other");
    // Together one byte more than an image holds.
    let count = NUMBER_MAX / FILE_LEN_MAX;
    for no in 0..count {
        let file = File::create(ground.at(&format!("tmp/d/{no}"))).expect("tmpfs");
        file.set_len(FILE_LEN_MAX - no).expect("tmpfs");
    }
    let rest = File::create(ground.at("tmp/d/rest")).expect("tmpfs");
    let rest_len = (0..count).sum::<u64>();
    let other_len = "other\n".len() as u64;
    rest.set_len(rest_len - other_len).expect("tmpfs");
    ground.weald(&["build", "-q", "tmp", "i.weald"]);
    ground.weald(&["check", "i.weald"]);
    rest.set_len(rest_len - other_len + 1).expect("tmpfs");
    let longest = format!("{FILE_LEN_MAX} bytes, is d/0");
    ground.refused(&["build", "tmp", "more.weald"], &["2^62", &longest]);
    assert!(!ground.at("more.weald").exists());
    drop(rest);
    ground.sh("umount tmp");
}

/// Directories below `dir`, one in the other; returns the innermost.
fn nest(dir: &Path, count: usize) -> std::os::fd::OwnedFd {
    let mut at = weald_sys::open_dir(dir).expect("open");
    for _ in 0..count {
        weald_sys::make_dir_at(&at, b"d", 0o755).expect("mkdir");
        at = weald_sys::open_place_at(&at, b"d").expect("open");
    }
    at
}

/// Would catch: a depth that one writer takes and no reader does.
#[test]
fn the_deepest_tree_goes_through_every_door() {
    let ground = Ground::new();
    let dir = ground.mount(&[]);
    // The root is a level, and so is the template that holds it.
    let inmost = nest(&dir, DEPTH_MAX - 2);
    let taken = |image: &str| {
        ground.weald(&["check", image]);
        let info = ground.weald(&["info", "--json", image]);
        let info: Value = serde_json::from_str(&info).expect("JSON");
        assert_eq!(info["name_count"], DEPTH_MAX as u64 - 1, "{info}");
    };
    ground.weald(&["build", "-q", "mnt", "built.weald"]);
    taken("built.weald");
    ground.weald(&["volume", "seal", "-q", VOLUME, "--image", "sealed.weald"]);
    taken("sealed.weald");
    ground.weald(&["volume", "seal", "-q", VOLUME, "--name", "i"]);
    taken("store:i");
    ground.sh("$WEALD tar sealed.weald | wc -c > len; test $(cat len) -gt 65534");
    weald_sys::make_dir_at(&inmost, b"d", 0o755).expect("mkdir");
    drop(inmost);
    let levels = format!("fewer than {DEPTH_MAX} levels");
    ground.refused(&["build", "-q", "mnt", "more.weald"], &[&levels]);
    let sealed = ["volume", "seal", "-q", VOLUME, "--image", "more.weald"];
    let sealed = ground.0.weald(sealed).expect(1);
    let what = format!("nested deeper than {} levels", DEPTH_MAX - 1);
    assert_eq!(sealed.stderr.lines().count(), 1);
    assert!(sealed.stderr.starts_with("weald: d/d/d") && sealed.stderr.contains(&what));
    taken("more.weald");
    ground.umount();
    ground.weald(&["volume", "create", "-q", "store:w", "--from", "more.weald"]);
    ground.weald(&["volume", "check", "store:w"]);
    ground.assert_clean();
}

/// Would catch: a dump that no import takes.
#[test]
fn a_dump_refuses_a_path_that_no_import_takes() {
    let ground = Ground::new();
    ground.sh(r#"python3 -c '
import os
os.mkdir("deep")
os.chdir("deep")
for level in range(8200):
    os.mkdir("d")
    os.chdir("d")
'; $WEALD build -q -l0 deep d.weald; rm -rf deep"#);
    ground.refused(&["export", "dump", "d.weald"], &["d/d/d", "16384"]);
}

/// Would catch: what a volume takes and no image holds.
#[test]
fn a_volume_refuses_what_no_image_holds() {
    let ground = Ground::new();
    let dir = ground.mount(&[]);
    let big_file = || ErrnoOf(27);
    let no_space = || ErrnoOf(28);
    let too_long = || ErrnoOf(36);
    // Each way to a longer file.
    let file = File::create(dir.join("f")).expect("made");
    file.set_len(FILE_LEN_MAX).expect("the longest file");
    big_file().check(file.set_len(FILE_LEN_MAX + 1));
    file.write_all_at(b"e", FILE_LEN_MAX - 1)
        .expect("the last byte");
    big_file().check(file.write_all_at(b"e", FILE_LEN_MAX));
    let copy = format!("copy_range -s 0 -d {FILE_LEN_MAX} -l 4096 g");
    ground.sh(&format!(
        "cd mnt; head -c 8192 f > g; xfs_io -c '{copy}' f > ../log 2>&1 || true
         grep -q 'too large' ../log"
    ));
    // Attributes up to the limit, and one byte more.
    let set = |xattrs: &[(Vec<u8>, Vec<u8>)]| {
        for (name, value) in xattrs {
            let name = OsStr::from_bytes(name);
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(dir.join("f"), name, value, flags)?;
        }
        Ok::<(), rustix::io::Errno>(())
    };
    let mut all = xattrs(XATTR_SET_LEN_MAX);
    set(&all).expect("the longest set");
    all.last_mut().expect("a last one").1.push(b'+');
    no_space().check(set(&all[all.len() - 1..]).map_err(std::io::Error::from));
    no_space().check(set(&[(b"user.more".to_vec(), Vec::new())]).map_err(std::io::Error::from));
    set(&xattrs(XATTR_SET_LEN_MAX)[1..2]).expect("a value that stays as long");
    // Room that a removal makes counts, and so does the set after the volume was opened again.
    let removed = rustix::fs::removexattr(dir.join("f"), "user.v001");
    removed.expect("an attribute");
    set(&xattrs(XATTR_SET_LEN_MAX)[1..2]).expect("the room of the removed one");
    drop(file);
    ground.umount();
    ground.mount(&[]);
    no_space().check(set(&[(b"user.more".to_vec(), Vec::new())]).map_err(std::io::Error::from));
    // Names and targets.
    let name = |len| dir.join("n".repeat(len));
    fs::create_dir(name(NAME_LEN_MAX)).expect("the longest name");
    too_long().check(fs::create_dir(name(NAME_LEN_MAX + 1)));
    too_long().check(fs::rename(dir.join("g"), name(NAME_LEN_MAX + 1)));
    too_long().check(fs::hard_link(dir.join("g"), name(NAME_LEN_MAX + 1)));
    let link = |len: usize, name: &str| std::os::unix::fs::symlink("t".repeat(len), dir.join(name));
    link(TARGET_LEN_MAX, "link").expect("the longest target");
    too_long().check(link(TARGET_LEN_MAX + 1, "link2"));
    // All of it is in a seal.
    ground.weald(&["volume", "seal", "-q", VOLUME, "--image", "i.weald"]);
    ground.weald(&["check", "i.weald"]);
    ground.weald(&["volume", "seal", "-q", VOLUME, "--name", "i"]);
    ground.weald(&["check", "store:i"]);
    let stat = ground.weald(&["stat", "--json", "i.weald", "f"]);
    assert!(stat.contains(&FILE_LEN_MAX.to_string()), "{stat}");
    // Together, files of a volume may have more than an image holds: the longest are left out.
    for no in 0..NUMBER_MAX / FILE_LEN_MAX {
        let more = File::create(dir.join(format!("more{no}"))).expect("made");
        more.set_len(FILE_LEN_MAX - (1 << 20) - no).expect("long");
    }
    let sealed = ["volume", "seal", "-qf", VOLUME, "--image", "i.weald"];
    let sealed = ground.0.weald(sealed).expect(1);
    assert_eq!(sealed.stderr.lines().count(), 1, "{}", sealed.stderr);
    assert!(
        sealed.stderr.starts_with("weald: f: left out"),
        "{}",
        sealed.stderr
    );
    ground.weald(&["check", "i.weald"]);
    ground.umount();
    ground.assert_clean();
}

struct ErrnoOf(i32);

impl ErrnoOf {
    #[track_caller]
    fn check<T>(&self, done: std::io::Result<T>) {
        let errno = done.err().and_then(|error| error.raw_os_error());
        assert_eq!(errno, Some(self.0));
    }
}

/// Would catch: an image of another writer, or of an older one, that a store takes although no
/// reader can list it; all its digests are right.
#[test]
fn an_import_refuses_an_image_beyond_the_limits() {
    let ground = Ground::new();
    let mut parts = Parts::base();
    fs::write(ground.at("whole.weald"), parts.bytes()).expect("write");
    parts.xattrs[0][0].value = vec![b'v'; XATTR_SET_LEN_MAX];
    fs::write(ground.at("long.weald"), parts.bytes()).expect("write");
    ground.weald(&["store", "import", "-q", "store", "whole.weald"]);
    ground.refused(
        &["store", "import", "store", "long.weald"],
        &["long.weald", "damaged"],
    );
    ground.mount(&[]);
    ground.refused(
        &["store", "import", "store", "long.weald"],
        &["long.weald", "damaged"],
    );
    ground.umount();
    assert_eq!(ground.sh("ls store/images"), "whole\n");
}
