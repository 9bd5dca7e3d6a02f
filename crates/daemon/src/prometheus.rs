//! Reports as Prometheus reads them (text exposition format 0.0.4).

use crate::report::{MountReport, OperationReport, ServerReport, bound_us};
use std::ffi::OsStr;
use std::fmt::Write;

/// A line of a mount: labels and value.
type OfMount = fn(&MountReport) -> u64;
/// A line of a server.
type OfServer = fn(&ServerReport) -> u64;

const SERVER_METRICS: [(&str, &str, &str, OfServer); 7] = [
    (
        "weald_server_start_time_seconds",
        "gauge",
        "When the server began, in seconds since 1970.",
        |s| s.started,
    ),
    (
        "weald_server_mounts",
        "gauge",
        "Mounts that the server has.",
        |s| s.mount_count,
    ),
    (
        "weald_server_resident_bytes",
        "gauge",
        "Memory that the server holds.",
        |s| s.resident_len,
    ),
    (
        "weald_server_open_descriptors",
        "gauge",
        "Files that the server has open.",
        |s| s.descriptor_count,
    ),
    (
        "weald_server_cache_bytes",
        "gauge",
        "Decoded data in the cache of the server.",
        |s| s.cache.used_len,
    ),
    (
        "weald_server_cache_limit_bytes",
        "gauge",
        "Most decoded data in the cache.",
        |s| s.cache.len_max,
    ),
    (
        "weald_server_cache_hits_total",
        "counter",
        "Requests that the cache of the server answered.",
        |s| s.cache.hit_count,
    ),
];

const MOUNT_METRICS: [(&str, &str, &str, OfMount); 6] = [
    (
        "weald_mount_start_time_seconds",
        "gauge",
        "When it was mounted, in seconds since 1970.",
        |m| m.started,
    ),
    (
        "weald_mount_in_flight_requests",
        "gauge",
        "Requests of the kernel under way.",
        |m| m.in_flight,
    ),
    (
        "weald_mount_failures_total",
        "counter",
        "Requests that failed because the image could not be read.",
        |m| m.error_count,
    ),
    (
        "weald_mount_read_bytes_total",
        "counter",
        "Bytes of content handed out.",
        |m| m.read_len,
    ),
    (
        "weald_mount_cache_hits_total",
        "counter",
        "Requests of the mount that its cache answered.",
        |m| m.cache.hit_count,
    ),
    (
        "weald_mount_cache_misses_total",
        "counter",
        "Requests of the mount that its cache did not answer.",
        |m| m.cache.miss_count,
    ),
];

/// Everything that `servers` tell, each metric with its help once.
pub fn prometheus(servers: &[ServerReport]) -> String {
    let mut text = String::new();
    for (name, kind, help, value) in SERVER_METRICS {
        head(&mut text, name, kind, help);
        for server in servers {
            line(
                &mut text,
                name,
                &format!("pid=\"{}\"", server.pid),
                &value(server),
            );
        }
    }
    let mounts: Vec<(String, &MountReport)> = servers
        .iter()
        .flat_map(|server| {
            server
                .mounts
                .iter()
                .map(move |mount| (labels(server, mount), mount))
        })
        .collect();
    for (name, kind, help, value) in MOUNT_METRICS {
        head(&mut text, name, kind, help);
        for (labels, mount) in &mounts {
            line(&mut text, name, labels, &value(mount));
        }
    }
    let name = "weald_request_errors_total";
    head(
        &mut text,
        name,
        "counter",
        "Requests answered by an error, whatever it was.",
    );
    each_operation(&mounts, &mut |labels, operation| {
        line(&mut text, name, labels, &operation.error_count);
    });
    let name = "weald_request_duration_seconds";
    head(
        &mut text,
        name,
        "histogram",
        "Time that requests of the kernel took.",
    );
    each_operation(&mounts, &mut |labels, operation| {
        histogram(&mut text, name, labels, operation);
    });
    text
}

fn each_operation(
    mounts: &[(String, &MountReport)],
    visit: &mut dyn FnMut(&str, &OperationReport),
) {
    for (labels, mount) in mounts {
        for operation in &mount.operations {
            let labels = format!(
                "{labels},operation=\"{}\"",
                escaped(operation.name.as_ref())
            );
            visit(&labels, operation);
        }
    }
}

fn histogram(text: &mut String, name: &str, labels: &str, operation: &OperationReport) {
    let bucket = format!("{name}_bucket");
    let mut seen = 0;
    let last = operation.latency_counts.len().saturating_sub(1);
    for (index, count) in operation.latency_counts.iter().enumerate() {
        seen += count;
        let bound = match index == last {
            true => "+Inf".to_owned(),
            false => (bound_us(index) as f64 / 1e6).to_string(),
        };
        line(text, &bucket, &format!("{labels},le=\"{bound}\""), &seen);
    }
    if operation.latency_counts.is_empty() {
        line(
            text,
            &bucket,
            &format!("{labels},le=\"+Inf\""),
            &operation.count,
        );
        seen = operation.count;
    }
    line(
        text,
        &format!("{name}_sum"),
        labels,
        &(operation.total_ns as f64 / 1e9),
    );
    // The buckets' own total: counters that move meanwhile must not make it differ from the last
    // bucket.
    line(text, &format!("{name}_count"), labels, &seen);
}

fn labels(server: &ServerReport, mount: &MountReport) -> String {
    format!(
        "pid=\"{}\",dir=\"{}\",image=\"{}\"",
        server.pid,
        escaped(&mount.dir),
        escaped(&mount.image)
    )
}

// Writing to a String cannot fail.
fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: &dyn std::fmt::Display) {
    let _ = writeln!(text, "{name}{{{labels}}} {value}");
}

/// A value of a label: UTF-8, with `\`, `"` and line feeds escaped.
fn escaped(value: &OsStr) -> String {
    let value = value.to_string_lossy();
    value
        .replace('\\', r"\\")
        .replace('"', r#"\""#)
        .replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_buckets_add_up() {
        let operation = OperationReport {
            name: "READ".into(),
            count: 4,
            error_count: 1,
            total_ns: 1_500_000_000,
            latency_counts: vec![1, 2, 1],
        };
        let mount = MountReport {
            dir: "a\"b\\c\nd".into(),
            operations: vec![operation],
            ..MountReport::default()
        };
        let server = ServerReport {
            pid: 7,
            mounts: vec![mount.clone(), mount],
            ..ServerReport::default()
        };
        let text = prometheus(&[server]);
        let labels = r#"pid="7",dir="a\"b\\c\nd",image="",operation="READ""#;
        for expected in [
            format!("weald_request_duration_seconds_bucket{{{labels},le=\"0.000001\"}} 1\n"),
            format!("weald_request_duration_seconds_bucket{{{labels},le=\"0.000002\"}} 3\n"),
            format!("weald_request_duration_seconds_bucket{{{labels},le=\"+Inf\"}} 4\n"),
            format!("weald_request_duration_seconds_sum{{{labels}}} 1.5\n"),
            format!("weald_request_duration_seconds_count{{{labels}}} 4\n"),
            format!("weald_request_errors_total{{{labels}}} 1\n"),
        ] {
            assert_eq!(text.matches(&expected).count(), 2, "{expected}\n{text}");
        }
        for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            assert_eq!(
                text.matches(&format!("# TYPE {name}\n")).count(),
                1,
                "{name}"
            );
        }
    }
}
