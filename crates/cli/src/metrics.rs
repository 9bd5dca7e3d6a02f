//! Figures in the text format of Prometheus.

use weald_vfs::safe_line;

/// A metric that goes up and down, with a line for each thing that has it: labels and value.
pub fn gauge((name, help): (&str, &str), lines: &[(String, f64)]) -> String {
    let lines = lines
        .iter()
        .map(|(labels, value)| format!("{name}{{{labels}}} {value}\n"));
    let lines: String = lines.collect();
    format!("# HELP {name} {help}\n# TYPE {name} gauge\n{lines}")
}

/// The value of a label. The format has escapes only for quotes, backslashes and newlines.
pub fn label(text: &str) -> String {
    safe_line(text).replace('\\', r"\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a label that ends early.
    #[test]
    fn labels_are_escaped() {
        let text = gauge(("a", "b."), &[(format!("c=\"{}\"", label("/a\"b\\")), 0.5)]);
        assert_eq!(
            text,
            "# HELP a b.\n# TYPE a gauge\na{c=\"/a\\\"b\\\\\"} 0.5\n"
        );
    }
}
