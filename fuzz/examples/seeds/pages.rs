//! Seeds for parts of records that the images have too few of.

use crate::Corpus;
use weald_format::pages::{BaseRun, Extent, ExtentPage, ExtentRun, Source, TimesPage, TimesRun};
use weald_format::{Timestamp, column, names};

/// Seeds for `times`: the builder makes a times overlay only for larger trees.
pub fn times(corpus: &Corpus) {
    let overlay: Vec<_> = (0..50)
        .map(|i| Timestamp {
            seconds: i * i - 9,
            nanoseconds: (i * 7) as u32,
        })
        .collect();
    corpus.put("times", &TimesPage::encode(&overlay));
    let run = TimesRun::of(overlay[0], overlay[1]).unwrap();
    corpus.put("times", &TimesPage::encode_run(&run, 1 << 16));
}

/// Seeds for `column`: each encoding of a column.
pub fn columns(corpus: &Corpus) {
    let shapes: [fn(u64) -> u64; 7] = [
        |_| 7,
        |i| 5 + 3 * i,
        |i| i / 9,
        |i| i * i % 3,
        |i| i * i * i,
        |i| i * i % 65_521,
        |i| i.wrapping_mul(1 << 60),
    ];
    for shape in shapes {
        let values: Vec<u64> = (0..60).map(shape).collect();
        let mut seed = vec![60, 0];
        column::encode(&mut seed, &values);
        corpus.put("column", &seed);
    }
}

/// Seeds for `names`: each style of names.
pub fn names(corpus: &Corpus) {
    let styles: [fn(u32) -> String; 4] = [
        |i| format!("file{i:03}.txt"),
        |i| format!("{i}"),
        |i| format!("{:08x}", i * 7919),
        |i| "ab".repeat(i as usize % 9),
    ];
    for style in styles {
        let names: Vec<String> = (0..40).map(style).collect();
        let mut seed = vec![40, 0];
        names::encode(
            &mut seed,
            &names.iter().map(|n| n.as_bytes()).collect::<Vec<_>>(),
        );
        corpus.put("names", &seed);
    }
}

/// Seeds for `extents`: extents among runs of base images.
pub fn base_runs(corpus: &Corpus) {
    let run = |base, start, len| ExtentRun::Base(BaseRun { base, start, len });
    let own = |len, source| ExtentRun::Own(Extent { len, source });
    let (stream, address) = (1, 77);
    let runs = [
        own(5, Source::Stream { stream, address }),
        run(0, 1000, 300),
        own(9, Source::Hole),
        run(3, 1 << 40, 1),
        run(0, 1300, 20),
    ];
    for streams in [2, 12] {
        let page = ExtentPage::encode_runs(&runs, &mut vec![0; streams]);
        corpus.put("extents", &page);
    }
}
