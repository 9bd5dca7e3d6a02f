//! What the commands print, accept and refuse, as users call them.
#![allow(missing_docs)]

mod build;
mod choosing;
mod coming_from;
mod composefs;
mod diff;
mod escapes;
mod examples;
mod export_erofs;
mod extract;
mod find;
mod from_erofs;
mod fsverity;
mod info;
mod info_html;
mod json_doc;
mod labels;
mod outputs;
mod parity;
#[path = "../../../image/tests/support/mod.rs"]
mod parts;
mod places;
mod read;
mod rewrite;
mod salvage;
#[path = "../support/mod.rs"]
mod support;
mod tar;
mod trees;
mod zip;
