//! Encodes reports for Prometheus (text exposition format 0.0.4).

use crate::report::{MountReport, OperationReport, ServerReport, bound_us};
use std::ffi::OsStr;
use std::fmt::Write;

/// Value of a metric of a mount.
type MountValue = fn(&MountReport) -> u64;
/// Value of a metric of a server.
type ServerValue = fn(&ServerReport) -> u64;

const SERVER_METRICS: [(&str, &str, &str, ServerValue); 7] = [
    (
        "weald_server_start_time_seconds",
        "gauge",
        "Start time of the server, in seconds since 1970.",
        |s| s.started,
    ),
    (
        "weald_server_mounts",
        "gauge",
        "Number of mounts of the server.",
        |s| s.mount_count,
    ),
    (
        "weald_server_resident_bytes",
        "gauge",
        "Resident memory (RSS) of the server.",
        |s| s.resident_len,
    ),
    (
        "weald_server_open_descriptors",
        "gauge",
        "Open file descriptors of the server.",
        |s| s.descriptor_count,
    ),
    (
        "weald_server_cache_bytes",
        "gauge",
        "Bytes of decoded data in the cache.",
        |s| s.cache.used_len,
    ),
    (
        "weald_server_cache_limit_bytes",
        "gauge",
        "Size limit of the cache.",
        |s| s.cache.len_max,
    ),
    (
        "weald_server_cache_hits_total",
        "counter",
        "Hits of the cache, over all mounts.",
        |s| s.cache.hit_count,
    ),
];

const MOUNT_METRICS: [(&str, &str, &str, MountValue); 6] = [
    (
        "weald_mount_start_time_seconds",
        "gauge",
        "Time of the mount, in seconds since 1970.",
        |m| m.started,
    ),
    (
        "weald_mount_in_flight_requests",
        "gauge",
        "Requests of the kernel in flight.",
        |m| m.in_flight,
    ),
    (
        "weald_mount_failures_total",
        "counter",
        "Requests answered with EIO: the image is damaged or unreadable.",
        |m| m.error_count,
    ),
    (
        "weald_mount_read_bytes_total",
        "counter",
        "Bytes of content read from files.",
        |m| m.read_len,
    ),
    (
        "weald_mount_cache_hits_total",
        "counter",
        "Cache hits of the mount.",
        |m| m.cache.hit_count,
    ),
    (
        "weald_mount_cache_misses_total",
        "counter",
        "Cache misses of the mount.",
        |m| m.cache.miss_count,
    ),
];

/// Encodes all metrics of `servers`; each metric has one HELP line and one TYPE line.
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
    head(&mut text, name, "counter", "Requests answered with EIO.");
    each_operation(&mounts, &mut |labels, operation| {
        line(&mut text, name, labels, &operation.error_count);
    });
    let name = "weald_request_duration_seconds";
    head(
        &mut text,
        name,
        "histogram",
        "Latency of requests of the kernel.",
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
    let mut cumulative = 0;
    let last = operation.latency_counts.len().saturating_sub(1);
    for (index, count) in operation.latency_counts.iter().enumerate() {
        cumulative += count;
        let bound = if index == last {
            "+Inf".to_owned()
        } else {
            (bound_us(index) as f64 / 1e6).to_string()
        };
        line(
            text,
            &bucket,
            &format!("{labels},le=\"{bound}\""),
            &cumulative,
        );
    }
    if operation.latency_counts.is_empty() {
        line(
            text,
            &bucket,
            &format!("{labels},le=\"+Inf\""),
            &operation.count,
        );
        cumulative = operation.count;
    }
    line(
        text,
        &format!("{name}_sum"),
        labels,
        &(operation.total_ns as f64 / 1e9),
    );
    // The count is the total of the buckets, because Prometheus expects it to equal the last one.
    // `operation.count` may be newer than the histogram.
    line(text, &format!("{name}_count"), labels, &cumulative);
}

fn labels(server: &ServerReport, mount: &MountReport) -> String {
    format!(
        "pid=\"{}\",dir=\"{}\",image=\"{}\"",
        server.pid,
        escaped(&mount.dir),
        escaped(&mount.image)
    )
}

/// Writes the HELP and TYPE lines of a metric. Writing to a String cannot fail.
fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: &dyn std::fmt::Display) {
    let _ = writeln!(text, "{name}{{{labels}}} {value}");
}

/// Escapes `\`, `"` and line feeds in the value of a label; invalid UTF-8 is replaced.
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
