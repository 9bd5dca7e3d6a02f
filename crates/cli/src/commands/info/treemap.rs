//! A treemap as SVG: areas in proportion to bytes, directories around what is in them.
//!
//! # Source
//! Bruls, Huizing and van Wijk, "Squarified Treemaps", 2000.

use super::markup::{cut, escaped};
use std::fmt::Write;

/// Width and height of the drawing, in units of SVG.
const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 680.0;
/// Height of the line with the name of a directory.
const HEAD: f64 = 18.0;
/// Distance of the parts of a directory from its edge.
const MARGIN: f64 = 2.0;
/// Shortest side of a part that is drawn, and of one that shows what is in it.
const SIDE_MIN: f64 = 2.0;
const OPEN_SIDE_MIN: f64 = 26.0;
/// Width of a letter, for the part of a name that fits.
const LETTER: f64 = 7.0;
/// Colours of the style sheet.
const COLOUR_COUNT: usize = 8;

/// A part of a treemap.
pub struct Tile {
    /// Words in it; not yet escaped for HTML.
    pub words: String,
    /// What a pointer on it shows; not yet escaped for HTML.
    pub title: String,
    /// Its bytes.
    pub len: u64,
    /// What is in it, the largest first.
    pub parts: Vec<Tile>,
}

#[derive(Clone, Copy)]
struct Rect {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// Draws `parts`, the largest first.
pub fn svg(parts: &[Tile], label: &str) -> String {
    let mut out = format!(
        "<svg class=\"map\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escaped(label)
    );
    let rect = Rect {
        x: 0.0,
        y: 0.0,
        width: WIDTH,
        height: HEIGHT,
    };
    draw(&mut out, parts, rect, 0, None);
    out.push_str("</svg>\n");
    out
}

/// Draws parts into `rect`, all in one colour, or each in its own.
fn draw(out: &mut String, parts: &[Tile], rect: Rect, depth: usize, colour: Option<usize>) {
    for (no, (part, rect)) in parts.iter().zip(places(parts, rect)).enumerate() {
        if rect.width < SIDE_MIN || rect.height < SIDE_MIN {
            continue;
        }
        let own = colour.unwrap_or(no % COLOUR_COUNT);
        let is_open = !part.parts.is_empty()
            && rect.width >= OPEN_SIDE_MIN
            && rect.height >= OPEN_SIDE_MIN + HEAD;
        let class = if is_open { "dir" } else { "leaf" };
        // A write into a string succeeds.
        let _ = writeln!(
            out,
            "<g class=\"{class} c{own}\"><title>{}</title><rect x=\"{:.1}\" y=\"{:.1}\" \
             width=\"{:.1}\" height=\"{:.1}\"/>",
            escaped(&part.title),
            rect.x,
            rect.y,
            rect.width,
            rect.height
        );
        draw_words(out, &part.words, rect);
        out.push_str("</g>\n");
        if is_open {
            let inner = Rect {
                x: rect.x + MARGIN,
                y: rect.y + HEAD,
                width: rect.width - 2.0 * MARGIN,
                height: rect.height - HEAD - MARGIN,
            };
            // What is directly in the root has colours of its own.
            let below = (depth > 0).then_some(own);
            draw(out, &part.parts, inner, depth + 1, below);
        }
    }
}

fn draw_words(out: &mut String, words: &str, rect: Rect) {
    let fits = ((rect.width - 6.0) / LETTER).max(0.0) as usize;
    if rect.height < HEAD || fits < 3 {
        return;
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        rect.x + 4.0,
        rect.y + 13.0,
        escaped(&cut(words, fits))
    );
}

/// Where each of `parts` lies: rows along the shorter side of what is left, each as long as its
/// parts get more like squares.
fn places(parts: &[Tile], rect: Rect) -> Vec<Rect> {
    let total: f64 = parts.iter().map(|part| part.len as f64).sum();
    let scale = rect.width * rect.height / total.max(1.0);
    let mut areas: Vec<f64> = Vec::new();
    areas.extend(parts.iter().map(|part| part.len as f64 * scale));
    let (mut places, mut left) = (Vec::new(), rect);
    let mut rest = areas.as_slice();
    while !rest.is_empty() {
        let side = left.width.min(left.height);
        let mut count = 1;
        while count < rest.len() && worst(&rest[..count + 1], side) <= worst(&rest[..count], side) {
            count += 1;
        }
        let (row, after) = rest.split_at(count);
        left = place_row(row, left, &mut places);
        rest = after;
    }
    places
}

/// Worst ratio of the sides of the parts of a row along a side.
fn worst(row: &[f64], side: f64) -> f64 {
    let sum: f64 = row.iter().sum();
    let ratio = |area: f64| {
        let long = side * side * area / (sum * sum);
        long.max(1.0 / long)
    };
    let ratios = row.iter().map(|area| ratio(area.max(f64::MIN_POSITIVE)));
    ratios.fold(0.0, f64::max)
}

/// Places a row along the shorter side of `left`; returns what is left then.
fn place_row(row: &[f64], left: Rect, places: &mut Vec<Rect>) -> Rect {
    let sum: f64 = row.iter().sum();
    let is_wide = left.width >= left.height;
    let side = if is_wide { left.height } else { left.width };
    let depth = if side > 0.0 { sum / side } else { 0.0 };
    let mut at = 0.0;
    for area in row {
        let len = if depth > 0.0 { area / depth } else { 0.0 };
        places.push(if is_wide {
            Rect {
                x: left.x,
                y: left.y + at,
                width: depth,
                height: len,
            }
        } else {
            Rect {
                x: left.x + at,
                y: left.y,
                width: len,
                height: depth,
            }
        });
        at += len;
    }
    if is_wide {
        Rect {
            x: left.x + depth,
            width: (left.width - depth).max(0.0),
            ..left
        }
    } else {
        Rect {
            y: left.y + depth,
            height: (left.height - depth).max(0.0),
            ..left
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: parts that lie outside or over each other, areas that are not in proportion.
    #[test]
    fn areas_are_in_proportion_and_inside() {
        let parts: Vec<Tile> = [600, 300, 50, 25, 25, 0]
            .into_iter()
            .map(|len| Tile {
                words: String::new(),
                title: String::new(),
                len,
                parts: Vec::new(),
            })
            .collect();
        let rect = Rect {
            x: 10.0,
            y: 20.0,
            width: 100.0,
            height: 40.0,
        };
        let places = places(&parts, rect);
        assert_eq!(places.len(), parts.len());
        for (part, place) in parts.iter().zip(&places) {
            let area = place.width * place.height;
            assert!((area - part.len as f64 * 4.0).abs() < 0.01, "{area}");
            assert!(place.x >= 9.99 && place.x + place.width <= 110.01);
            assert!(place.y >= 19.99 && place.y + place.height <= 60.01);
        }
        for (no, a) in places.iter().enumerate() {
            for b in &places[no + 1..] {
                let across = (a.x + a.width).min(b.x + b.width) - a.x.max(b.x);
                let down = (a.y + a.height).min(b.y + b.height) - a.y.max(b.y);
                assert!(across.min(down) < 0.01, "{across} {down}");
            }
        }
    }
}
