//! Recipe pages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::limits::RECIPE_LEN_MAX;
use weald_format::recipes::{Method, RecipePage};

fuzz_target!(|data: &[u8]| {
    let Ok(page) = RecipePage::parse(data) else {
        return;
    };
    let mut start = 0;
    for (i, recipe) in page.recipes().iter().enumerate() {
        assert_eq!(
            Method::from_code(recipe.method.code().into()),
            Some(recipe.method)
        );
        assert!((1..=RECIPE_LEN_MAX).contains(&recipe.len));
        for offset in [start, start + recipe.len - 1] {
            assert_eq!(page.find(offset), Some((i, start, recipe)));
        }
        start += recipe.len;
    }
    assert_eq!((page.made_len(), page.find(start)), (start, None));
    assert_eq!(
        RecipePage::parse(&RecipePage::encode(page.recipes())).unwrap(),
        page
    );
});
