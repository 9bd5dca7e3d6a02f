//! Filter rules against paths.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_filter::{DirRules, Filter, Verdict};

fuzz_target!(|data: &[u8]| {
    let Some(cut) = data.iter().position(|&b| b == 0xff) else {
        return;
    };
    let (rules, path) = (&data[..cut], &data[cut + 1..]);
    let mut filter = Filter::new();
    if filter.push_lines(rules, Verdict::Excluded).is_ok() {
        let none = DirRules::default();
        for is_dir in [false, true] {
            assert_eq!(
                filter.excludes(&none, path, is_dir),
                filter.matches(&none, path, is_dir) == Verdict::Excluded
            );
        }
    }
    // The same bytes as a rule file in the directory "d".
    for letters in ["", "-", "+w", "C", "ne"] {
        let mut filter = Filter::new();
        let rule = format!("dir-merge,{letters} .rules");
        filter.push_filter(rule.as_bytes()).expect("a rule");
        let read = &mut |_: &[u8]| Ok(Some(rules.to_vec()));
        if let Ok(rules) = filter.below(&DirRules::default(), b"d", read) {
            let below = &mut |_: &[u8]| Ok(None);
            let inherited = filter.below(&rules, b"d/e", below).expect("nothing new");
            filter.excludes(&rules, path, true);
            filter.excludes(&inherited, path, false);
        }
    }
});
