//! Composefs images and dumps through the command, there and back.
use crate::support::Bench;
use std::fs;
use std::os::unix::fs::symlink;
use weald_testkit::torture;

/// An image of every kind of file, its composefs image, objects and dump.
fn exported() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.at("tree")).expect("mkdir");
    let options = torture::Options {
        seed: 3,
        big: false,
    };
    torture::make(&bench.at("tree"), &options).expect("tree");
    // A composefs image holds files of 4 PiB; some of these are longer.
    fs::remove_dir_all(bench.at("tree/huge")).expect("rm");
    bench.sh(
        "mknod tree/gone c 0 0; mkdir tree/{opaque,dir}; mknod tree/dir/ab c 0 0
         setfattr -n trusted.overlay.opaque -v y tree/opaque
         setfattr -n trusted.overlay.overlay.deep -v z tree/gone
         mknod tree/ff c 0 0; echo x > tree/00; head -c 65 /dev/zero > tree/65; ln tree/65 tree/66
         truncate -s 1G tree/hole; truncate -s 200 tree/short; head -c 200 /dev/zero > tree/zeros
         $WEALD build -q tree tree.weald
         $WEALD export composefs -q tree.weald --image tree.cfs --objects objects
         $WEALD export dump tree.weald > tree.dump",
    );
    bench
}

/// Would catch: anything that an import loses or changes: names, attributes, xattrs that composefs
/// escaped, whiteouts, links, holes, data, in images of both formats and in dumps.
#[test]
fn an_export_is_imported_and_exported_again() {
    let bench = exported();
    for format in ["0", "1"] {
        bench.sh(&format!(
            "$WEALD export composefs -qf --format {format} tree.weald --image {format}.cfs
             fsck.erofs {format}.cfs
             $WEALD import composefs -qf --image {format}.cfs --objects objects again.weald
             $WEALD diff tree.weald again.weald
             $WEALD export composefs -qf --format {format} again.weald --image again.cfs
             cmp {format}.cfs again.cfs"
        ));
    }
    bench.sh("! cmp -s 0.cfs 1.cfs || exit 1
         $WEALD export dump again.weald | cmp - tree.dump
         $WEALD import composefs -q --from-dump tree.dump --objects objects dumped.weald
         $WEALD diff tree.weald dumped.weald
         zstd -qc tree.dump | $WEALD import composefs -qf --from-dump - --objects objects d.weald
         $WEALD export dump d.weald -m 32M | cmp - tree.dump");
    // The same objects serve a second image: none is new.
    let line = bench.weald([
        "export",
        "composefs",
        "--json",
        "-f",
        "d.weald",
        "--image",
        "d.cfs",
        "--objects",
        "objects",
    ]);
    let summary = &line.expect(0, "").json()[0];
    assert_eq!(summary["new_object_count"], 0);
    assert_eq!(
        summary["fsverity_digest"],
        bench
            .sh("mkdir one; cp d.cfs one; $WEALD build -q one cfs.weald
                  $WEALD sum --fsverity cfs.weald | cut -c8-71")
            .trim()
    );
}

/// Root of a dump.
const ROOT_LINE: &str = "/ 0 40755 2 0 0 0 1.0 - - -";

/// An object of the exported tree.
struct Object {
    /// Path below the directory of objects.
    name: String,
    len: u64,
}

impl Object {
    fn first_of(bench: &Bench) -> Self {
        let name = bench.sh("cd objects; ls -d ??/* | sed -n 1p");
        let name = name.trim().to_owned();
        let metadata = fs::metadata(bench.at("objects").join(&name));
        let len = metadata.expect("object").len();
        Self { name, len }
    }

    /// A dump with one file of the length of this object, whose bytes are at `path`.
    fn dump(&self, path: &str, digest: &str) -> String {
        let len = self.len;
        format!("{ROOT_LINE}\n/f {len} 100644 1 0 0 0 1.0 {path} - {digest}\n")
    }
}

/// Would catch: a file that passes for another, a path that leads out of the directory of objects,
/// and an import that leaves a file behind.
#[test]
fn bad_dumps_are_refused() {
    let bench = exported();
    let root = ROOT_LINE;
    let object = Object::first_of(&bench);
    let Object { name, len } = &object;
    let digest = name.replace('/', "");
    let file = |path: &str, digest: &str| object.dump(path, digest);
    let other = "0".repeat(64);
    let cases = [
        (String::new(), "dump: the dump is empty"),
        (
            format!("{root}\n/a\\q 0 100644 1 0 0 0 0.0 - - -\n"),
            "dump, line 2: path: unknown escape",
        ),
        (
            format!("{root}\n\n/a 0 10x644 1 0 0 0 0.0 - - -"),
            "dump, line 3: mode: expected an octal",
        ),
        (
            "/a 0 100644 1 0 0 0 0.0 - - -\n".to_owned(),
            "line 1: the first entry of a dump is the root",
        ),
        (format!("{root}\n/g 0 @120000 - - - - 0.0 /no - -\n"), "no"),
        (file("../tree.dump", "-"), "line 2: payload: the path has"),
        (
            file("aa/none", "-"),
            "line 2: its object objects/aa/none is missing",
        ),
        (
            file(name, &other),
            "has other bytes than its fs-verity digest says",
        ),
        (file("link", "-"), "its object objects/link is a symlink"),
        (
            file(&format!("{}/", &name[..2]), "-"),
            "line 2: payload: the path has",
        ),
        (file(&name[..2], "-"), "is no regular file"),
        (
            file(name, &digest).replace(&format!("/f {len}"), "/f 7777777"),
            "instead of 7777777",
        ),
    ];
    symlink("../tree.dump", bench.at("objects/link")).expect("symlink");
    for (text, reason) in cases {
        fs::write(bench.at("dump"), &text).expect("write");
        let args = [
            "import",
            "composefs",
            "--from-dump",
            "dump",
            "--objects",
            "objects",
            "new.weald",
        ];
        let output = bench.weald(args);
        assert_eq!(output.code, Some(2), "{text}");
        assert!(output.stderr.contains(reason), "{text}\n{}", output.stderr);
        assert!(!bench.at("new.weald").exists());
    }
}

/// Would catch: a message that does not say what to do, and an import or export that uses a damaged
/// or foreign object, or leaves a file behind.
#[test]
fn bad_objects_are_refused() {
    let bench = exported();
    let object = Object::first_of(&bench);
    let name = &object.name;
    let digest = name.replace('/', "");
    fs::write(bench.at("dump"), object.dump(name, &digest)).expect("write");
    let output = bench.weald(["import", "composefs", "--from-dump", "dump", "new.weald"]);
    assert!(
        output.stderr.contains("--objects names the directory"),
        "{}",
        output.stderr
    );
    let output = bench.weald(["import", "composefs", "--image", "tree.weald", "new.weald"]);
    assert!(output.stderr.contains("EROFS"), "{}", output.stderr);
    bench.sh(&format!(
        "printf x | dd of=objects/{name} conv=notrunc status=none"
    ));
    let args = [
        "import",
        "composefs",
        "--image",
        "tree.cfs",
        "--objects",
        "objects",
        "new.weald",
    ];
    let output = bench.weald(args);
    assert!(
        output.stderr.contains("the object is damaged"),
        "{}",
        output.stderr
    );
    let export_into = |objects: &str| {
        let args = ["export", "composefs", "tree.weald", "--image", "new.cfs"];
        bench.weald(args.into_iter().chain(["--objects", objects]))
    };
    bench.sh(&format!("printf x >> objects/{name}"));
    let output = export_into("objects");
    assert!(
        output.stderr.contains("the object is damaged; remove it"),
        "{}",
        output.stderr
    );
    bench.sh(&format!(
        "mkdir -p sha512/00; touch sha512/00/{}",
        "0".repeat(126)
    ));
    let output = export_into("sha512");
    assert!(
        output.stderr.contains("named by SHA-512"),
        "{}",
        output.stderr
    );
    assert!(!bench.at("new.weald").exists() && !bench.at("new.cfs").exists());
}

/// Would catch: protection that is demanded and not given, and not reported.
#[test]
fn protection_that_is_demanded_is_given_or_refused() {
    let bench = Bench::with_image();
    let args = |verity| {
        [
            "export",
            "composefs",
            "image",
            "--image",
            "cfs",
            "--objects",
            "objects",
            "-f",
            "--verity",
            verity,
        ]
    };
    for verity in ["off", "try"] {
        bench.weald(args(verity)).expect(0, "");
    }
    bench.sh("head -c 70000 /dev/urandom > source/new; $WEALD build -qf source image");
    let output = bench.weald(args("require"));
    match output.code {
        Some(0) => assert!(
            output.text().contains(", protected by fs-verity"),
            "{}",
            output.text()
        ),
        _ => assert!(
            output.stderr.contains("has no fs-verity: use ext4"),
            "{}",
            output.stderr
        ),
    }
}
