//! A strict reader of the text format of Prometheus, for what commands print in it.
//!
//! # Source
//! `docs/instrumenting/exposition_formats.md` of Prometheus (version 0.0.4), and the rules of
//! `promtool check metrics`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

/// Labels by name, without escapes.
pub type Labels = BTreeMap<String, String>;

/// A sample: its name, its labels, its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name of the metric, with the end that a part of a histogram has.
    pub name: String,
    /// Labels by name, without escapes.
    pub labels: Labels,
    /// Value.
    pub value: f64,
}

/// Type of a family and whether its samples have begun.
struct Family {
    kind: String,
    has_help: bool,
}

/// Reads `text`, and fails at the first thing that promtool would refuse or complain of.
///
/// # Errors
/// The line and what is wrong with it.
pub fn parse(text: &str) -> Result<Vec<Sample>, String> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let (mut samples, mut seen) = (Vec::new(), BTreeSet::new());
    let mut current = String::new();
    for line in text.lines() {
        let failed = |what: &str| format!("{line}: {what}");
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').ok_or_else(|| failed("no help"))?;
            let family = Family {
                kind: String::new(),
                has_help: !words.is_empty(),
            };
            if families.insert(name.to_owned(), family).is_some() {
                return Err(failed("a second HELP"));
            }
            name.clone_into(&mut current);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').ok_or_else(|| failed("no type"))?;
            let family = families.get_mut(name).filter(|_| name == current);
            let family = family.ok_or_else(|| failed("TYPE without HELP before it"))?;
            let is_known = matches!(kind, "counter" | "gauge" | "histogram");
            if !is_known || !family.kind.is_empty() || !family.has_help {
                return Err(failed("an unknown or second type, or no help"));
            }
            if (kind == "counter") != name.ends_with("_total") {
                return Err(failed("counters, and they alone, end in _total"));
            }
            kind.clone_into(&mut family.kind);
        } else {
            let sample = sample(line).map_err(|what| failed(&what))?;
            let family = families.get(&current).ok_or_else(|| failed("no HELP"))?;
            let rest = sample.name.strip_prefix(&current);
            let is_of_family = match family.kind.as_str() {
                "histogram" => matches!(rest, Some("_bucket" | "_sum" | "_count")),
                "" => false,
                _ => rest == Some(""),
            };
            if !is_of_family {
                return Err(failed("does not belong to the family before it"));
            }
            if !seen.insert((sample.name.clone(), sample.labels.clone())) {
                return Err(failed("is there twice"));
            }
            samples.push(sample);
        }
    }
    check_histograms(&samples)?;
    Ok(samples)
}

/// `name{label="value",…} number`.
fn sample(line: &str) -> Result<Sample, String> {
    let is_name = |text: &str| {
        let first = text.bytes().next();
        first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, value) = rest.split_once("=\"").ok_or("no label")?;
            let (value, behind) = quoted(value)?;
            if !is_name(label) || labels.insert(label.to_owned(), value).is_some() {
                return Err(format!("the label {label:?}"));
            }
            rest = behind.strip_prefix(',').unwrap_or(behind);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').ok_or("no blank before the value")?;
    let value = match value {
        "+Inf" => f64::INFINITY,
        value => value.parse().map_err(|_| format!("the value {value:?}"))?,
    };
    if is_name(name) {
        Ok(Sample {
            name: name.to_owned(),
            labels,
            value,
        })
    } else {
        Err(format!("the name {name:?}"))
    }
}

/// The value of a label up to its quotation mark, and what is behind that.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match chars.next() {
                Some((_, escaped @ ('\\' | '"'))) => value.push(escaped),
                Some((_, 'n')) => value.push('\n'),
                other => return Err(format!("the escape {other:?}")),
            },
            char => value.push(char),
        }
    }
    Err("a label without an end".to_owned())
}

/// Buckets grow with their bounds, and the last one has everything.
fn check_histograms(samples: &[Sample]) -> Result<(), String> {
    let mut buckets: BTreeMap<(String, Labels), Vec<(f64, f64)>> = BTreeMap::new();
    for sample in samples {
        let Some(name) = sample.name.strip_suffix("_bucket") else {
            continue;
        };
        let mut labels = sample.labels.clone();
        let bound = labels.remove("le").ok_or("a bucket without a bound")?;
        let bound = match bound.as_str() {
            "+Inf" => f64::INFINITY,
            bound => bound.parse().map_err(|_| format!("the bound {bound:?}"))?,
        };
        let of = buckets.entry((name.to_owned(), labels)).or_default();
        of.push((bound, sample.value));
    }
    for ((name, labels), buckets) in buckets {
        let grows = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        let count = format!("{name}_count");
        let is_count = |sample: &&Sample| sample.name == count && sample.labels == labels;
        let count = samples.iter().find(is_count).map(|sample| sample.value);
        let last = buckets.last().copied();
        if !buckets.windows(2).all(grows) || last != count.map(|count| (f64::INFINITY, count)) {
            return Err(format!("{name} {labels:?}: {buckets:?}, {count:?} in all"));
        }
    }
    Ok(())
}

/// Samples of `text`, which must be as [`parse`] wants it, and as promtool does if it is installed.
///
/// # Panics
/// If it is not.
#[track_caller]
pub fn samples(text: &str) -> Vec<Sample> {
    let samples = parse(text).unwrap_or_else(|what| panic!("{what}\n{text}"));
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let started = promtool
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    if let Ok(mut child) = started {
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(text.as_bytes()).expect("write");
        drop(input);
        let output = child.wait_with_output().expect("promtool");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.is_empty(), "{said}\n{text}");
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# HELP a_total A.\n# TYPE a_total counter\n";

    #[test]
    fn what_promtool_refuses_is_refused() {
        let good = format!("{HEAD}a_total{{b=\"x\\\\\\\"\\n\",c=\"\"}} 1\na_total 2.5\n");
        let samples = parse(&good).expect("good");
        assert_eq!(samples[0].labels["b"], "x\\\"\n");
        assert_eq!(samples[1].value, 2.5);
        for bad in [
            "a_total 1\n".to_owned(),
            format!("{HEAD}a_total 1"),
            format!("{HEAD}{HEAD}a_total 1\n"),
            format!("{HEAD}a_total 1\na_total 1\n"),
            format!("{HEAD}b_total 1\n"),
            format!("{HEAD}a_total{{b=\"\\t\"}} 1\n"),
            format!("{HEAD}a_total{{b=\"x}} 1\n"),
            format!("{HEAD}a_total{{b=\"1\",b=\"2\"}} 1\n"),
            format!("{HEAD}a_total{{1b=\"\"}} 1\n"),
            format!("{HEAD}a_total one\n"),
            "# HELP a A.\n# TYPE a counter\na 1\n".to_owned(),
            "# HELP a_total A.\n# TYPE a_total gauge\na_total 1\n".to_owned(),
            "# TYPE a gauge\na 1\n".to_owned(),
        ] {
            assert!(parse(&bad).is_err(), "{bad}");
        }
        let head = "# HELP h H.\n# TYPE h histogram\n";
        let whole = "h_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 3\nh_sum 4\nh_count 3\n";
        assert_eq!(parse(&format!("{head}{whole}")).map(|all| all.len()), Ok(4));
        for bad in [
            whole.replace("} 2", "} 4"),
            whole.replace("count 3", "count 2"),
        ] {
            assert!(parse(&format!("{head}{bad}")).is_err(), "{bad}");
        }
    }
}
