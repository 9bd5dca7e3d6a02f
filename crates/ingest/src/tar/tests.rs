//! Builds of damaged streams: they end in an error or an image, without a panic.

use crate::{Format, build_from_stream};
use proptest::prelude::*;
use std::process::Command;
use std::sync::LazyLock;
use weald_builder::{BuildOptions, Report, Silent};
use weald_format::Result;

/// Streams of GNU tar and bsdtar with all kinds of headers.
static STREAMS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let temp = tempfile::tempdir().unwrap();
    let script =
        "mkdir -p in/dir/deep; cd in; echo text > dir/file; ln dir/file link; ln -s dir/file sym
        mkfifo fifo; echo x > $(printf 'n%.0s' $(seq 120)); truncate -s 40K sparse
        echo data | dd of=sparse bs=4K seek=5 conv=notrunc status=none
        setfattr -n user.x -v y dir/file 2>/dev/null || true";
    let run = |script: &str| {
        let output = Command::new("bash")
            .args(["-ec", script])
            .current_dir(temp.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    };
    run(script);
    [
        "tar -c --format=pax --sparse --xattrs -C in .",
        "tar -c --format=pax --sparse --sparse-version=0.0 -C in .",
        "tar -c --format=pax --sparse --sparse-version=0.1 -C in .",
        "tar -c --format=gnu --sparse -C in .",
        "tar -c --format=ustar --exclude='nnn*' -C in .",
        "bsdtar -c --format=pax -f - -C in .",
    ]
    .map(run)
    .into()
});

fn build(bytes: &[u8]) -> Result<Report> {
    let temp = tempfile::tempdir().unwrap();
    let options = BuildOptions {
        threads: 1,
        memory_len: 192 << 20,
        ..BuildOptions::level(0).unwrap()
    };
    let source = Box::new(std::io::Cursor::new(bytes.to_vec()));
    let target = temp.path().join("image");
    let built = build_from_stream(source, Format::Tar, &target, false, &options, &Silent);
    let left: Vec<_> = std::fs::read_dir(temp.path()).unwrap().collect();
    assert_eq!(left.len(), usize::from(built.is_ok()), "{left:?}");
    built
}

/// Would catch: a stream that is cut anywhere and taken for whole.
#[test]
fn every_beginning_of_a_stream_is_cut_short() {
    for stream in STREAMS.iter() {
        let end = stream.iter().rposition(|&b| b != 0).unwrap();
        // Its end mark is the first block of zeros behind the last member's padding.
        let end = (end + 1).next_multiple_of(512) + 512;
        assert!(build(&stream[..end]).is_ok());
        for len in (0..end).step_by(173).chain((0..end).step_by(512)) {
            let error = build(&stream[..len]).err().unwrap();
            assert!(error.to_string().contains("cut short"), "{len}: {error}");
        }
    }
}

fn change() -> impl Strategy<Value = (usize, u8)> {
    (0..65536_usize, any::<u8>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Would catch: panics, endless loops and memory without bound on headers that lie. The sums of
    /// headers are made right again, so that what they say is believed.
    #[test]
    fn damaged_streams_are_refused_or_built(
        which in 0..6_usize,
        changes in proptest::collection::vec(change(), 1..6),
        is_summed in proptest::bool::weighted(0.9),
    ) {
        let mut stream = STREAMS[which].clone();
        for (at, byte) in changes {
            let len = stream.len();
            stream[at % len] = byte;
        }
        if is_summed {
            for block in stream.chunks_exact_mut(512).filter(|b| b[257..].starts_with(b"ustar")) {
                block[148..156].fill(b' ');
                let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
                block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
        }
        // Which of the two it is depends on where it was hit.
        let _ = build(&stream);
    }
}
