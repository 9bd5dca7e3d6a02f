//! Every limit that readers enforce and writers keep, with its reason. Section 2 of
//! `docs/format.md` repeats them; a test compares the two.

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident : $kind:ty = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $kind = $value;)*
        /// All limits by name; a test compares them with `docs/format.md`.
        pub const ALL: &[(&str, u64)] = &[$((stringify!($name), $name as u64)),*];
    };
}

limits! {
    /// Maximum length of a name, bytes: `NAME_MAX` of Linux.
    NAME_LEN_MAX: usize = 255;
    /// Maximum length of a symlink target, bytes: `PATH_MAX` of Linux without its NUL.
    TARGET_LEN_MAX: usize = 4095;
    /// Maximum length of the name of an extended attribute, bytes: `XATTR_NAME_MAX` of Linux.
    XATTR_NAME_LEN_MAX: usize = 255;
    /// Longest value of an extended attribute that a volume takes, bytes: `XATTR_SIZE_MAX` of
    /// Linux. An image has longer ones if a stream had them.
    XATTR_VALUE_LEN_MAX: usize = 65536;
    /// Longest path that a writer takes from a stream or a foreign image, bytes. Every directory
    /// above it may need a record, so a path costs up to half the square of its length. Trees that
    /// programs can walk stay far below: it is four times `PATH_MAX`. The writers of directories
    /// and volumes have no such limit.
    PATH_LEN_MAX: usize = 16384;
    /// Longest line of a composefs dump, bytes: room for the longest xattr set and two paths with
    /// every byte escaped.
    DUMP_LINE_LEN_MAX: usize = 20 << 20;
    /// Longest regular file that a writer puts into an image, and that a volume can have, bytes. A
    /// quarter of `NUMBER_MAX`, the limit of all contents together: no single file takes so much
    /// that an image has no room for others.
    FILE_LEN_MAX: u64 = 1 << 60;
    /// Maximum entries per entry block. Writers of very large trees use fewer
    /// (`docs/design/0003-entry-blocks.md`).
    ENTRIES_PER_BLOCK: usize = 16384;
    /// Maximum items per page of templates, contents, attributes or xattr sets.
    ITEMS_PER_PAGE: usize = 4096;
    /// Maximum extents per extent page.
    EXTENTS_PER_PAGE: usize = 16384;
    /// Maximum inodes per page of the times overlay if the page lists their times one by one.
    TIMES_PER_PAGE: usize = 4096;
    /// Maximum inodes per page of the times overlay if their times have equal steps. Such a page
    /// takes no memory. But a check of the image digests every name that has a time of its own, so
    /// this limit bounds the work that a few bytes can cause.
    TIMES_PER_RUN: usize = 65536;
    /// Maximum record references per index page.
    REFS_PER_PAGE: usize = 1024;
    /// Maximum raw length of a data block, bytes: the upper bound of what one read has to decode.
    BLOCK_LEN_MAX: u64 = 64 << 20;
    /// Maximum raw length of a metadata record other than the directory, bytes.
    PAGE_LEN_MAX: u64 = 16 << 20;
    /// Maximum length of one xattr set, names and values, bytes.
    XATTR_SET_LEN_MAX: usize = 4 << 20;
    /// Maximum raw length of a dictionary, bytes.
    DICTIONARY_LEN_MAX: u64 = 1 << 20;
    /// Maximum raw length of the directory record, bytes. 10^9 records need 50 MB.
    DIRECTORY_LEN_MAX: u64 = 64 << 20;
    /// Maximum output and maximum input of one recipe, bytes: the upper bound of what one read has
    /// to recreate.
    RECIPE_LEN_MAX: u64 = 16 << 20;
    /// Maximum 8 × 8 coefficient blocks in all components of a JPEG picture that one recipe makes:
    /// a photograph of 14 million pixels, 40 MiB of coefficients.
    PICTURE_BLOCKS_MAX: u64 = 5 << 16;
    /// The same limit for a picture with several scans, because a reader decodes each of its scans
    /// as a whole: a photograph of 1920 × 1088 pixels.
    SCANNED_BLOCKS_MAX: u64 = 3 << 14;
    /// Maximum scans of a JPEG picture. Each scan passes over all its blocks.
    PICTURE_SCANS_MAX: usize = 32;
    /// Maximum records in the history of one record.
    HISTORY_COUNT_MAX: usize = 64;
    /// Maximum raw length of a history, bytes: a reader decodes and holds it besides the record.
    HISTORY_LEN_MAX: u64 = 16 << 20;
    /// Maximum base images of one image.
    BASES_MAX: usize = 15;

    /// Bytes of the label of a generation: a line of a listing.
    LABEL_LEN_MAX: usize = 200;
    /// Bytes of the comment of a generation: a page of text.
    COMMENT_LEN_MAX: usize = 4096;
    /// Bytes of the command lines that made a generation: as much as a shell takes of a few.
    COMMAND_LINES_LEN_MAX: usize = 65536;
    /// Maximum streams in one image.
    STREAMS_MAX: usize = 64;
    /// Maximum levels of directories that a reader descends. The limit is ten times what `PATH_MAX`
    /// lets a program name.
    DEPTH_MAX: usize = 65536;
    /// Maximum blocks that one note of a segment names.
    NOTE_BLOCKS_MAX: usize = 65536;
    /// Maximum length of a note, bytes: blocks in no order take 11 bytes each.
    NOTE_LEN_MAX: u64 = 1 << 20;
    /// Largest count or length that a reader computes with. Two such numbers can be added without
    /// overflow.
    NUMBER_MAX: u64 = 1 << 62;
}
