//! Every limit that a reader enforces and a writer keeps, with its reason. `docs/format.md` section
//! 2 repeats them; a test compares the two.

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident : $kind:ty = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $kind = $value;)*
        /// All limits by name, for the comparison with `docs/format.md`.
        pub const ALL: &[(&str, u64)] = &[$((stringify!($name), $name as u64)),*];
    };
}

limits! {
    /// Bytes of a name: `NAME_MAX` of Linux.
    NAME_LEN_MAX: usize = 255;
    /// Bytes of a symlink's target: `PATH_MAX` of Linux without its NUL.
    TARGET_LEN_MAX: usize = 4095;
    /// Entries in one entry block; writers of very large trees use fewer, see
    /// `docs/design/0003-entry-blocks.md`.
    ENTRIES_PER_BLOCK: usize = 16384;
    /// Items in one page of templates, contents, attributes or xattr sets.
    ITEMS_PER_PAGE: usize = 4096;
    /// Extents in one extent page.
    EXTENTS_PER_PAGE: usize = 16384;
    /// Inodes in one page of the times overlay, where their times are not in equal steps.
    TIMES_PER_PAGE: usize = 4096;
    /// Inodes in one page of the times overlay where their times are in equal steps. Such a page
    /// takes no memory; but whoever checks an image digests every name that has a time of its own,
    /// so what a few bytes can claim is bounded.
    TIMES_PER_RUN: usize = 65536;
    /// Record references in one index page.
    REFS_PER_PAGE: usize = 1024;
    /// Raw bytes of a data block: what one read may have to decode, at the very most.
    BLOCK_LEN_MAX: u64 = 64 << 20;
    /// Raw bytes of a metadata record other than the directory.
    PAGE_LEN_MAX: u64 = 16 << 20;
    /// Bytes of one xattr set, names and values.
    XATTR_SET_LEN_MAX: usize = 4 << 20;
    /// Raw bytes of the metadata dictionary.
    DICTIONARY_LEN_MAX: u64 = 1 << 20;
    /// Raw bytes of the directory record: 10^9 records need 50 MB.
    DIRECTORY_LEN_MAX: u64 = 64 << 20;
    /// Bytes that one recipe makes, and bytes that it makes them of: what one read may have to
    /// recreate.
    RECIPE_LEN_MAX: u64 = 16 << 20;
    /// Blocks of 8 · 8 coefficients of all components of a picture that one recipe makes: 14
    /// million pixels of a photograph, 40 MiB.
    PICTURE_BLOCKS_MAX: u64 = 5 << 16;
    /// The same of a picture of several scans, of which a reader makes each as a whole: 1920 · 1088
    /// pixels of a photograph.
    SCANNED_BLOCKS_MAX: u64 = 3 << 14;
    /// Scans of a picture, each of which passes over its blocks.
    PICTURE_SCANS_MAX: usize = 32;
    /// Records that one record has as its history.
    HISTORY_COUNT_MAX: usize = 64;
    /// Raw bytes of them: what a reader decodes and holds besides the record itself.
    HISTORY_LEN_MAX: u64 = 16 << 20;
    /// Images that one image refers to.
    BASES_MAX: usize = 15;
    /// Streams in one image.
    STREAMS_MAX: usize = 64;
    /// Levels of directories that a reader descends. No template chain can be longer than what
    /// `PATH_MAX` allows to name ten times over.
    DEPTH_MAX: usize = 65536;
    /// Largest count or length that a reader computes with: leaves room to add two of them.
    NUMBER_MAX: u64 = 1 << 62;
}
