//! JPEG files come back unchanged. Any Lepton file gives a result or an error in bounded memory.

use weald_codec::jpeg::{DECODER_MEMORY_LEN, decode, encode, encoder_memory_len};
use weald_testkit::jpeg::Jpeg;

/// Every supported kind of file.
fn files() -> Vec<(Jpeg, Vec<u8>)> {
    let mut files = Vec::new();
    for is_color in [false, true] {
        for is_progressive in [false, true] {
            for restart in [0, 1, 7] {
                let jpeg = Jpeg {
                    is_color,
                    is_progressive,
                    restart,
                    ..Jpeg::new(9, 7)
                };
                files.push((jpeg, jpeg.draw(u64::from(restart))));
            }
        }
    }
    files
}

/// The parts of a Lepton file.
#[derive(Clone)]
struct Parts {
    fixed: Vec<u8>,
    header: Vec<u8>,
    body: Vec<u8>,
}

impl Parts {
    fn of(stored: &[u8]) -> Self {
        let long = |at: usize| u32::from_le_bytes(stored[at..at + 4].try_into().unwrap()) as usize;
        let end = 28 + long(24);
        let mut header = Vec::with_capacity(long(10) + 1);
        let mut zlib = flate2::Decompress::new(true);
        zlib.decompress_vec(
            &stored[28..end],
            &mut header,
            flate2::FlushDecompress::Finish,
        )
        .unwrap();
        Self {
            fixed: stored[..24].to_vec(),
            header,
            body: stored[end..stored.len() - 4].to_vec(),
        }
    }

    fn join(&self) -> Vec<u8> {
        let mut compressed = Vec::with_capacity(self.header.len() * 2 + 1000);
        let mut zlib = flate2::Compress::new(flate2::Compression::fast(), true);
        zlib.compress_vec(&self.header, &mut compressed, flate2::FlushCompress::Finish)
            .unwrap();
        let mut out = self.fixed.clone();
        out[10..14].copy_from_slice(&(self.header.len() as u32).to_le_bytes());
        out.extend_from_slice(&(compressed.len() as u32).to_le_bytes());
        out.extend_from_slice(&compressed);
        out.extend_from_slice(&self.body);
        out.extend_from_slice(&(out.len() as u32 + 4).to_le_bytes());
        out
    }

    /// Replaces the dimensions in the frame header.
    fn set_size(&mut self, height: u16, width: u16) {
        let is_frame = |w: &[u8]| w[0] == 0xff && (0xc0..=0xc2).contains(&w[1]);
        let at = self.header.windows(2).position(is_frame).unwrap() + 5;
        self.header[at..at + 2].copy_from_slice(&height.to_be_bytes());
        self.header[at + 2..at + 4].copy_from_slice(&width.to_be_bytes());
    }
}

/// Peak memory of this process, bytes.
fn peak_len() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let number = line.unwrap().trim().trim_end_matches(" kB").trim();
    number.parse::<u64>().unwrap() * 1024
}

fn rule(stored: &[u8], len: usize) -> &'static str {
    let error = decode(stored, len).unwrap_err();
    error.place().map_or("none", |place| place.rule)
}

/// Catches: a kind of file that is refused, is not restored, or does not get smaller; output that
/// depends on more than the file.
#[test]
fn files_come_back_smaller() {
    for (jpeg, file) in files() {
        let stored = encode(&file).unwrap_or_else(|| panic!("{jpeg:?} is refused"));
        assert!(
            stored.len() < file.len(),
            "{jpeg:?}: {} of {}",
            stored.len(),
            file.len()
        );
        assert_eq!(decode(&stored, file.len()).unwrap(), file, "{jpeg:?}");
        assert_eq!(encode(&file).unwrap(), stored);
    }
}

/// Catches: a version of the library that encodes differently, so that the same tree gives another
/// image than before. Together with [`files_come_back_smaller`]: a version that does not decode
/// older files.
#[test]
fn files_become_the_same_bytes_for_ever() {
    let digest = |is_progressive| {
        let jpeg = Jpeg {
            is_progressive,
            restart: 5,
            ..Jpeg::new(9, 7)
        };
        weald_format::Digest::of(&encode(&jpeg.draw(1)).unwrap()).to_string()
    };
    assert_eq!(digest(false)[..16], *"ba119ec560ba85d2");
    assert_eq!(digest(true)[..16], *"28a7948781319279");
}

/// Catches: an incomplete JPEG file that is accepted.
#[test]
fn incomplete_files_are_refused() {
    let file = Jpeg::new(4, 4).draw(1);
    for len in 0..file.len() {
        assert_eq!(encode(&file[..len]), None, "{len}");
    }
    assert_eq!(encode(&[&file[..], b"tail"].concat()), None);
    // A comment that looks like 32 scan headers.
    let comment = [&b"\xff\xfe\0\x42"[..], &b"\xff\xda".repeat(32)].concat();
    let many = [&file[..2], &comment, &file[2..]].concat();
    assert_eq!(encode(&many), None, "33 scans, as far as can be told");
}

/// Catches: a damaged Lepton file that makes a file of another length, or stops the program.
#[test]
fn damage_is_found_or_makes_as_many_bytes() {
    for is_progressive in [false, true] {
        let file = Jpeg {
            is_progressive,
            restart: 2,
            ..Jpeg::new(2, 2)
        }
        .draw(5);
        let stored = encode(&file).unwrap();
        for len in 0..stored.len() {
            assert_eq!(
                rule(&stored[..len], file.len()).split('-').next(),
                Some("F")
            );
        }
        for at in 0..stored.len() * 8 {
            let mut damaged = stored.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            if let Ok(made) = decode(&damaged, file.len()) {
                assert_eq!(made.len(), file.len());
            }
        }
    }
}

/// Catches F-20.7: a part of the header that may differ from what the format says.
#[test]
fn headers_are_as_the_format_says() {
    let file = Jpeg::new(4, 4).draw(1);
    let parts = Parts::of(&encode(&file).unwrap());
    assert_eq!(decode(&parts.join(), file.len()).unwrap(), file);
    let check = |what: &str, edit: &dyn Fn(&mut Parts)| {
        let mut edited = parts.clone();
        edit(&mut edited);
        assert_eq!(rule(&edited.join(), file.len()), "F-20.7", "{what}");
    };
    // All bytes except the length of the header, which the header repeats.
    for at in (0..10).chain(14..24) {
        check(&format!("byte {at}"), &|p| p.fixed[at] ^= 0x40);
    }
    let end = parts.header.len();
    // After the segments: P0D and a byte; HH and 1; the stream; GRB and the end of image. The
    // length of the stream may have any value up to the file's.
    for at in (end - 32..end).filter(|&at| at != end - 29 && !(end - 23..end - 20).contains(&at)) {
        check(&format!("byte {} from the end", end - at), &|p| {
            p.header[at] ^= 0x80;
        });
    }
    check("a part more", &|p| p.header.extend_from_slice(b"EEE"));
    check("restart counts", &|p| {
        p.header.extend_from_slice(b"CRS\xff\xff\xff\xff")
    });
    check("segments without an end", &|p| p.header[3..7].fill(0xff));
    check("a stream of another thread", &|p| p.body[3] |= 1);
    let find = |p: &Parts, marker: &[u8; 2]| p.header.windows(2).position(|w| w == marker).unwrap();
    check("a scan of 65 coefficients", &|p| {
        // After marker and length: a count, three components, the first and the last coefficient.
        let last = find(p, b"\xff\xda") + 4 + 1 + 6 + 1;
        p.header[last] = 64;
    });
    for frame in [0xc2, 0xc3] {
        check("a frame of another kind", &|p| {
            let at = find(p, b"\xff\xc0");
            p.header[at + 1] = frame;
        });
    }
    check("a picture that is too large", &|p| p.set_size(4096, 4096));
    let mut stored = parts.join();
    stored.push(0);
    assert_eq!(rule(&stored, file.len()), "F-20.7", "a byte past the end");
    assert_eq!(
        rule(&parts.join(), file.len() - 1),
        "F-20.7",
        "another file"
    );
}

/// Catches: memory that grows with what headers announce instead of with the limits, in encoder and
/// decoder. It is one test, because the peak is that of the process. It runs alone in a process of
/// its own, which it starts.
#[test]
fn memory_is_bounded_by_the_largest_picture() {
    const NAME: &str = "memory_is_bounded_by_the_largest_picture";
    if std::env::var_os("WEALD_PEAK").is_none() {
        let program = std::env::current_exe().unwrap();
        let status = std::process::Command::new(program)
            .args(["--exact", NAME, "--test-threads=1"])
            .env("WEALD_PEAK", "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    let small = Jpeg::new(4, 4).draw(1);
    let mut parts = Parts::of(&encode(&small).unwrap());
    let before = peak_len();
    // Every size that is too large; the frame header alone shows it.
    for (height, width) in [(u16::MAX, u16::MAX), (u16::MAX, 1000), (1000, u16::MAX)] {
        parts.set_size(height, width);
        assert_eq!(rule(&parts.join(), small.len()), "F-20.7");
    }
    assert!(peak_len() - before < 1 << 20);
    // The largest allowed pictures: 3504 × 3984 pixels, and progressive 1920 × 1088.
    for (is_progressive, height, width) in [(false, 3504, 3984), (true, 1088, 1920)] {
        let jpeg = Jpeg {
            is_progressive,
            ..Jpeg::new(4, 4)
        };
        let file = jpeg.draw(2);
        let mut parts = Parts::of(&encode(&file).unwrap());
        parts.set_size(height, width);
        // Noise as coefficients makes the longest scans.
        let mut noise = vec![0x30];
        let mut rng = weald_testkit::Rng::new(1);
        noise.extend((0..1 << 16).map(|_| rng.below(256) as u8));
        parts.body.truncate(3);
        for _ in 0..100 {
            parts.body.extend_from_slice(&noise);
        }
        let before = peak_len();
        let stored = parts.join();
        assert_eq!(rule(&stored, file.len()), "F-20.7");
        let grown = peak_len() - before;
        let allowed = DECODER_MEMORY_LEN + 3 * stored.len() as u64;
        println!("progressive {is_progressive}: {grown} of {allowed}");
        assert!(grown < allowed, "{grown} of {allowed}");
    }
    let largest = Jpeg::new(219, 249).draw(3);
    let before = peak_len();
    let start = std::time::Instant::now();
    assert!(encode(&largest).is_some());
    println!("{} bytes, {:?}", largest.len(), start.elapsed());
    let (grown, allowed) = (
        peak_len() - before,
        encoder_memory_len(largest.len() as u64),
    );
    assert!(grown < allowed, "{grown} of {allowed}");
}
