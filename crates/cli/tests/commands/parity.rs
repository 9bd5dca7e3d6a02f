//! `weald parity`: damage of a file comes back, and what a verification says is what a repair does.
use crate::support::{Bench, Output};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use weald_testkit::Rng;

/// A bench with a file of 3,000,000 bytes that is no image, and its parity.
fn bench() -> (Bench, Vec<u8>) {
    let bench = Bench::new();
    let whole = Rng::new(1).bytes(3_000_000);
    fs::write(bench.at("file"), &whole).expect("write");
    let text = bench.weald(["parity", "add", "file"]).expect(0, "").text();
    let len = fs::metadata(bench.at("file.parity")).expect("parity").len();
    assert!(len < 3_000_000 / 10, "{len}");
    assert!(text.contains("which repair any "), "{text}");
    (bench, whole)
}

fn overwrite(bench: &Bench, name: &str, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(bench.at(name));
    file.expect("open").write_all_at(bytes, at).expect("write");
}

/// Checks that a command failed with a message that has `part`.
#[track_caller]
fn refused(output: Output, part: &str) {
    assert_eq!(output.code, Some(2), "{}", output.stderr);
    assert!(output.stderr.contains(part), "{}", output.stderr);
}

/// Would catch: damage that is not found, or not restored; a verification that writes; a burst of
/// the printed length that is not repaired.
#[test]
fn damage_is_named_and_restored() {
    let (bench, whole) = bench();
    let clean = "file: as it was when its parity was made\n";
    let verify = || bench.weald(["parity", "verify", "file"]);
    assert_eq!(verify().expect(0, "").text(), clean);
    overwrite(&bench, "file", 5000, &[0x55; 16]);
    let text = verify().expect(1, "").text();
    assert_eq!(
        text,
        "repairable: 4096-8192\nfile: 4,096 bytes can be repaired\n"
    );
    let text = bench
        .weald(["parity", "repair", "file"])
        .expect(0, "")
        .text();
    assert_eq!(text, "repaired: 4096-8192\nfile: 4,096 bytes repaired\n");
    assert!(fs::read(bench.at("file")).expect("read") == whole);
    assert_eq!(verify().expect(0, "").text(), clean);

    let json = ["parity", "add", "--json", "-f", "file"];
    let said = bench.weald(json).expect(0, "").json();
    let burst = said[0]["repairable_len"].as_u64().expect("a length");
    assert!(burst >= 150_000, "{burst}");
    overwrite(&bench, "file", 777_777, &vec![0; burst as usize]);
    File::options()
        .write(true)
        .open(bench.at("file"))
        .and_then(|file| file.set_len(2_999_999))
        .expect("cut");
    verify().expect(1, "");
    // Together they are one byte too many for the promise, and may be in different columns.
    overwrite(&bench, "file", 2_999_999, &whole[2_999_999..]);
    bench.weald(["parity", "repair", "file"]).expect(0, "");
    assert!(fs::read(bench.at("file")).expect("read") == whole);
}

/// Would catch: a loss that has status 0; a repair that changes what it cannot restore, or that
/// ends at the first loss.
#[test]
fn losses_are_named_and_the_rest_is_restored() {
    let (bench, whole) = bench();
    overwrite(&bench, "file", 1_000_000, &vec![0x55; 900_000]);
    let damaged = fs::read(bench.at("file")).expect("read");
    let verify = ["parity", "verify", "--json", "file"];
    let said = bench.weald(verify).expect(1, "").text();
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.contains("\"lost\":901120"), "{said}");
    bench.weald(["parity", "repair", "file"]).expect(1, "");
    assert!(fs::read(bench.at("file")).expect("read") == damaged);
    fs::write(bench.at("file"), &whole).expect("write");

    let mut longer = whole.clone();
    longer.extend_from_slice(b"appended");
    fs::write(bench.at("file"), &longer).expect("write");
    overwrite(&bench, "file", 0, b"damage");
    let text = bench
        .weald(["parity", "repair", "file"])
        .expect(1, "")
        .text();
    assert!(
        text.contains("8 bytes more than when its parity was made"),
        "{text}"
    );
    assert!(fs::read(bench.at("file")).expect("read") == longer);
}

/// Would catch: a damaged parity file that counts as clean, or stays damaged; parity that others
/// may read while they may not read the file.
#[test]
fn parity_is_made_again_and_as_private_as_the_file() {
    let (bench, _) = bench();
    let whole = fs::read(bench.at("file.parity")).expect("read");
    overwrite(&bench, "file.parity", 0, &[0; 5000]);
    let text = bench
        .weald(["parity", "verify", "file"])
        .expect(1, "")
        .text();
    assert!(text.contains("parity: 2 damaged blocks"), "{text}");
    let secret = fs::Permissions::from_mode(0o600);
    fs::set_permissions(bench.at("file"), secret).expect("mode");
    bench.weald(["parity", "repair", "file"]).expect(0, "");
    assert!(fs::read(bench.at("file.parity")).expect("read") == whole);
    let metadata = fs::metadata(bench.at("file.parity")).expect("parity");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
}

/// Would catch: a file of root that gets the bytes that another user wants.
#[test]
fn parity_of_another_user_repairs_nothing() {
    let (bench, whole) = bench();
    std::os::unix::fs::chown(bench.at("file.parity"), Some(1000), None).expect("root");
    overwrite(&bench, "file", 0, b"damage");
    let damaged = fs::read(bench.at("file")).expect("read");
    refused(
        bench.weald(["parity", "repair", "file"]),
        "belongs to user 1000",
    );
    assert!(fs::read(bench.at("file")).expect("read") == damaged);
    assert_eq!(bench.weald(["parity", "verify", "file"]).code, Some(1));
    std::os::unix::fs::chown(bench.at("file"), Some(1000), None).expect("root");
    bench.weald(["parity", "repair", "file"]).expect(0, "");
    assert!(fs::read(bench.at("file")).expect("read") == whole);
}

/// Would catch: a parity file that replaces another file, a hang at a pipe, a message without what
/// to do.
#[test]
fn what_has_no_parity_is_refused() {
    let (bench, _) = bench();
    fs::write(bench.at("empty"), b"").expect("write");
    bench
        .weald(["store", "create", "-q", "store"])
        .expect(0, "");
    for (words, part) in [
        ("add file", "exists"),
        ("verify file.parity", "there is no parity of file.parity"),
        ("verify --parity file file", "is no parity file"),
        ("add empty", "is empty"),
        ("add .", "is no regular file"),
        ("add store:name", "is an image of a store"),
        ("add --share 101% file", "a percentage"),
    ] {
        let args = ["parity"].into_iter().chain(words.split(' '));
        refused(bench.weald(args), part);
    }
}

/// Would catch: an image that is built without the parity that was asked for, one whose parity is
/// that of the generation before, a parity file that replaces another one.
#[test]
fn images_are_built_with_parity() {
    let bench = Bench::new();
    bench.make_source();
    fs::write(bench.at("source/noise"), Rng::new(3).bytes(300_000)).expect("write");
    let build = ["build", "--parity", "10%", "source", "image"];
    let text = bench.weald(build).expect(0, "").text();
    assert!(text.contains("which repair any "), "{text}");
    let whole = fs::read(bench.at("image")).expect("read");
    overwrite(&bench, "image", 100_000, &[0; 20_000]);
    bench.weald(["parity", "repair", "image"]).expect(0, "");
    assert!(fs::read(bench.at("image")).expect("read") == whole);
    refused(bench.weald(build), "image.parity: exists");
    bench
        .weald(["build", "-qf", "--parity", "1%", "source", "image"])
        .expect(0, "");
    fs::write(bench.at("source/more"), Rng::new(4).bytes(300_000)).expect("write");
    let append = [
        "build", "--json", "--append", "--parity", "5%", "source", "image",
    ];
    let said = bench.weald(append).expect(0, "").json();
    assert!(
        said[0]["repairable_len"].as_u64().expect("a length") > 30_000,
        "{said:?}"
    );
    bench.weald(["parity", "verify", "image"]).expect(0, "");
    refused(
        bench.weald(["build", "--parity", "5%", "source", "-"]),
        "parity is of a file",
    );
}
