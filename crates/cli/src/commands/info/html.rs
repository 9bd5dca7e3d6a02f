//! `weald info --html`: one page that needs nothing else, and no script, with where the bytes of an
//! image go: by directory, by generation, by codec.

use super::markup::{cut, escaped};
use super::treemap::{Tile, svg};
use crate::progress::{bytes, count};
use std::collections::BTreeMap;
use std::fmt::Write;
use weald_format::container::{Codec, RecordType};
use weald_image::{
    AppendedBy, Image, SectionInfo, Share, SpaceUsage, StoredNode, StoredSums, StoredTree,
    TreeDetail,
};
use weald_vfs::shown;

/// Entries with a smaller share of the image than one of so many are counted together.
const SHARE_MIN: u64 = 1000;
/// Depth below the root at which all entries of a directory are counted together.
const DEPTH_MAX: usize = 8;
/// Most characters of a name that are shown.
const NAME_LEN_MAX: usize = 96;
/// Most generations that are shown, the newest; the older ones are counted together.
const GENERATIONS_MAX: usize = 200;
/// What the browser may load for the page: nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; \
                      base-uri 'none'";

/// The page of `image`, which has the name `name`.
///
/// # Errors
/// Errors of the reader.
pub fn page(image: &Image, name: &[u8]) -> weald_format::Result<String> {
    let image_len = image.summary().image_len;
    let tree = image.stored_by_directory(TreeDetail {
        stored_len_min: (image_len / SHARE_MIN).max(1),
        depth_max: DEPTH_MAX,
    })?;
    let facts = Facts {
        image,
        usage: image.space_usage()?,
        tree,
        appended: image.used_by_generation()?,
        sections: image.sections()?,
    };
    Ok(facts.page(&cut(&shown(name), 4 * NAME_LEN_MAX)))
}

struct Facts<'a> {
    image: &'a Image,
    usage: SpaceUsage,
    tree: StoredTree,
    appended: Vec<AppendedBy>,
    sections: Vec<SectionInfo>,
}

impl Facts<'_> {
    fn page(&self, name: &str) -> String {
        let name = escaped(name);
        let mut out = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{name}</title>\n<style>\n{}</style></head><body>\n<main>\n<h1>{name}</h1>\n",
            escaped(POLICY),
            include_str!("page.css"),
        );
        self.add_summary(&mut out);
        self.add_map(&mut out);
        self.add_directories(&mut out);
        self.add_generations(&mut out);
        self.add_codecs(&mut out);
        out.push_str("</main>\n</body></html>\n");
        out
    }

    fn add_summary(&self, out: &mut String) {
        let summary = self.image.summary();
        let lines = [
            ("image", exact(summary.image_len)),
            ("names", count(summary.name_count)),
            ("bytes of all files", exact(self.usage.named_len)),
            ("generation", count(summary.generation)),
            ("image digest", summary.image_digest.to_string()),
        ];
        out.push_str("<dl>\n");
        for (word, value) in lines {
            add(
                out,
                format_args!("<dt>{word}</dt><dd>{}</dd>\n", escaped(&value)),
            );
        }
        let label = &self.image.directory().label;
        if !label.is_empty() {
            let label = escaped(&shown(label.as_str().as_bytes()));
            add(out, format_args!("<dt>label</dt><dd>{label}</dd>\n"));
        }
        out.push_str("</dl>\n");
    }

    /// What takes the bytes of the image: the files, and all that is not blocks of files.
    fn areas(&self) -> [(&'static str, u64); 4] {
        [
            ("files", self.tree.root.sums.stored_len),
            ("blocks that no file uses", self.tree.unused_len),
            (
                "names, attributes, extents, recipes, index",
                self.usage.metadata_len,
            ),
            (
                "footers, and records of other generations",
                self.usage.other_len,
            ),
        ]
    }

    fn add_map(&self, out: &mut String) {
        out.push_str("<h2>Where the bytes go</h2>\n");
        let mut parts = vec![part(&self.tree.root, "/", "")];
        parts.extend(self.areas().into_iter().skip(1).map(|(words, len)| Tile {
            words: words.to_owned(),
            title: format!("{words}: {}", bytes(len)),
            len,
            parts: Vec::new(),
        }));
        parts.retain(|part| part.len > 0);
        parts.sort_by_key(|part| std::cmp::Reverse(part.len));
        out.push_str(&svg(
            &parts,
            "Stored bytes by directory; the table below has the figures",
        ));
        add(
            out,
            format_args!(
                "<p>Areas are bytes of the image. Files that are equal to others take bytes where \
                 their first name is. Entries with less than 1/{SHARE_MIN} of the image, or more \
                 than {DEPTH_MAX} directories deep, are counted together.</p>\n"
            ),
        );
    }

    fn add_directories(&self, out: &mut String) {
        let image_len = self.image.summary().image_len;
        begin_table(
            out,
            "By directory",
            "directories",
            &[
                "name",
                "names",
                "bytes of files",
                "stored bytes",
                "of the image",
            ],
        );
        self.add_node(out, &self.tree.root, 0);
        for (words, len) in self.areas().into_iter().skip(1) {
            let share = percent(len, image_len);
            let cells = [String::new(), String::new(), count(len), share];
            add_row(out, "area", words, &cells, &[("stored", len)]);
        }
        self.add_whole(out, 2);
        end_table(out);
    }

    /// The last row of a table: the image. `empty_count` cells before the bytes stay empty.
    fn add_whole(&self, out: &mut String, empty_count: usize) {
        let image_len = self.image.summary().image_len;
        let mut cells = vec![String::new(); empty_count];
        cells.extend([count(image_len), percent(image_len, image_len)]);
        add_row(out, "sum", "image", &cells, &[("stored", image_len)]);
    }

    fn add_node(&self, out: &mut String, node: &StoredNode, depth: usize) {
        self.add_sums(out, &format!("node d{depth}"), &name_of(node), &node.sums);
        for child in &node.children {
            self.add_node(out, child, depth + 1);
        }
        if !node.children.is_empty() && node.others.name_count > 0 {
            let class = format!("others d{}", depth + 1);
            self.add_sums(out, &class, &others_of(node), &node.others);
        }
    }

    fn add_sums(&self, out: &mut String, class: &str, words: &str, sums: &StoredSums) {
        let cells = [
            count(sums.name_count),
            count(sums.file_len),
            count(sums.stored_len),
            percent(sums.stored_len, self.image.summary().image_len),
        ];
        let data = [
            ("names", sums.name_count),
            ("files", sums.file_len),
            ("stored", sums.stored_len),
        ];
        add_row(out, class, words, &cells, &data);
    }

    fn add_generations(&self, out: &mut String) {
        begin_table(
            out,
            "By generation",
            "generations",
            &[
                "generation",
                "appended bytes",
                "used by this one",
                "of them",
            ],
        );
        let (shown, older) = self
            .appended
            .split_at(self.appended.len().min(GENERATIONS_MAX));
        let row = |out: &mut String, words: &str, appended: u64, used: u64| {
            let cells = [count(appended), count(used), percent(used, appended)];
            let data = [("appended", appended), ("used", used)];
            add_row(out, "generation", words, &cells, &data);
        };
        for by in shown {
            let words = by.generation.number.to_string();
            row(out, &words, by.appended_len, by.used_len);
        }
        if !older.is_empty() {
            let sum = |len: fn(&AppendedBy) -> u64| older.iter().map(len).sum();
            let words = format!("{} older ones", count(older.len() as u64));
            row(
                out,
                &words,
                sum(|by| by.appended_len),
                sum(|by| by.used_len),
            );
        }
        end_table(out);
        out.push_str(
            "<p>What a generation uses of the bytes that earlier ones appended, it shares with \
             them.</p>\n",
        );
    }

    fn add_codecs(&self, out: &mut String) {
        begin_table(
            out,
            "By codec",
            "codecs",
            &[
                "what, codec",
                "records",
                "raw bytes",
                "stored bytes",
                "of the image",
            ],
        );
        let mut shares: BTreeMap<(&str, Codec), Share> = BTreeMap::new();
        for section in &self.sections {
            let stream = section
                .stream
                .filter(|_| section.record_type == RecordType::Data);
            let what = stream.map_or("metadata", |(_, category)| category.name());
            for (codec, share) in &section.by_codec {
                let sum = shares.entry((what, *codec)).or_default();
                sum.record_count = sum.record_count.saturating_add(share.record_count);
                sum.raw_len = sum.raw_len.saturating_add(share.raw_len);
                sum.stored_len = sum.stored_len.saturating_add(share.stored_len);
            }
        }
        let image_len = self.image.summary().image_len;
        for ((what, codec), share) in &shares {
            let cells = [
                count(share.record_count),
                count(share.raw_len),
                count(share.stored_len),
                percent(share.stored_len, image_len),
            ];
            let words = format!("{what}, {}", codec.name());
            let data = [("raw", share.raw_len), ("stored", share.stored_len)];
            add_row(out, "codec", &words, &cells, &data);
        }
        let other_len = self.usage.other_len;
        let share = percent(other_len, image_len);
        let cells = [String::new(), String::new(), count(other_len), share];
        let words = "footers, and records of other generations";
        add_row(out, "area", words, &cells, &[("stored", other_len)]);
        self.add_whole(out, 2);
        end_table(out);
    }
}

fn name_of(node: &StoredNode) -> String {
    let name = cut(&shown(&node.name), NAME_LEN_MAX);
    if node.is_directory { name + "/" } else { name }
}

fn others_of(node: &StoredNode) -> String {
    format!("{} other names", count(node.others.name_count))
}

/// The part of the treemap for `node`; `above` is the path of its directory.
fn part(node: &StoredNode, words: &str, above: &str) -> Tile {
    let path = cut(&format!("{above}{words}"), 4 * NAME_LEN_MAX);
    let mut parts: Vec<Tile> = node
        .children
        .iter()
        .map(|child| part(child, &name_of(child), &path))
        .collect();
    if !parts.is_empty() && node.others.stored_len > 0 {
        let words = others_of(node);
        parts.push(Tile {
            title: format!("{path}: {words}, {}", bytes(node.others.stored_len)),
            words,
            len: node.others.stored_len,
            parts: Vec::new(),
        });
        parts.sort_by_key(|part| std::cmp::Reverse(part.len));
    }
    Tile {
        words: words.to_owned(),
        title: format!(
            "{path}: {} stored, {} of files, {} names",
            bytes(node.sums.stored_len),
            bytes(node.sums.file_len),
            count(node.sums.name_count)
        ),
        len: node.sums.stored_len,
        parts,
    }
}

/// A write into a string succeeds.
fn add(out: &mut String, words: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(words);
}

fn begin_table(out: &mut String, title: &str, id: &str, heads: &[&str]) {
    add(
        out,
        format_args!("<h2>{title}</h2>\n<div class=\"wide\"><table id=\"{id}\"><thead><tr>"),
    );
    for head in heads {
        add(out, format_args!("<th scope=\"col\">{head}</th>"));
    }
    out.push_str("</tr></thead><tbody>\n");
}

fn end_table(out: &mut String) {
    out.push_str("</tbody></table></div>\n");
}

/// A row with its first cell, the others, and figures for programs.
fn add_row(out: &mut String, class: &str, first: &str, cells: &[String], data: &[(&str, u64)]) {
    add(out, format_args!("<tr class=\"{class}\""));
    for (key, value) in data {
        add(out, format_args!(" data-{key}=\"{value}\""));
    }
    add(out, format_args!("><td>{}</td>", escaped(first)));
    for cell in cells {
        add(out, format_args!("<td>{}</td>", escaped(cell)));
    }
    out.push_str("</tr>\n");
}

fn exact(len: u64) -> String {
    format!("{} ({} bytes)", bytes(len), count(len))
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1}%", 100.0 * part as f64 / whole.max(1) as f64)
}
