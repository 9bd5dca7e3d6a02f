//! Outputs on real file systems.

use super::*;
use crate::test_mount::SmallFs;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// An output that cannot use a file without a name, as on FAT or NFS.
fn hidden(path: &Path) -> OutputFile {
    let mut output = OutputFile::create(path, TargetKind::File).unwrap();
    output.link_hidden().unwrap();
    output
}

#[test]
fn the_file_appears_whole_at_commit_and_not_before() {
    for make in [
        |p: &Path| OutputFile::create(p, TargetKind::File).unwrap(),
        hidden,
    ] {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("image");
        let mut output = make(&path);
        let large = vec![b'x'; OUTPUT_BUFFER_LEN + 1];
        output.write_all(b"head").unwrap();
        output.write_all(&large).unwrap();
        output.write_all(b"tail").unwrap();
        assert_eq!(output.position(), large.len() as u64 + 8);
        let mut tail = [0; 5];
        output
            .read_exact_at(&mut tail, large.len() as u64 + 3)
            .unwrap();
        assert_eq!(&tail, b"xtail");
        assert!(!path.exists());
        output.commit(false).unwrap();
        assert_eq!(names(temp.path()), ["image"]);
        assert_eq!(
            std::fs::read(&path).unwrap(),
            [b"head".as_slice(), &large, b"tail"].concat()
        );
    }
}

#[test]
fn an_uncommitted_output_leaves_nothing() {
    for make in [
        |p: &Path| OutputFile::create(p, TargetKind::File).unwrap(),
        hidden,
    ] {
        let temp = tempfile::tempdir().unwrap();
        let mut output = make(&temp.path().join("image"));
        output.write_all(b"x").unwrap();
        drop(output);
        assert_eq!(names(temp.path()), [""; 0]);
    }
}

#[test]
fn an_existing_file_is_replaced_only_on_request() {
    for make in [
        |p: &Path| OutputFile::create(p, TargetKind::File).unwrap(),
        hidden,
    ] {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("image");
        std::fs::write(&path, b"old").unwrap();
        assert_eq!(refuse_existing(&path).unwrap_err().kind(), ErrorKind::Busy);
        let mut output = make(&path);
        output.write_all(b"new").unwrap();
        assert_eq!(output.commit(false).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        let mut output = make(&path);
        output.write_all(b"new").unwrap();
        output.commit(true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(names(temp.path()), ["image"]);
    }
}

#[test]
fn symlinks_are_written_through_and_devices_directly() {
    let temp = tempfile::tempdir().unwrap();
    let link = temp.path().join("link");
    std::fs::create_dir(temp.path().join("dir")).unwrap();
    std::fs::write(temp.path().join("dir/file"), b"old").unwrap();
    std::os::unix::fs::symlink("dir/file", &link).unwrap();
    let mut output = OutputFile::create(&link, TargetKind::File).unwrap();
    output.write_all(b"new").unwrap();
    output.commit(true).unwrap();
    assert!(link.is_symlink());
    assert_eq!(std::fs::read(temp.path().join("dir/file")).unwrap(), b"new");

    let mut null = OutputFile::create(Path::new("/dev/null"), TargetKind::Device).unwrap();
    assert!(!null.is_atomic());
    null.write_all(b"x").unwrap();
    assert_eq!(
        null.read_exact_at(&mut [0], 0).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    null.commit(false).unwrap();
    assert!(!Path::new("/dev/null").is_file());
}

#[test]
fn a_directory_as_target_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    assert_eq!(
        OutputFile::create(temp.path(), TargetKind::File)
            .err()
            .unwrap()
            .kind(),
        ErrorKind::Invalid
    );
    let missing = OutputFile::create(&temp.path().join("a/b"), TargetKind::File)
        .err()
        .unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[test]
fn a_full_file_system_is_said_and_leaves_nothing() {
    let fs = SmallFs::new(1 << 20);
    for make in [
        |p: &Path| OutputFile::create(p, TargetKind::File).unwrap(),
        hidden,
    ] {
        let mut output = make(&fs.path().join("image"));
        let failed = (0..64)
            .find_map(|_| output.write_all(&[1; 100_000]).err())
            .unwrap();
        assert_eq!(failed.kind(), ErrorKind::Full);
        assert_eq!(output.write_all(b"x").unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(output.commit(false).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(names(fs.path()), [""; 0]);
    }
}

#[test]
fn full_device_is_full_even_at_the_last_flush() {
    let mut output = OutputFile::create(Path::new("/dev/full"), TargetKind::Device).unwrap();
    output.write_all(b"x").unwrap();
    assert_eq!(output.commit(false).unwrap_err().kind(), ErrorKind::Full);
}
