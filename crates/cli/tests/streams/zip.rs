//! Archives of zip as sources, compared with unzip(1) and Python's zipfile.

use super::{status, tree_digest};
use crate::support::Bench;

fn tree() -> Bench {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p source/a/deep source/empty; seq 90000 > source/a/deep/n; : > source/none
        head -c 400000 /dev/urandom > source/noise; ln -s ../none source/a/link
        printf 'x' > 'source/\u{fc}nicode'; printf y > 'source/sp ace'; echo s > source/script
        chmod 4755 source/script; chmod 600 source/noise; chmod 1777 source/empty
        chown 1234:70000 source/none; touch -d @1400000001 source/none
        find source -depth -exec touch -h -d @1500000001 {} +; touch -d @1400000001 source/none",
    );
    bench
}

/// Would catch: a mode, a time, an owner, a link or a name that Info-ZIP wrote and that is lost.
#[test]
fn archives_of_zip_equal_their_unpacked_tree() {
    let bench = tree();
    for options in ["-qry", "-qry0", "-qry9 -fz"] {
        // unzip does not set the times of symlinks, and the root has no member.
        bench.sh(&format!(
            "rm -rf out a.zip; (cd source; zip {options} ../a.zip .); mkdir out
            (cd out; TZ=UTC unzip -qXK ../a.zip; touch -h -d @1500000001 a/link a)
            chmod 755 out; touch -d @0 out
            $WEALD build -q -l 1 -f out direct; $WEALD build -q -l 1 -f a.zip image"
        ));
        let reported = bench.weald(["diff", "image", "direct"]).text();
        assert_eq!(reported, "", "{options}");
        assert_eq!(tree_digest(&bench, "image"), tree_digest(&bench, "direct"));
    }
    let listed = bench.sh("$WEALD find image --name none --printf '%U %G %m %T@\\n'");
    assert!(listed.starts_with("1234 70000 644 1400000001"), "{listed}");
    // To a pipe, zip writes lengths behind the data.
    bench.sh(
        "mkdir p; seq 9000 > p/n; seq 70 > p/m; chmod 640 p/*; touch -d @1500000000 p/*
        (cd p; zip -qr - . | cat) > piped.zip; chmod 755 p; touch -d @0 p
        $WEALD build -q -f p direct; $WEALD build -q -f piped.zip p.weald",
    );
    assert_eq!(
        tree_digest(&bench, "p.weald"),
        tree_digest(&bench, "direct")
    );
    // A program before the archive, and a comment behind it.
    bench.sh(
        "cp a.zip c.zip; echo hello | zip -qz c.zip; (head -c 5000 /bin/ls; cat c.zip) > sfx
        $WEALD build -q --from zip sfx s",
    );
    assert_eq!(tree_digest(&bench, "s"), tree_digest(&bench, "image"));
}

const PYTHON: &str = r#"
import zipfile, stat, struct
def info(name, mode=None, system=3):
    i = zipfile.ZipInfo(name, (2001, 2, 3, 4, 5, 6)); i.create_system = system
    i.external_attr = (mode or 0) << 16
    return i
z = zipfile.ZipFile('py.zip', 'w')
z.writestr(info('plain'), 'plain'); z.writestr('below/x', 'x', zipfile.ZIP_DEFLATED)
z.writestr(info('dos\\file', system=0), 'dos'); z.writestr(info('dir/', 0o40750), '')
z.writestr(info('link', stat.S_IFLNK | 0o777), 'plain'); z.writestr(info('run', 0o100755), 'r')
big = info('large'); z.writestr(big, 'L' * 100000, zipfile.ZIP_DEFLATED)
f = z.open(info('forced'), 'w', force_zip64=True); f.write(b'64'); f.close()
z.close()
z = zipfile.ZipFile('many.zip', 'w', allowZip64=True)
for no in range(70000): z.writestr(info('d%d/%d' % (no % 7, no)), b'')
z.close()
z = zipfile.ZipFile('twice.zip', 'w'); z.writestr('a', '1'); z.writestr('a', '2'); z.close()
def one(out, name, mode=None, data='x', more=()):
    z = zipfile.ZipFile(out, 'w'); z.writestr(info(name, mode), data)
    for n, d in more: z.writestr(info(n), d)
    z.close(); return bytearray(open(out, 'rb').read())
one('above.zip', '../x'); one('absolute.zip', '/x')
one('below.zip', 'l', stat.S_IFLNK | 0o777, '/tmp', [('l/x', 'y')])
one('file.zip', 'l', 0o100644, 'z', [('l/x', 'y')]); one('fifo.zip', 'p', stat.S_IFIFO | 0o644)
def broken(out, change):
    b = one(out, 'name', None, 'data' * 50); change(b, b.index(b'PK\1\2'), b.index(b'PK\5\6'))
    open(out, 'wb').write(b)
def put(at, form, value):
    def change(b, l, e): struct.pack_into(form, b, (l if at >= 0 else e) + abs(at), value)
    return change
broken('crc.zip', put(16, '<I', 1)); broken('lie.zip', put(24, '<I', 1 << 31))
broken('short.zip', put(24, '<I', 300)); broken('secret.zip', put(8, '<H', 1))
broken('method.zip', put(10, '<H', 9)); broken('count.zip', put(-10, '<H', 9))
broken('far.zip', put(42, '<I', 1 << 30)); broken('stored.zip', put(20, '<I', 1 << 30))
broken('name.zip', lambda b, l, e: b.__setitem__(l + 46, 65))
broken('list.zip', put(-12, '<I', 1 << 30)); broken('disk.zip', put(-4, '<H', 3))
broken('cut.zip', lambda b, l, e: b.__delitem__(slice(e + 9, None)))
# Fifty members over the same data.
b = one('bomb.zip', 'a', None, 'x' * 5000); l, e = b.index(b'PK\1\2'), b.index(b'PK\5\6')
r = b[l:e]; end = b[e:]; struct.pack_into('<HHI', end, 8, 50, 50, 50 * len(r))
open('bomb.zip', 'wb').write(b[:l] + r * 50 + end)
"#;

/// Would catch: other ways to say mode, type and length that Python's zipfile has, 70000 members
/// (which take large numbers), and members with the same name.
#[test]
fn archives_of_python_are_read() {
    let bench = Bench::new();
    std::fs::write(bench.at("make.py"), PYTHON).unwrap();
    bench.sh("python3 -W ignore make.py; $WEALD build -q py.zip image");
    let listed = bench.sh("$WEALD find image --printf '%p %y %m %s %T@ %l\\n' | sort");
    let expected = ". d 755 0 0.0000000000 \n\
        below d 755 0 0.0000000000 \n\
        below/x f 600 1 ";
    let listed: Vec<&str> = listed.lines().collect();
    let first: Vec<&str> = expected.lines().map(str::trim_end).collect();
    assert!(listed[0].starts_with(". d 755"), "{listed:?}");
    assert!(listed[2].starts_with(first[2]), "{listed:?}");
    let find = |name: &str| {
        let line = listed
            .iter()
            .find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("{name}: {listed:?}"))
            .to_string()
    };
    for (name, expected) in [
        ("dir", "dir d 750"),
        ("dos/file", "dos/file f 644 3 981173106"),
        ("forced", "forced f 600 2"),
        ("large", "large f 600 100000"),
        ("link", "link l 777"),
        ("plain", "plain f 600 5 981173106"),
        ("run", "run f 755 1"),
    ] {
        let line = find(name);
        assert!(line.starts_with(expected), "{line}");
    }
    assert!(find("link").ends_with(" plain"));
    bench.sh("$WEALD build -q many.zip many; $WEALD build -q twice.zip twice");
    assert_eq!(bench.sh("$WEALD find many --type f | wc -l"), "70000\n");
    assert_eq!(bench.sh("$WEALD cat twice a"), "2");
}

/// Would catch: an archive that lies about itself, and is packed or fills a disk.
#[test]
fn bad_archives_are_refused() {
    let bench = Bench::new();
    std::fs::write(bench.at("make.py"), PYTHON).unwrap();
    bench.sh("python3 -W ignore make.py; echo x > f; zip -qP secret aes.zip f");
    for (name, expected) in [
        ("above", "a path with '..'"),
        ("absolute", "an absolute path"),
        ("below", "l: is a symlink, and other members lie below it"),
        ("file", "l: is a file, and other members lie below it"),
        ("crc", "its data have the CRC"),
        ("lie", "200 bytes cannot hold 2147483648"),
        ("short", "200 bytes cannot hold 300"),
        ("secret", "name: is encrypted"),
        ("aes", "f: is encrypted"),
        ("method", "compressed with Deflate64"),
        ("count", "its list has 1 members, expected 9"),
        ("far", "a member lies outside of the file"),
        ("stored", "members of the archive lie over each other"),
        ("name", "another member lies where the list says"),
        ("list", "lies outside of the file"),
        ("disk", "an archive in several files"),
        ("cut", "no list of members at its end"),
        ("bomb", "members of the archive lie over each other"),
    ] {
        let (code, said) = status(&bench, &format!("$WEALD build -q {name}.zip image"));
        assert!(
            code == 2 && said.contains(expected),
            "{name}: {code} {said}"
        );
        assert!(said.contains(".zip: ") || said.contains("members lie below") || code == 2);
        assert!(!bench.at("image").exists());
    }
    let (code, said) = status(&bench, "$WEALD build -q fifo.zip image");
    assert!(
        code == 1 && said.contains("p: left out: is a device"),
        "{said}"
    );
    let (code, said) = status(&bench, "$WEALD build -q - image < crc.zip");
    assert!(
        code == 2 && said.contains("a zip archive, which is read at any place"),
        "{said}"
    );
}
