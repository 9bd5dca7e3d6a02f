use super::*;
use weald_format::ErrorKind;

/// Would catch: a panic on an archive that is cut anywhere or has any byte changed.
#[test]
fn damaged_archives_end_in_an_error_or_in_members() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("a.zip");
    let script = "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1], 'w'); \
                  z.writestr('a', 'data' * 30, 8); z.writestr('b/', ''); z.close()";
    let made = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(&path)
        .status();
    assert!(made.unwrap().success());
    let good = std::fs::read(&path).unwrap();
    let read_all = |bytes: &[u8]| -> Result<u64> {
        std::fs::write(&path, bytes).unwrap();
        let (mut reader, mut member) = (ZipReader::open(&path, 1 << 20)?, Member::default());
        let mut count = 0;
        while reader.next(&mut member, &mut |_, _| {})? {
            let len = reader.layout().map_or(0, |layout| layout.len);
            if len > 0 {
                assert!(len <= 1032 * good.len() as u64);
                reader.read_data(&mut vec![0; len as usize])?;
            }
            count += 1;
        }
        Ok(count)
    };
    assert_eq!(read_all(&good).unwrap(), 2);
    for end in 0..good.len() {
        let error = read_all(&good[..end]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{end}: {error}");
    }
    for at in 0..good.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] ^= change;
            // Any answer but a panic.
            let _ = read_all(&bytes);
        }
    }
}
