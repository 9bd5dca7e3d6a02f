//! Runs every command with names that contain terminal control characters: none of these may reach
//! a terminal unescaped.
use crate::support::{Bench, COMMANDS, Output, run, run_on_terminal};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::Command;
use weald_testkit::oci::LayoutDir;
use weald_vfs::is_unsafe;

/// An escape sequence, bidirectional controls, a C1 control in UTF-8 and as a single byte, a
/// newline, DEL, a byte order mark, and a byte that is not UTF-8.
const HOSTILE: &[u8] =
    b"e\x1b[31m\xe2\x80\xae\xd8\x9c\xc2\x9b2J\x9b\n\r\t\x7f\xef\xbb\xbf\xe2\x81\xa6\xe2\x80\xa8z\
\xff";

/// Replaces `@` in an argument by the hostile name, and `^` by `@`.
fn word(pattern: &str) -> OsString {
    let mut word = Vec::new();
    for byte in pattern.bytes() {
        match byte {
            b'@' => word.extend_from_slice(HOSTILE),
            b'^' => word.push(b'@'),
            other => word.push(other),
        }
    }
    OsString::from_vec(word)
}

/// Where a command may write raw names; the help describes these modes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Raw {
    Nothing,
    /// In standard output that is not a terminal: lists of names, as GNU ls, find and sha256sum do.
    InPipes,
    /// In any standard output: contents, streams, names that end in zero bytes.
    Always,
}

use Raw::{Always, InPipes, Nothing};

/// Test command lines of a command, in order.
fn runs(command: &str) -> Vec<(&'static str, Raw)> {
    let lines: &[(&str, Raw)] = match command {
        "build" => &[
            ("build -f @ i@", Nothing),
            ("build -q @ i@", Nothing),
            ("build --json -f @ i@", Nothing),
            ("build @gone x", Nothing),
            ("build --explain-filter @/@ --exclude @ @ x", Nothing),
            ("build --list -v --exclude @ @ x", InPipes),
            ("build --list --json -v --exclude @ @ x", Nothing),
            ("build --list --print0 @ x", Always),
            ("build -f --dereference @ x", Nothing),
            ("build -f --add mtree @ x", Nothing),
            ("build -f --add @gone @ x", Nothing),
            ("build --filter @ @ x", Nothing),
            ("build --script @.lua @ x", Nothing),
            ("build --script raise.lua @ x", Nothing),
            ("build --from listing listing x", Nothing),
            ("build --from tar absolute.tar x", Nothing),
            ("build --from tar odd.tar x", Nothing),
            ("build --from mtree mtree x", Nothing),
            ("build --base @ @ x", Nothing),
            ("build --codec @ @ x", Nothing),
            ("build -f --base i@ @ based", Nothing),
        ],
        "mount" => &[
            ("mount @gone mnt@", Nothing),
            ("mount i@ @gone", Nothing),
            ("mount -o fast@ i@ mnt@", Nothing),
            ("mount -o subdir=@gone i@ mnt@", Nothing),
            ("mount --isolated -o subdir=@gone i@ mnt@", Nothing),
            ("mount i@ mnt@", Nothing),
        ],
        "mounts" => &[
            ("mounts", Nothing),
            ("mounts --latency", Nothing),
            ("mounts --json", Nothing),
            ("mounts --prometheus", Nothing),
            ("mounts @", Nothing),
        ],
        "umount" => &[
            ("umount mnt@", Nothing),
            ("umount mnt@", Nothing),
            ("umount @gone", Nothing),
        ],
        "serve" => &[
            ("serve --cache @", Nothing),
            ("serve --log @gone/x --background", Nothing),
        ],
        "ls" => &[
            ("ls i@", InPipes),
            ("ls -l i@ @", InPipes),
            ("ls -R i@", InPipes),
            ("ls i@ / @", InPipes),
            ("ls -lR --json i@", Nothing),
            ("ls i@ @gone", InPipes),
            ("ls --@ i@", Nothing),
            ("ls --digest @ i@", Nothing),
        ],
        "tree" => &[("tree i@", Nothing), ("tree i@ @gone", Nothing)],
        "stat" => &[
            ("stat i@ @ @/@ @/link @gone", Nothing),
            ("stat --json i@ @ @/@ @/link @gone", Nothing),
        ],
        "cat" => &[("cat i@ @gone @", Nothing), ("cat i@ @/@", Always)],
        "find" => &[
            ("find i@", InPipes),
            ("find i@ --printf %p|%f|%h|%l\\n", InPipes),
            ("find i@ --json", Nothing),
            ("find i@ -0", Always),
            ("find i@ @gone", Nothing),
            ("find i@ --name [@", Nothing),
            ("find i@ --printf %@", Nothing),
        ],
        "extract" => &[
            ("extract i@ out@", Nothing),
            ("extract i@ out@", Nothing),
            ("extract i@ out2@ @gone", Nothing),
            ("extract @gone out3@", Nothing),
        ],
        "tar" => &[
            ("tar i@", Always),
            ("tar i@ @gone", Always),
            ("tar --format mtree i@", Nothing),
            ("tar --format listing i@", InPipes),
            ("tar @gone", Nothing),
        ],
        "sum" => &[
            ("sum i@", InPipes),
            ("sum --algorithm sha256 i@", InPipes),
            ("sum --algorithm sha512 i@", InPipes),
            ("sum --json i@", Nothing),
            ("sum i@ @gone", InPipes),
            ("sum i@ @/link", InPipes),
        ],
        "diff" => &[
            ("diff i@ other@", Nothing),
            ("diff --json i@ other@", Nothing),
            ("diff i@ @gone", Nothing),
            ("diff --ignore @ i@ other@", Nothing),
        ],
        "info" => &[
            ("info i@", Nothing),
            ("info based", Nothing),
            ("info --json based", Nothing),
            ("info @gone", Nothing),
        ],
        "check" => &[
            ("check i@ based", Nothing),
            ("check --json i@", Nothing),
            ("check @gone @", Nothing),
            ("check -v @gone", Nothing),
        ],
        "generations" => &[("generations i@", Nothing), ("generations @", Nothing)],
        "recover" => &[("recover -n i@", Nothing), ("recover @", Nothing)],
        "salvage" => &[
            ("salvage i@ sv@", Nothing),
            ("salvage --json i@ sv@", Nothing),
            ("salvage --image i@ svi@", Nothing),
            ("salvage @gone sv2@", Nothing),
            ("salvage @ sv2@", Nothing),
        ],
        "parity" => &[],
        "parity add" => &[
            ("parity add i@", Nothing),
            ("parity add i@", Nothing),
            ("parity add --json --parity p@.parity i@", Nothing),
            ("parity add --parity @gone/@ i@", Nothing),
            ("parity add @gone", Nothing),
            ("parity add @", Nothing),
        ],
        "parity verify" => &[
            ("parity verify i@", Nothing),
            ("parity verify --json i@", Nothing),
            ("parity verify --parity p@.parity @.lua", Nothing),
            ("parity verify --parity i@ i@", Nothing),
            ("parity verify @gone", Nothing),
        ],
        "parity repair" => &[
            ("parity repair i@", Nothing),
            ("parity repair --json i@", Nothing),
            ("parity repair @gone", Nothing),
        ],
        "publish" => &[
            ("publish i@ s3://@/x", Nothing),
            ("publish i@ s3://@/x:@", Nothing),
            ("publish @gone s3://b/x", Nothing),
            ("publish i@ @", Nothing),
            ("ls http://@/@", Nothing),
        ],
        "commit" => &[
            ("commit @ i@", Nothing),
            ("commit plain @", Nothing),
            ("commit --base i@ plain i@", Nothing),
            ("commit --base @gone plain i@", Nothing),
        ],
        "rewrite" => &[
            ("rewrite -f -l 2 i@ r@", Nothing),
            ("rewrite -f --json --repack i@ r@", Nothing),
            ("rewrite i@ r@", Nothing),
            ("rewrite i@ r@/x/y", Nothing),
        ],
        "store" => &[("store @", Nothing), ("store", Nothing)],
        "store create" => &[
            ("store create s@", Nothing),
            ("store create s@", Nothing),
            ("store create --json s2@", Nothing),
            ("store create @gone/x", Nothing),
        ],
        "store import" => &[
            ("store import s@ i@ --name a", Nothing),
            ("store import --json s@ i@ --name b", Nothing),
            ("store import s@ i@", Nothing),
            ("store import s@ i@ --name @", Nothing),
            ("store import s@ @gone", Nothing),
            ("store import @gone i@", Nothing),
            ("store import s@ @", Nothing),
        ],
        "store add" => &[
            ("store add s@ @ --name new@", Nothing),
            ("store add --json s@ @ --name new2 --like a", Nothing),
            ("store add s@ @ --name a", Nothing),
            ("store add s@ @ --name new3 --like @", Nothing),
            ("store add s@ @gone --name new4", Nothing),
            ("store add @gone @ --name new5", Nothing),
        ],
        "store export" => &[
            ("store export s@:a e@", Nothing),
            ("store export s@:a e@", Nothing),
            ("store export --json -f s@:a e@", Nothing),
            ("store export s@:@ e@", Nothing),
            ("store export @gone:a e@", Nothing),
        ],
        "export" => &[("export @", Nothing), ("export", Nothing)],
        "export erofs" => &[
            ("export erofs i@ e@", Nothing),
            ("export erofs i@ e@", Nothing),
            ("export erofs --json -f i@ e@", Nothing),
            ("export erofs --compress @ i@ e2@", Nothing),
            ("export erofs i@ @gone/x", Nothing),
            ("export erofs @gone e3@", Nothing),
        ],
        "export composefs" => &[
            ("export composefs i@ --image c@ --objects o@", Nothing),
            ("export composefs i@ --image c@", Nothing),
            (
                "export composefs --json -f i@ --image c@ --objects o@",
                Nothing,
            ),
            ("export composefs i@ --image c2@ --objects i@", Nothing),
            ("export composefs i@ --image @gone/x", Nothing),
            ("export composefs @gone --image c3@", Nothing),
        ],
        "export dump" => &[("export dump i@", Nothing), ("export dump @gone", Nothing)],
        "import composefs" => &[
            ("import composefs --image c@ --objects o@ w@", Nothing),
            ("import composefs --image c@ --objects o@ w@", Nothing),
            (
                "import composefs --json -f --image c@ --objects o@ w@",
                Nothing,
            ),
            ("import composefs --image c@ w2@", Nothing),
            ("import composefs --from-dump c@ w2@", Nothing),
            ("import composefs --from-dump @gone w2@", Nothing),
            ("import composefs --image i@ w2@", Nothing),
        ],
        "store ls" => &[
            ("store ls s@", InPipes),
            ("store ls --json s@", Nothing),
            ("store ls @", Nothing),
            ("store ls s@:a", Nothing),
        ],
        "store info" => &[
            ("store info s@", Nothing),
            ("store info --json s@", Nothing),
            ("store info i@", Nothing),
            ("info s@", Nothing),
            ("info s@:a", Nothing),
        ],
        "store rm" => &[
            ("store rm s@:@", Nothing),
            ("store rm s@ @", Nothing),
            ("store rm --json s@:a", Nothing),
            ("store rm -n s@ *", Nothing),
        ],
        "store forget" => &[
            ("store forget -n --keep-last 1 s@", Nothing),
            ("store forget --keep-last 1 s@ @", Nothing),
            ("store forget --keep-last 1 @", Nothing),
        ],
        "store mv" => &[("store mv s@:a @", Nothing), ("store mv s@:@ a", Nothing)],
        "store gc" => &[
            ("store gc s@", Nothing),
            ("store gc --json s@", Nothing),
            ("store gc @gone", Nothing),
        ],
        "store check" => &[
            ("store check --data s@", Nothing),
            ("store check --json s@", Nothing),
            ("store check @", Nothing),
        ],
        "store salvage" => &[
            ("store salvage s@", Nothing),
            ("store salvage --json s@", Nothing),
            ("store salvage @", Nothing),
        ],
        "store scrub" => &[
            ("store scrub s@", Nothing),
            ("store scrub --json s@", Nothing),
            ("store scrub s@ --from @", Nothing),
            ("store scrub @", Nothing),
        ],
        "store probe" => &[
            ("store probe @", Nothing),
            ("store probe http://@/@", Nothing),
            ("store probe s3://@/x", Nothing),
        ],
        "store backup" => &[
            ("store backup s@ b@", Nothing),
            ("store backup s@ place", Nothing),
            ("store backup s@ @/@/@", Nothing),
            ("store backup --name @ s@ place2", Nothing),
            ("store backup @gone b", Nothing),
        ],
        "replica" => &[("replica @", Nothing), ("replica", Nothing)],
        "replica add" => &[
            ("replica add s@ p@ --name q", Nothing),
            ("replica add s@ plain --name r", Nothing),
            ("replica add s@ ssh://@/@ --name x", Nothing),
            ("replica add s@ command:false@ --name x", Nothing),
            ("replica add --every @ s@ plain2 --name x", Nothing),
            ("replica add @gone plain2", Nothing),
        ],
        "replica ls" => &[("replica ls s@", Nothing), ("replica ls @", Nothing)],
        "replica status" => &[
            ("replica status s@", Nothing),
            ("replica status --json s@", Nothing),
            ("replica status --prometheus s@", Nothing),
            ("replica status @", Nothing),
        ],
        "replica set" => &[
            ("replica set s@ --name r --rate 1M", Nothing),
            ("replica set s@ --name r --rate @", Nothing),
            ("replica set s@ --name r --sync @", Nothing),
            ("replica set s@ --name @", Nothing),
        ],
        "replica pause" => &[
            ("replica pause s@ --name r", Nothing),
            ("replica pause s@ --name @", Nothing),
        ],
        "replica resume" => &[
            ("replica resume s@ --name r", Nothing),
            ("replica resume s@ --name @", Nothing),
        ],
        "replica send" => &[
            ("replica send s@", Nothing),
            ("replica send --json s@", Nothing),
            ("replica send s@ --name @", Nothing),
            ("replica send @", Nothing),
        ],
        "replica states" => &[
            ("replica states plain", Nothing),
            ("replica states p@", Nothing),
            ("replica states @", Nothing),
        ],
        "replica verify" => &[
            ("replica verify plain", Nothing),
            ("replica verify s@", Nothing),
            ("replica verify --json s@ --repair", Nothing),
            ("replica verify p@", Nothing),
            ("replica verify @gone", Nothing),
        ],
        "replica restore" => &[
            ("replica restore plain re@", Nothing),
            ("replica restore --json plain re2@", Nothing),
            ("replica restore plain re@", Nothing),
            ("replica restore plain s@/@/@", Nothing),
            ("replica restore --at @ plain re3@", Nothing),
            ("replica restore @gone re3@", Nothing),
        ],
        "replica follow" => &[
            ("replica follow plain fo@", Nothing),
            ("replica follow --json plain fo@", Nothing),
            ("replica follow plain s@", Nothing),
            ("replica follow plain s@ --as-clone", Nothing),
            ("replica follow --every @ plain fo@", Nothing),
            ("replica follow @gone fo2@", Nothing),
        ],
        "replica promote" => &[
            ("replica promote s@", Nothing),
            ("replica promote fo@ --name @", Nothing),
            ("replica promote --json fo@", Nothing),
        ],
        "replica prune" => &[
            ("replica prune s@ --name r --keep 3", Nothing),
            ("replica prune s@ --name @ --keep 3", Nothing),
            ("replica prune s@ --name r --keep @", Nothing),
        ],
        "replica receive" => &[
            ("replica receive plain", Nothing),
            ("replica receive @gone", Nothing),
        ],
        "replica remove" => &[
            ("replica remove s@ --name r", Nothing),
            ("replica remove s@ --name @", Nothing),
        ],
        "scrub" => &[("scrub @", Nothing), ("scrub", Nothing)],
        "scrub start" => &[
            ("scrub start s@", Nothing),
            ("scrub start --json --sample 50% s@", Nothing),
            ("scrub start --sample @ s@", Nothing),
            ("scrub start --rate @ s@", Nothing),
            ("scrub start s@:a", Nothing),
            ("scrub start @gone", Nothing),
        ],
        "scrub pause" => &[("scrub pause s@", Nothing), ("scrub pause @", Nothing)],
        "scrub resume" => &[
            ("scrub resume s@", Nothing),
            ("scrub resume --json s@", Nothing),
            ("scrub resume --rate @ s@", Nothing),
            ("scrub resume @", Nothing),
        ],
        "scrub set" => &[
            ("scrub set s@ --every 30d --rate 5M --hours 1-5", Nothing),
            ("scrub set s@ --every @", Nothing),
            ("scrub set s@ --hours @", Nothing),
            ("scrub set @gone --never", Nothing),
        ],
        "scrub run-due" => &[
            ("scrub run-due s@", Nothing),
            ("scrub run-due @gone", Nothing),
        ],
        "scrub status" => &[
            ("scrub status s@", Nothing),
            ("scrub status --json s@", Nothing),
            ("scrub status @gone", Nothing),
        ],
        "tier" => &[("tier @", Nothing), ("tier", Nothing)],
        "tier add" => &[
            ("tier add s@ tp@ --name a", Nothing),
            ("tier add s@ plain-tier --name t --same-disk", Nothing),
            ("tier add s@ more-tier --name @ --same-disk", Nothing),
            ("tier add s@ p@ --name a --same-disk", Nothing),
            ("tier add @gone more-tier --name a", Nothing),
        ],
        "tier ls" => &[("tier ls s@", InPipes), ("tier ls @", Nothing)],
        "tier stat" => &[
            ("tier stat s@", Nothing),
            ("tier stat --json s@", Nothing),
            ("tier stat --prometheus s@", Nothing),
            ("tier stat @", Nothing),
        ],
        "tier set" => &[
            ("tier set s@ t --rank 2", Nothing),
            ("tier set s@ @", Nothing),
            ("tier set s@ t --rate @", Nothing),
        ],
        "tier heat" => &[
            ("tier heat s@", Nothing),
            ("tier heat --json s@", Nothing),
            ("tier heat s@:@", Nothing),
            ("tier heat s@:@ @", Nothing),
        ],
        "tier plan" => &[
            ("tier plan s@", Nothing),
            ("tier plan --json s@", Nothing),
            ("tier plan @", Nothing),
        ],
        "tier run" => &[
            ("tier run s@", Nothing),
            ("tier run --json s@", Nothing),
            ("tier run @", Nothing),
        ],
        "tier move" => &[
            ("tier move s@:@ --to t", Nothing),
            ("tier move s@:@ --to @", Nothing),
            ("tier move s@ --to t", Nothing),
            ("tier move s@:@ @ --to t", Nothing),
            ("tier move s@:@ @ --range 0-1 --to t", Nothing),
        ],
        "tier drain" => &[("tier drain s@ t", Nothing), ("tier drain s@ @", Nothing)],
        "tier remove" => &[("tier remove s@ @", Nothing), ("tier remove s@ t", Nothing)],
        "volume" => &[("volume @", Nothing), ("volume", Nothing)],
        "volume create" => &[
            ("volume create s@:v", Nothing),
            ("volume create s@:v", Nothing),
            ("volume create --json s@:v2", Nothing),
            ("volume create s@:@", Nothing),
            ("volume create --chunk @ s@:v3", Nothing),
            ("volume create --compress @ s@:v3", Nothing),
            ("volume create @gone:v", Nothing),
        ],
        "volume ls" => &[
            ("volume ls s@", InPipes),
            ("volume ls --json s@", Nothing),
            ("volume ls @", Nothing),
        ],
        "volume info" => &[
            ("volume info s@:v", Nothing),
            ("volume info --json s@:v", Nothing),
            ("volume info s@:@", Nothing),
            ("volume info s@:b", Nothing),
            ("ls s@:v", Nothing),
            ("mount -o fast@ s@:v mnt@", Nothing),
        ],
        "volume stat" => &[
            ("volume stat s@:v", Nothing),
            ("volume stat --json s@:v", Nothing),
            ("volume stat --prometheus s@:v", Nothing),
            ("volume stat @", Nothing),
        ],
        "volume seal" => &[
            ("volume seal --image sealed@ s@:v", Nothing),
            ("volume seal --image sealed@ s@:v", Nothing),
            ("volume seal --image @gone/x s@:v", Nothing),
            ("volume seal --name sealed@ s@:v", Nothing),
            ("volume seal --name sealed s@:v", Nothing),
            ("volume seal --name x s@:@", Nothing),
        ],
        "volume set" => &[
            ("volume set --compress zstd s@:v /", Nothing),
            ("volume set --compress @ s@:v /", Nothing),
            ("volume set --quota @ s@:v /", Nothing),
            ("volume set --quota 1G s@:v @", Nothing),
            ("volume set --dedup off s@:@ /", Nothing),
            ("volume info s@:v @", Nothing),
        ],
        "volume check" => &[
            ("volume check --data s@:v", Nothing),
            ("volume check --json s@:v", Nothing),
            ("volume check @gone:v", Nothing),
        ],
        "snapshot" => &[("snapshot @", Nothing), ("snapshot", Nothing)],
        "snapshot create" => &[
            ("snapshot create -q s@:v2^one", Nothing),
            ("snapshot create s@:v2^two", Nothing),
            ("snapshot create s@:v2^@", Nothing),
            ("snapshot create s@:@", Nothing),
            ("snapshot create @", Nothing),
        ],
        "snapshot ls" => &[
            ("snapshot ls s@:v2", Nothing),
            ("snapshot ls --json s@:v2", Nothing),
            ("snapshot ls --prometheus s@:v2", Nothing),
            ("snapshot ls @", Nothing),
        ],
        "snapshot hold" => &[
            ("snapshot hold tag s@:v2^one", Nothing),
            ("snapshot hold @ s@:v2^one", Nothing),
            ("snapshot hold tag s@:v2^@", Nothing),
        ],
        "snapshot release" => &[
            ("snapshot release tag s@:v2^one", Nothing),
            ("snapshot release @ s@:v2^one", Nothing),
        ],
        "snapshot clone" => &[
            ("snapshot clone s@:v2^one s@:c", Nothing),
            ("snapshot clone s@:v2^one s@:@", Nothing),
            ("snapshot clone s@:v2^one @", Nothing),
            ("snapshot clone s@:v2^@ s@:d", Nothing),
        ],
        "snapshot rollback" => &[
            ("snapshot rollback s@:v2^one", Nothing),
            ("snapshot rollback s@:v2^@", Nothing),
        ],
        "snapshot prune" => &[
            ("snapshot prune -n --keep-last 1 s@:v2", Nothing),
            ("snapshot prune --keep-last 1 s@:v2", Nothing),
            ("snapshot prune --keep-last @ s@:v2", Nothing),
            ("snapshot prune --keep-last 1 @", Nothing),
        ],
        "snapshot rm" => &[("snapshot rm s@:v2^@", Nothing), ("snapshot rm @", Nothing)],
        "volume rm" => &[
            ("volume rm s@:gone", Nothing),
            ("volume rm --json s@:v", Nothing),
            ("volume rm @", Nothing),
        ],
        "export oci" => &[
            ("export oci i@ l@:v1", Nothing),
            ("export oci i@ l@:v1", Nothing),
            ("export oci --json i@ l@:v2", Nothing),
            ("export oci i@ l@:@", Nothing),
            ("export oci i@ @", Nothing),
            ("export oci i@ i@:v1", Nothing),
            ("export oci i@ @gone/l:v1", Nothing),
            ("export oci --config @gone i@ l@:v3", Nothing),
            ("export oci --config @/@ i@ l@:v3", Nothing),
            ("export oci --platform @ i@ l@:v3", Nothing),
            ("export oci --compress @ i@ l@:v3", Nothing),
            ("export oci @gone l@:v3", Nothing),
        ],
        "import" => &[("import @", Nothing), ("import", Nothing)],
        "import oci" => &[
            ("import oci l@:v1 o@", Nothing),
            ("import oci l@:v1 o@", Nothing),
            ("import oci --json l@:v2 o2@", Nothing),
            ("import oci --config @/@ l@:v1 o3@", Nothing),
            ("import oci --platform @ l@:v1 o3@", Nothing),
            ("import oci l@:@ o3@", Nothing),
            ("import oci l@ o3@", Nothing),
            ("import oci @ o3@", Nothing),
            ("import oci @gone:v1 o3@", Nothing),
            ("import oci oci:@ o3@", Nothing),
            ("import oci docker://@ o3@", Nothing),
            ("import oci i@ o3@", Nothing),
            ("import oci hostile.layout o3@", Nothing),
            ("import oci hostile.layout:x o3@", Nothing),
            ("import oci hostile.saved o3@", Nothing),
            ("import oci hostile.saved:x o3@", Nothing),
        ],
        "forest" => &[
            ("forest --fanout 2x2 -q forest@", Nothing),
            ("forest --fanout 2x2 forest@", Nothing),
            ("forest --fanout 2x3 --verify forest@", Nothing),
            ("forest --spec @gone x", Nothing),
            ("forest --names @ x", Nothing),
        ],
        "completions" => &[("completions @", Nothing), ("completions bash", Nothing)],
        other => panic!("{other}: this test has no lines for the command"),
    };
    lines.to_vec()
}

fn args(line: &str) -> Vec<OsString> {
    line.split(' ').map(word).collect()
}

/// Two sources, scripts and streams, all with hostile names.
fn bench() -> Bench {
    let bench = Bench::new();
    let at = |pattern: &str| bench.0.path().join(word(pattern));
    fs::create_dir_all(at("@/@dir/@")).expect("mkdir");
    fs::write(at("@/@"), "content").expect("write");
    fs::write(at("@/@dir/@file"), "content of another file").expect("write");
    std::os::unix::fs::symlink(word("@target"), at("@/link")).expect("symlink");
    fs::hard_link(at("@/@"), at("@/@twin")).expect("link");
    let source = weald_sys::open_dir(&at("@")).expect("open");
    let name = [b"user.", HOSTILE].concat();
    weald_sys::set_xattr_at(&source, HOSTILE, &name, HOSTILE).expect("setxattr");
    fs::create_dir_all(at("other@/@")).expect("mkdir");
    fs::write(at("other@/@new"), "new").expect("write");
    std::os::unix::fs::symlink(word("@elsewhere"), at("other@/link")).expect("symlink");
    fs::create_dir(at("mnt@")).expect("mkdir");
    fs::write(at("@.lua"), "function filter(entry) error(entry.path) end").expect("write");
    let words: String = HOSTILE.iter().map(|byte| format!("\\{byte:03}")).collect();
    fs::write(at("raise.lua"), format!("error(\"{words}\")")).expect("write");
    let layout = LayoutDir::create(&at("hostile.layout"));
    let word = "\\u001b[31m\\u202e\\u009b\\r";
    layout.index(&[format!(
        r#"{{"mediaType":"{word}","digest":"sha256:{word}","size":1,"annotations":
        {{"org.opencontainers.image.ref.name":"{word}"}}}}"#
    )]);
    fs::create_dir(at("hostile.saved")).expect("mkdir");
    let saved = format!(r#"[{{"Config":"{word}","RepoTags":["{word}"],"Layers":[]}}]"#);
    fs::write(at("hostile.saved/manifest.json"), saved).expect("write");
    fs::write(at("listing"), [b"../", HOSTILE, b"\0"].concat()).expect("write");
    fs::write(at("mtree"), [b"#mtree\n/", HOSTILE].concat()).expect("write");
    bench.sh("name=$(cat listing | tr -d '\\0'); name=${name#../}
         tar -cPf absolute.tar \"$PWD/$name\"; tar -c --format=ustar -f odd.tar -C \"$name\" \
          \"$name\"
         python3 - <<'END'
d = bytearray(open('odd.tar', 'rb').read())
d[156] = ord('Q')
d[148:156] = b' ' * 8
d[148:156] = b'%06o\\0 ' % sum(d[:512])
open('odd.tar', 'wb').write(d)
END");
    bench
}

/// Fails if `bytes` have a character that a terminal interprets, except newlines.
#[track_caller]
fn assert_safe(bytes: &[u8], context: &str) {
    let text = std::str::from_utf8(bytes)
        .unwrap_or_else(|error| panic!("{context}: {error}: {}", bytes.escape_ascii()));
    let found = text.chars().find(|&c| c != '\n' && is_unsafe(c));
    assert_eq!(found, None, "{context}: {}", bytes.escape_ascii());
    // A raw newline in a name would start a line with the rest of the name.
    let has_tail = |line: &str| line.starts_with("\\x0d") || line.starts_with("\\r");
    assert!(!text.lines().any(has_tail), "{context}: {text}");
}

fn check(line: &str, raw: Raw, is_terminal: bool, output: &Output) {
    let context = format!("{line} (terminal: {is_terminal})");
    assert_safe(output.stderr.as_bytes(), &context);
    let is_raw = raw == Always || (raw == InPipes && !is_terminal);
    if !is_raw && !line.starts_with("completions bash") {
        assert_safe(&output.stdout, &context);
    }
    assert!(
        !output.stderr.contains("panicked"),
        "{context}: {}",
        output.stderr
    );
}

/// Would catch: a command, a mode or a message that writes a name unescaped.
#[test]
fn no_control_character_of_a_name_reaches_a_terminal() {
    for is_terminal in [false, true] {
        let bench = bench();
        let runtime = bench.at("run");
        let command = |args: &[OsString]| -> Command {
            let mut command = bench.command();
            command.env("WEALD_RUNTIME_DIR", &runtime).args(args);
            command
        };
        let mut escaped_count = 0;
        // `mounts` runs while a mount exists.
        let order = |command: &&str| {
            ["build", "mount", "mounts", "umount"]
                .iter()
                .position(|first| first == command)
                .unwrap_or(4)
        };
        let mut commands = COMMANDS;
        commands.sort_by_key(|command| order(command));
        for (line, raw) in commands.into_iter().flat_map(runs) {
            let mut command = command(&args(line));
            let output = if is_terminal {
                run_on_terminal(&mut command)
            } else {
                run(&mut command)
            };
            check(line, raw, is_terminal, &output);
            let said = output.text() + &output.stderr;
            assert!(
                line != "mounts" || said.contains("mnt"),
                "nothing is mounted: {said}"
            );
            escaped_count += u64::from(said.contains("\\x1b") || said.contains("\\u001b"));
        }
        // Most lines contain the escaped name.
        assert!(escaped_count > 50, "{escaped_count}");
    }
}

/// Would catch: a message about a damaged file that writes its name unescaped.
#[test]
fn names_of_damaged_files_are_escaped() {
    let bench = bench();
    run(bench.command().args(args("build -q -l 0 @ image"))).expect(0, "");
    let image = fs::read(bench.at("image")).expect("read");
    let mut damaged_count = 0;
    for at in (64..image.len()).step_by(7) {
        let mut bytes = image.clone();
        bytes[at] ^= 1;
        fs::write(bench.at("bad"), bytes).expect("write");
        for line in [
            "check bad",
            "check --json bad",
            "sum --json bad",
            "extract bad out",
        ] {
            let output = run(bench.command().args(args(line)));
            check(line, Nothing, false, &output);
            let said = output.text();
            damaged_count += u64::from(said.contains("damaged: ") && said.contains("\\x1b"));
        }
        bench.sh("rm -rf out");
    }
    assert!(damaged_count > 0);
}

/// Would catch: escaped JSON that parses to other names.
#[test]
fn json_parses_to_the_same_names() {
    let bench = Bench::new();
    let name = "e\u{1b}[31m\u{202e}\u{61c}\u{9b}\n\u{7f}\u{feff}\u{2066}\u{2028}z\"\\";
    fs::create_dir(bench.at("tree")).expect("mkdir");
    fs::write(
        bench.at("tree").join(OsStr::from_bytes(name.as_bytes())),
        "x",
    )
    .expect("write");
    bench.weald(["build", "-q", "tree", "image"]).expect(0, "");
    for command in ["find", "sum", "ls"] {
        let output = bench.weald([command, "--json", "image"]).expect(0, "");
        assert_safe(&output.stdout, command);
        let json = output.json();
        let path = json
            .iter()
            .rfind(|object| object["path"] != "")
            .expect("a path");
        assert_eq!(path["path"], name, "{command}");
    }
}
